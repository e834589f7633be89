"""When a network computes in 8 bits: calibration runs, recipes and their trials, steps in the own precision."""
