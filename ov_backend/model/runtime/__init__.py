"""Binds weights to a model, compiles it, and runs it."""

import ov_backend.core.telemetry  # noqa: F401  # before OpenVINO
