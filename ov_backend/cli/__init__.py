"""The command line: one file for each command of ``python -m ov_backend``."""
