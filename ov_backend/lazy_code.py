"""Graph modules that write their Python code when they are called first, and not whenever they are made or changed.

Most graphs here are only read: four times the code of a UNet's some thousand operators took a tenth of its capture.
"""

from __future__ import annotations

import contextlib
from typing import Any

from torch.fx import Graph, GraphModule

try:
    from torch.fx import _lazy_graph_module as lazy
except ImportError:  # torch 2.1 has none: there the code is written each time
    lazy = None


def code_when_called() -> contextlib.AbstractContextManager[Any]:
    """Graph modules that torch makes in this block write their Python code when they are called first."""
    made: contextlib.AbstractContextManager[Any] = lazy._use_lazy_graph_module(True) if lazy else contextlib.nullcontext()
    return made


def graph_module(root: Any, graph: Graph) -> GraphModule:
    """A graph module that writes its Python code when it is called first."""
    return lazy._LazyGraphModule(root, graph) if lazy else GraphModule(root, graph)
