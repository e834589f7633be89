"""A lowered ATen graph becomes an OpenVINO model without weights."""

from ov_backend.telemetry import import_frontends  # it comes before OpenVINO

import_frontends()
