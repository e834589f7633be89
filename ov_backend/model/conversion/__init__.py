"""A lowered ATen graph becomes an OpenVINO model without weights."""

from ov_backend.core.telemetry import import_frontends  # it comes before OpenVINO

import_frontends()
