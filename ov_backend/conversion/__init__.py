"""A lowered ATen graph becomes an OpenVINO model without weights."""

import ov_backend.telemetry  # noqa: F401  # before OpenVINO
