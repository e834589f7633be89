"""The programs in which the panel stands: the WebUIs, and the page of ``serve``."""
