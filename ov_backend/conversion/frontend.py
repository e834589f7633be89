"""OpenVINO's PyTorch frontend, and what it reads FX graphs through.

Its decoder looks every operand's place up in a list, node by node: a fifth of a UNet's conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, SupportsIndex

from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch.fx import GraphModule, Node


@lru_cache(maxsize=1)
def frontend() -> Any:
    """The frontend, loaded once."""
    return FrontEndManager().load_by_framework("pytorch")


def decoder(gm: GraphModule) -> TorchFXPythonDecoder:
    """What the frontend reads a graph through; it must stay alive until the conversion returns."""
    made = TorchFXPythonDecoder(gm)
    made._input_signature = [node.target for node in gm.graph.nodes if node.op == "placeholder"]  # else of the code
    if isinstance(getattr(made, "_nodes", None), list):
        made._nodes = _Places(made._nodes)
    return made


class _Places(list[Node]):
    """A list of different nodes that knows where each is."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self._places = {node: place for place, node in enumerate(self)}

    def index(self, node: Node, start: SupportsIndex = 0, stop: SupportsIndex | None = None, /) -> int:
        """As that of a list, for the whole of it."""
        if node not in self._places:
            raise ValueError(f"{node} is not among the nodes")
        return self._places[node]


def summary(error: Exception) -> str:
    """The part of a conversion error that says what is wrong."""
    text = str(error)
    found = re.search(r"Summary:\s*(.*)", text, re.DOTALL)
    return " ".join((found.group(1) if found else text).split())[:300]
