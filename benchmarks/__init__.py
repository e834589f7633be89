"""Benchmarks. Each asserts that its result is right before it prints a time."""
