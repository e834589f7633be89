"""Errors, settings, devices, dtypes, patches with their undo, files: every package may import these."""
