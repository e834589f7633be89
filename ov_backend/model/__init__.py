"""A graph becomes a weightless OpenVINO model, which is rewritten for the device, bound to weights and compiled."""
