"""A Dynamo graph as a function of everything it depends on, and as a module whose weights are known as such.

Since torch 2.5 Dynamo passes parameters and buffers as inputs; before, they are attributes of the graph. Here the
attributes come first among the inputs, so that nothing after this file has to know which torch it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.fx import GraphModule, Node


class DynamoGraph:
    """``graph(*graph.full(args))`` is what ``gm(*args)`` is."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self._floats = _unwrap_floats(gm)
        self._attributes = [*(name for name, _ in gm.named_parameters()), *(name for name, _ in gm.named_buffers())]
        self._names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        #: For everything the graph depends on: a tensor's sizes, a number, or None; symbols where Dynamo has them.
        self.shapes = [
            *(tuple(map(int, _attribute(gm, name).shape)) for name in self._attributes),
            *(_shape(_example(node)) for node in gm.graph.nodes if node.op == "placeholder"),
        ]
        self.returned = _numbers(gm)

    @property
    def placeholders(self) -> int:
        """How many inputs Dynamo's graph has."""
        return len(self._names)

    def places(self) -> dict[Any, tuple[int, int]]:
        """Where each symbol is to be read: which argument, which dimension."""
        found: dict[Any, tuple[int, int]] = {}
        for i, shape in enumerate(self.shapes):
            for d, size in enumerate(shape if isinstance(shape, tuple) else ()):
                if getattr(size, "is_symbol", False):
                    found.setdefault(size, (i, d))
        return found

    def full(self, args: Sequence[Any]) -> list[Any]:
        """The weights that are attributes, then the arguments."""
        given = [float(arg) if i in self._floats else arg for i, arg in enumerate(args)]
        return [*(_attribute(self.gm, name) for name in self._attributes), *given]

    def weights(self, full: Sequence[Any]) -> list[int]:
        """Which of :meth:`full` are weights."""
        names = [*("_buffers_" for _ in self._attributes), *self._names]
        return [i for i, (name, value) in enumerate(zip(names, full)) if _is_weight(name, value)]

    def __call__(self, *full: Any) -> Any:
        """What the graph computes, of everything it depends on."""
        count = len(self._attributes)
        if not count:
            return self.gm(*full)
        return functional_call(self.gm, dict(zip(self._attributes, full[:count])), tuple(full[count:]))


def _is_weight(name: str, value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or (isinstance(value, torch.Tensor) and "_buffers_" in name)


def _attribute(gm: GraphModule, path: str) -> torch.Tensor:
    owner, _, name = path.rpartition(".")
    module = gm.get_submodule(owner)
    found: torch.Tensor = getattr(module, name)
    return found


def _unwrap_floats(gm: GraphModule) -> set[int]:
    """Which arguments are Python floats: with dynamic shapes Dynamo hands them over as tensors, and takes them out again."""
    found: set[int] = set()
    for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) and all(_is_item(user) for user in node.users):
            found.add(i)
            for user in list(node.users):
                user.replace_all_uses_with(node)
                gm.graph.erase_node(user)
    if found:
        gm.recompile()
    return found


def _is_item(node: Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _example(node: Node) -> Any:
    """What Dynamo noted of a value; for sizes torch 2.1 keeps it in another place."""
    if "example_value" in node.meta:
        return node.meta["example_value"]
    return getattr(node.meta.get("grapharg"), "_example", None)


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(map(_shape, value.shape))
    if isinstance(value, torch.SymInt):
        known = value.node.maybe_as_int()
        return value.node.expr if known is None else int(known)
    return value if isinstance(value, int) else None


def _numbers(gm: GraphModule) -> dict[int, Any]:
    """The results that are no tensors, by their places."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    values = [_example(value) if isinstance(value, Node) else value for value in results]
    return {i: _shape(value) for i, value in enumerate(values) if not isinstance(value, torch.Tensor)}


class WeightHolder(torch.nn.Module):
    """A function and the weights among its arguments, as a module: its forward takes the other arguments only."""

    def __init__(self, function: Any, weights: Sequence[int], count: int) -> None:
        super().__init__()
        self._function = (function,)  # in a tuple, so that a module's own weights are not found a second time
        self._weights = {i: f"weight_{i}" for i in weights}
        self._count = count

    def hold(self, full: Sequence[Any]) -> list[Any]:
        """Take the weights out of a call's arguments; the rest is returned."""
        for i, name in self._weights.items():
            self._buffers[name] = full[i]
        return [arg for i, arg in enumerate(full) if i not in self._weights]

    def join(self, inputs: Sequence[Any]) -> list[Any]:
        """All arguments: the weights last held, and these in between."""
        rest = iter(inputs)
        return [self._buffers[self._weights[i]] if i in self._weights else next(rest) for i in range(self._count)]

    def forward(self, *inputs: Any) -> Any:
        """The function's result, the weights being those last held."""
        return self._function[0](*self.join(inputs))
