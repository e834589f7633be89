"""Reports on how much of a model runs in OpenVINO."""
