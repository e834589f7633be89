"""Benchmarks. Each checks its results before it prints a time."""
