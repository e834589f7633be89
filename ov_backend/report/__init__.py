"""How much of a model runs in OpenVINO."""
