"""Networks by their blocks: the modules that a forward calls, where the whole of it is no graph."""
