"""Networks that are compiled once per signature, and the worker that compiles them."""
