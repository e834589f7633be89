"""Networks that are compiled once for every signature, and the worker that compiles them."""
