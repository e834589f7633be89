"""The demo and the web page that need no WebUI."""

from ov_backend.core.settings import without_analytics

without_analytics()
