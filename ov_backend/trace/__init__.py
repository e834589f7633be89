"""A call becomes an ATen graph: captured, lowered, and split into what OpenVINO computes and what stays in PyTorch."""
