"""Small ATen graphs traced from functions of tensors, and their run in OpenVINO, without networks and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ov_backend.core import fx_utils
from ov_backend.core.settings import Settings, operator_name
from ov_backend.model.conversion.converter import convert
from ov_backend.model.runtime.compiled_graph import bind_and_compile

SETTINGS = Settings(device="CPU", precision="f32", model_caching=False, fallback="raise")


def traced(function: Callable[..., Any], *inputs: Any, symbolic: bool = False) -> GraphModule:
    """The ATen graph of one call, with ``meta["val"]``; its placeholders are the inputs."""
    with torch.no_grad():
        if symbolic:
            return make_fx(function, tracing_mode="symbolic")(*inputs)
        mode = FakeTensorMode(allow_non_fake_inputs=True)  # so that a function may hold constants
        fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in inputs]
        with mode:
            return make_fx(function)(*fakes)


def names(gm: GraphModule) -> list[str]:
    """The operators of a graph in order, as ``aten.add.Tensor``."""
    return [operator_name(node.target) for node in fx_utils.operators(gm)]


def node_of(gm: GraphModule, name: str) -> Node:
    """The only node of an operator, given as ``aten.add.Tensor`` or ``aten.add``."""
    (node,) = (n for n in fx_utils.operators(gm) if name in (operator_name(n.target), operator_name(n.target).rpartition(".")[0]))
    return node


def input_names(gm: GraphModule) -> list[str]:
    """A name for every placeholder."""
    return [f"x{i}" for i in range(len(fx_utils.placeholders(gm)))]


def run_openvino(gm: GraphModule, *inputs: torch.Tensor, precision: str = "f32") -> list[torch.Tensor]:
    """Convert the whole graph, compile it for the CPU and run it once."""
    graph = convert(gm, [], input_names(gm))
    return bind_and_compile(graph, {}, SETTINGS.replace(precision=precision))(list(inputs))


def run_eagerly(gm: GraphModule, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The results of the graph in PyTorch, as a flat list."""
    with torch.no_grad():
        return flat(gm(*inputs))


def flat(results: Any) -> list[torch.Tensor]:
    """The results of a function as a list."""
    return list(results) if isinstance(results, (tuple, list)) else [results]


def assert_close(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Same number of results, same dtypes and shapes, values within a tolerance relative to the largest one."""
    assert len(results) == len(expected)
    for result, value in zip(results, expected):
        assert (result.dtype, result.shape) == (value.dtype, value.shape)
        scale = max(1.0, float(value.abs().max())) if value.numel() and value.is_floating_point() else 0.0
        torch.testing.assert_close(result, value, rtol=0, atol=tolerance * scale, equal_nan=True)
