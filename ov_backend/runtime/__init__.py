"""Binds weights to a model, compiles it, and runs it."""
