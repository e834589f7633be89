"""Which operators run in OpenVINO and which stay in PyTorch."""
