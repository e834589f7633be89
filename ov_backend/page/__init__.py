"""What a user sees: the panel, its live status and routes, and the standalone page. Hosts import it; the backend never does."""
