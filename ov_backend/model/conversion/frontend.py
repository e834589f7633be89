"""OpenVINO's PyTorch frontend, and the decoder through which it reads FX graphs.

OpenVINO's own decoder searches a list for every operand of every node: that took a fifth of a UNet's conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, SupportsIndex

from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch.fx import GraphModule, Node

from ov_backend.core.errors import cleaned
from ov_backend.model.conversion import recurrent


@lru_cache(maxsize=1)
def pytorch_frontend() -> Any:
    """The frontend, with conversions of our own; it is loaded at the first call."""
    frontend = FrontEndManager().load_by_framework("pytorch")
    for extension in recurrent.extensions():
        frontend.add_extension(extension)
    return frontend


def fx_decoder(gm: GraphModule) -> TorchFXPythonDecoder:
    """The frontend's view of a graph; it must stay alive until the conversion returns."""
    decoder = TorchFXPythonDecoder(gm)
    # the decoder read the signature of forward, which is not the graph's as long as no Python code is generated
    decoder._input_signature = [node.target for node in gm.graph.nodes if node.op == "placeholder"]
    if isinstance(getattr(decoder, "_nodes", None), list):
        decoder._nodes = _IndexedNodes(decoder._nodes)
    return decoder


class _IndexedNodes(list[Node]):
    """A list of different nodes whose ``index`` does not search."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self._positions = {node: position for position, node in enumerate(self)}

    def index(self, node: Node, start: SupportsIndex = 0, stop: SupportsIndex | None = None, /) -> int:
        """As ``list.index`` for the whole list; ``start`` and ``stop`` are ignored."""
        if node not in self._positions:
            raise ValueError(f"{node} is not among the nodes")
        return self._positions[node]


def summary(error: Exception) -> str:
    """The part of a conversion error that says what is wrong, in one line of at most 300 characters."""
    text = str(error)
    match = re.search(r"Summary:\s*(.*)", text, re.DOTALL)
    return cleaned(" ".join((match.group(1) if match else text).split()))[:300]
