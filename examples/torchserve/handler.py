"""A TorchServe handler that compiles its model with the arguments of ``pt2: {compile: ...}`` in ``model-config.yaml``.

TorchServe 0.12 itself compiles with backends of a fixed list only; for others it logs "... is not a supported backend" and does
not compile.
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
    """Takes rows of numbers, ``{"data": [...]}``, and returns the model's results and the counts of OpenVINO so far."""

    def initialize(self, context: Any) -> None:
        """Load the model as TorchServe does, and compile it."""
        super().initialize(context)
        arguments = dict(self.model_yaml_config["pt2"]["compile"])
        if arguments.pop("enable", True):  # TorchServe removes it if it is true
            self.model = torch.compile(self.model, **arguments)
            log.info("torch.compile: %s", arguments)

    def preprocess(self, data: list[dict[str, Any]]) -> torch.Tensor:
        """The requests of one batch as a tensor, f32 [requests, numbers]."""
        bodies = [request.get("body") or request.get("data") for request in data]
        parsed = [json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body for body in bodies]
        return torch.tensor([body["data"] for body in parsed], dtype=torch.float32, device=self.device)

    def postprocess(self, data: torch.Tensor) -> list[dict[str, Any]]:
        """One response for each request."""
        graphs = ov_backend.stats().values()
        counts = {"calls": sum(g["calls"] for g in graphs), "fallbacks": [reason for g in graphs for reason in g["fallbacks"]]}
        return [{"answer": row.tolist(), "openvino": counts} for row in data]
