"""The demo and the web page that need no WebUI."""

from ov_backend.settings import without_analytics

without_analytics()
