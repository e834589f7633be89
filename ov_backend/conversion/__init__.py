"""A lowered ATen graph becomes an OpenVINO model without weights."""
