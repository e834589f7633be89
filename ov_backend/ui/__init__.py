"""The panel, its live status, its routes and their authentication: the same in the WebUI and in the standalone page."""
