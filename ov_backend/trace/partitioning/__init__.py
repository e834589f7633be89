"""Which operators run in OpenVINO, which stay in PyTorch, and the graph split accordingly."""
