"""A TorchServe handler whose model is compiled by OpenVINO, as ``pt2: {compile: ...}`` of ``model-config.yaml`` says.

TorchServe 0.12 compiles for backends of its own list only; for others it logs "... is not a supported backend" and goes on
without compiling. So this handler compiles, with everything that the configuration gives.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import torch
from ts.torch_handler.base_handler import BaseHandler

import ov_backend

log = logging.getLogger(__name__)


class Handler(BaseHandler):
    """Takes rows of numbers, ``{"data": [...]}``, and answers with the model's and with what OpenVINO did so far."""

    def initialize(self, context: Any) -> None:
        """Load the model as TorchServe does, and compile it."""
        super().initialize(context)
        given = dict(self.model_yaml_config["pt2"]["compile"])
        if given.pop("enable", True):  # TorchServe takes it out itself where it is true
            self.model = torch.compile(self.model, **given)
            log.info("torch.compile: %s", given)

    def preprocess(self, data: list[dict[str, Any]]) -> torch.Tensor:
        """The requests of one batch as a tensor, f32 [requests, numbers]."""
        bodies = [request.get("body") or request.get("data") for request in data]
        parsed = [json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body for body in bodies]
        return torch.tensor([body["data"] for body in parsed], dtype=torch.float32, device=self.device)

    def postprocess(self, data: torch.Tensor) -> list[dict[str, Any]]:
        """One answer for each request."""
        graphs = ov_backend.stats().values()
        done = {"calls": sum(g["calls"] for g in graphs), "fallbacks": [why for g in graphs for why in g["fallbacks"]]}
        return [{"answer": row.tolist(), "openvino": done} for row in data]
