"""The demo and the web page that need no WebUI."""
