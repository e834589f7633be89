"""A Dynamo graph as a function of all its weights and inputs, and as a module that holds the weights.

Since torch 2.5 Dynamo passes parameters and buffers as inputs; before, they are attributes of the graph. Here the attributes
become the first inputs, so that all other code is the same for both.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_map

from ov_backend.engine.network import Network


class DynamoGraph:
    """A Dynamo graph whose attributes are inputs too: ``graph(*graph.full(args))`` returns what ``gm(*args)`` does."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        _inline_calls(gm)
        self._floats, self._float_results = _unwrap_floats(gm), _unwrap_float_results(gm)
        _remove_inactive_dropouts(gm)
        #: Paths of the weights that are attributes of the graph.
        self.attributes = [*(name for name, _ in gm.named_parameters()), *(name for name, _ in gm.named_buffers())]
        self._names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
        #: For each input of ``full``: a tensor's sizes, a number, or None; dynamic sizes are symbols.
        self.shapes = [
            *(tuple(map(int, _attribute(gm, name).shape)) for name in self.attributes),
            *(_shape(example_of(node)) for node in gm.graph.nodes if node.op == "placeholder"),
        ]
        self.returned = _numbers(gm)
        #: Whether it switches gradients on for a part of itself, as with ``torch.enable_grad()``.
        self.enables_gradients = any(
            node.target is torch._C._set_grad_enabled and node.args[:1] == (True,) for node in gm.graph.nodes
        )
        #: Whether ``torch.func`` derives within it; where gradients are on, Dynamo leaves out that it switches them on.
        self._derives = any(getattr(node.target, "__name__", "") == "_grad_increment_nesting" for node in gm.graph.nodes)

    @property
    def placeholders(self) -> int:
        """How many inputs Dynamo's graph has."""
        return len(self._names)

    def places(self) -> dict[Any, tuple[int, int]]:
        """Where each symbol can be read: index of the argument, and dimension."""
        places: dict[Any, tuple[int, int]] = {}
        for i, shape in enumerate(self.shapes):
            for d, size in enumerate(shape if isinstance(shape, tuple) else ()):
                if getattr(size, "is_symbol", False):
                    places.setdefault(size, (i, d))
        return places

    def full(self, args: Sequence[Any]) -> list[Any]:
        """All inputs: the weights that are attributes of the graph, then the arguments."""
        values = [float(arg) if i in self._floats else arg for i, arg in enumerate(args)]
        return [*(_attribute(self.gm, name) for name in self.attributes), *values]

    def wrapped(self, result: Any) -> Any:
        """What Dynamo expects of a result: each float as a tensor."""
        if not self._float_results:
            return result
        types = self._float_results
        return [torch.tensor(each, dtype=types[i]) if i in types else each for i, each in enumerate(result)]

    def weights(self, full: Sequence[Any]) -> list[int]:
        """Indices of the weights in :meth:`full`."""
        names = [*("_buffers_" for _ in self.attributes), *self._names]
        return [i for i, (name, value) in enumerate(zip(names, full)) if _is_weight(name, value)]

    def __call__(self, *full: Any) -> Any:
        """Run the graph on all of its inputs, see :meth:`full`."""
        return self._run(self.gm, full)

    def traced(self, *full: Any) -> Any:
        """As a call, for a trace: meanwhile other threads find the weights where they stand, and none of the trace's tensors."""
        return self._run(_with_own_tables(self.gm) if self.attributes else self.gm, full)

    def _run(self, module: torch.nn.Module, full: Sequence[Any]) -> Any:
        if self._derives and not torch.is_grad_enabled():
            with torch.enable_grad():
                result = self._run(module, full)
            return tree_map(lambda each: each.detach() if getattr(each, "requires_grad", False) else each, result)
        count = len(self.attributes)
        if not count:
            return module(*full)
        return functional_call(module, dict(zip(self.attributes, full[:count])), tuple(full[count:]))

    def interpreted(self, interpreter: Interpreter, full: Sequence[Any]) -> Any:
        """As :meth:`__call__`, node by node."""
        count = len(self.attributes)
        with _reparametrize_module(self.gm, dict(zip(self.attributes, full[:count]))):
            return interpreter.run(*full[count:])


def _inline_calls(gm: GraphModule) -> None:
    """Let the graph call its regions (``torch.compiler.nested_compile_region``) as modules, whose operators a trace sees."""
    invoke = getattr(torch.ops.higher_order, "invoke_subgraph", None)
    for module in gm.modules():
        for node in list(module.graph.nodes) if isinstance(module, GraphModule) else ():
            if node.target is invoke and isinstance(node.args[0], Node):
                region, _, *operands = node.args
                with module.graph.inserting_before(node):
                    call = module.graph.call_module(region.target, tuple(operands))
                call.meta = dict(node.meta)
                node.replace_all_uses_with(call)
                module.graph.erase_node(node)
                module.recompile()


def _with_own_tables(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module that shares its weights, and whose modules have tables of their own."""
    copies = {each: object.__new__(type(each)) for each in module.modules()}
    for each, copied in copies.items():
        children = {name: child and copies[child] for name, child in each._modules.items()}
        tables = {"_parameters": dict(each._parameters), "_buffers": dict(each._buffers), "_modules": children}
        vars(copied).update({**vars(each), **tables})
    return copies[module]


def _is_weight(name: str, value: Any) -> bool:
    return isinstance(value, torch.nn.Parameter) or (isinstance(value, torch.Tensor) and "_buffers_" in name)


def _attribute(gm: GraphModule, path: str) -> torch.Tensor:
    owner, _, name = path.rpartition(".")
    module = gm.get_submodule(owner)
    tensor: torch.Tensor = getattr(module, name)
    return tensor


def _unwrap_floats(gm: GraphModule) -> set[int]:
    """Indices of the arguments that are Python floats.

    From a float's second value on Dynamo passes it as a tensor, and the graph calls ``item`` on it; these calls are removed.
    """
    floats: set[int] = set()
    for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) and all(_is_item(user) for user in node.users):
            floats.add(i)
            for user in list(node.users):
                node.meta["example_value"] = example_of(user)
                user.replace_all_uses_with(node)
                gm.graph.erase_node(user)
    if floats:
        gm.recompile()
    return floats


def _unwrap_float_results(gm: GraphModule) -> dict[int, torch.dtype]:
    """Let a graph return floats for which it makes tensors at its end; the types of these tensors by the results' indices."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    results, types = list(output.args[0]) if isinstance(output.args[0], (tuple, list)) else [], dict[int, torch.dtype]()
    for i, node in enumerate(list(results)):
        made = isinstance(node, Node) and node.target is torch.scalar_tensor and isinstance(node.args[0], Node)
        if made and isinstance(example_of(node.args[0]), torch.SymFloat):
            results[i], types[i] = node.args[0], node.kwargs.get("dtype", torch.get_default_dtype())
    if types:
        output.args = (tuple(results),)
        gm.recompile()
    return types


def _is_item(node: Node) -> bool:
    return node.op == "call_method" and node.target == "item"


def _remove_inactive_dropouts(gm: GraphModule) -> None:
    """A dropout that drops nothing returns its argument itself; AOTAutograd makes a copy, and loses what is written into it."""
    inactive = [node for node in gm.graph.nodes if _drops_nothing(gm, node)]
    for node in inactive:
        node.replace_all_uses_with(node.all_input_nodes[0])
        gm.graph.erase_node(node)
    if inactive:
        gm.recompile()


def _drops_nothing(gm: GraphModule, node: Node) -> bool:
    if node.op == "call_module":
        module = gm.get_submodule(str(node.target))
        return type(module) is torch.nn.Dropout and not (module.training and module.p)
    if node.op != "call_function" or node.target not in (torch.dropout, torch.nn.functional.dropout):
        return False
    given = {**dict(zip(("input", "p", "training"), node.args)), **node.kwargs}
    return not (given.get("training", given.get("train", True)) and given.get("p", 0.5))


def example_of(node: Node) -> Any:
    """Dynamo's example of a value; torch 2.1 stores that of a size in another place."""
    if "example_value" in node.meta:
        return node.meta["example_value"]
    return getattr(node.meta.get("grapharg"), "_example", None)


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(map(_shape, value.shape))
    if isinstance(value, torch.SymFloat):
        return value.node.expr
    if isinstance(value, torch.SymInt):
        constant_size = value.node.maybe_as_int()
        return value.node.expr if constant_size is None else int(constant_size)
    return value if isinstance(value, int) else None


def _numbers(gm: GraphModule) -> dict[int, Any]:
    """The results that are no tensors, by their indices."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else [output.args[0]]
    values = [example_of(value) if isinstance(value, Node) else value for value in results]
    return {i: value for i, value in enumerate(values) if not isinstance(value, torch.Tensor)}


class WeightHolder(torch.nn.Module):
    """A module that holds the weights among a function's arguments; its forward takes the other arguments."""

    def __init__(self, function: Any, weights: Sequence[int], count: int) -> None:
        super().__init__()
        self._function = (function,)  # in a tuple, so that a module is not registered and its weights are not listed twice
        self._weights = {i: f"weight_{i}" for i in weights}
        self._count = count
        self._lock = threading.RLock()

    def answer(self, network: Network, full: Sequence[Any]) -> Any:
        """``network``'s result for a call with all arguments; threads take turns, since each brings weights of its own.

        Afterwards no weight is held, so that they are freed with their model. While a compile goes on after an interruption they
        are, for it goes on with them.
        """
        with self._lock:
            try:
                return network(*self.hold(full))
            finally:
                if not network.is_compiling:
                    self._release()

    def _release(self) -> None:
        self._buffers.update(dict.fromkeys(self._weights.values()))

    def hold(self, full: Sequence[Any]) -> list[Any]:
        """Hold the weights among a call's arguments; returns the other arguments."""
        for i, name in self._weights.items():
            self._buffers[name] = full[i]
        return [arg for i, arg in enumerate(full) if i not in self._weights]

    def join(self, inputs: Sequence[Any]) -> list[Any]:
        """All arguments: ``inputs``, and the weights that are held."""
        rest = iter(inputs)
        return [self._buffers[self._weights[i]] if i in self._weights else next(rest) for i in range(self._count)]

    def forward(self, *inputs: Any) -> Any:
        """The function's result with the weights that are held."""
        return self._function[0](*self.join(inputs))
