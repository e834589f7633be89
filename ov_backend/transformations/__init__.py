"""Rewrites of a bound OpenVINO model for the CPU device."""
