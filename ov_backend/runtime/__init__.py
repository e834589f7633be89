"""Weights are bound to a model; the compiled result answers calls."""
