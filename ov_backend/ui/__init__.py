"""The panel, its live status, its routes and their authentication: the same in both hosts."""
