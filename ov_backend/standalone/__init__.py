"""The demo and the page that need no WebUI."""
