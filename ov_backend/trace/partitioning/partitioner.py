"""Which operators OpenVINO computes, which stay in PyTorch, and the graph split accordingly.

The converter itself says which operators it can convert (:mod:`ov_backend.model.conversion`). This module knows which operators
must stay in PyTorch all the same: those that the user disabled, those that draw random numbers, and those with dtypes and shapes
that OpenVINO would compute differently.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ov_backend.core.fx_utils import is_getitem, is_random, operators, output_node, placeholders, storage_of, values_read
from ov_backend.core.settings import Settings, operator_name
from ov_backend.core.tensors import COMPUTED, FROM_NAME, kind_of
from ov_backend.trace.partitioning import exact_integers, half_rounding, known_wrong
from ov_backend.trace.partitioning.int64_range import too_large
from ov_backend.trace.partitioning.strides import check_memory

log = logging.getLogger(__name__)

#: Prefix of the names that torch gives to partitions; torch 2.1 offers no way to choose it.
PREFIX = "fused_"
#: Of the operators that the converter is asked for: PyTorch's, and those that a trace keeps whole.
_NAMESPACES = frozenset({"aten", "ov_backend"})
VIEW = "hands out a view of a tensor that is handed out too"


@dataclass(frozen=True)
class Coverage:
    """How much of a graph runs in OpenVINO; by operator, how many stay in PyTorch, and why."""

    total: int
    in_pytorch: Mapping[str, int]
    reasons: Mapping[str, str]

    @property
    def percent(self) -> float:
        """Share of the operators that run in OpenVINO, 0 to 100."""
        return 100.0 if not self.total else 100.0 * (1 - sum(self.in_pytorch.values()) / self.total)


def unsupported(gm: GraphModule, settings: Settings) -> dict[Node, str]:
    """The operators that must stay in PyTorch, each with the reason in words."""
    _name_unknown(settings.disabled_ops)
    views, inexact = aliased_outputs(gm), inexact_values(gm, settings)
    reasons = {node: reason(node, settings) or inexact.get(node, "") or (VIEW if node in views else "") for node in operators(gm)}
    return {node: why for node, why in {**reasons, **returned_constants(gm)}.items() if why}


def inexact_values(gm: GraphModule, settings: Settings) -> dict[Node, str]:
    """The operators whose numbers OpenVINO would cut off, or round otherwise, each with the reason in words."""
    truncate = settings.truncate_long_and_double
    integers = exact_integers.inexact(gm, settings.wide_integers and not truncate)
    return {**half_rounding.undecided(gm), **integers, **({} if truncate else too_large(gm, settings.wide_integers))}


def returned_constants(gm: GraphModule) -> dict[Node, str]:
    """Results that are constants; OpenVINO would cut off those of 64 bits."""
    constants = [node for node in output_node(gm).all_input_nodes if node.op == "get_attr"]
    return dict.fromkeys(constants, "it is a constant that is returned")


@functools.lru_cache(maxsize=64)
def _name_unknown(disabled: tuple[str, ...]) -> None:
    """Say once which disabled operators PyTorch does not have: they may be misspelt, and keep nothing in PyTorch."""
    for name in disabled:
        namespace, _, rest = name.partition(".")
        packet, _, overload = rest.partition(".")
        operator = getattr(torch.ops.aten, packet, None)
        known = isinstance(operator, torch._ops.OpOverloadPacket) and (not overload or overload in operator.overloads())
        if namespace == "aten" and not known:
            log.warning("disabled_ops holds %s, which this PyTorch does not have; nothing stays in PyTorch for it.", name)


def aliased_outputs(gm: GraphModule) -> set[Node]:
    """The views through which a result shares memory with another result, or with an input."""
    results = list(dict.fromkeys(output_node(gm).all_input_nodes))
    owners = Counter(filter(None, (storage_of(n) for n in [*results, *placeholders(gm)])))
    views: set[Node] = set()
    for result in results:
        node = result
        while node.op == "call_function" and owners.get(storage_of(node), 0) > 1 and node not in views:
            source = next((n for n in node.all_input_nodes if storage_of(n) == storage_of(node)), None)
            if source is None:
                break
            views.add(node)
            node = source
    return views


def reason(node: Node, settings: Settings) -> str:
    """Why one operator must stay in PyTorch whatever surrounds it, or ""."""
    name = operator_name(node.target)
    if name in settings.disabled_ops or name.rpartition(".")[0] in settings.disabled_ops:
        return "disabled by the option disabled_ops"
    if not isinstance(node.target, torch._ops.OpOverload) or not (
        node.target.namespace in _NAMESPACES or name in known_wrong.QUANTIZERS
    ):
        return "not an ATen operator"
    if not node.target._schema.returns:
        return "computes nothing, it raises where an earlier result is not valid"
    if is_random(node.target, node.args, node.kwargs):
        return "draws random numbers, which must be PyTorch's own"
    why = known_wrong.reason(node)
    if why:
        return why
    computed = {*COMPUTED, torch.float64} if settings.truncate_long_and_double else COMPUTED
    for value in _values(node):
        if kind_of(value) not in FROM_NAME:
            return f"computes in {kind_of(value)}, which OpenVINO does not have"
        if value.dtype not in computed:
            return f"computes in {kind_of(value)}, which OpenVINO would round to less"
        if value.numel() == 0:
            return "handles an empty tensor"
    return ""


def _values(node: Node) -> Iterable[torch.Tensor]:
    for source in (node, *node.all_input_nodes):
        yield from values_read(source)


def coverage(gm: GraphModule, in_pytorch: Mapping[Node, str]) -> Coverage:
    """Count the operators of ``gm`` that stay in PyTorch."""
    left = {node: why for node, why in in_pytorch.items() if node.op == "call_function"}  # constants are no operators
    names = Counter(operator_name(node.target) for node in left)
    return Coverage(len(operators(gm)), dict(names), {operator_name(node.target): why for node, why in left.items()})


@dataclass(frozen=True)
class Split:
    """A graph whose supported operators are moved into submodules (``parts``); PyTorch runs everything else in ``outer``.

    ``too_small`` names the nodes that stay in PyTorch because their partition has too few operators.
    """

    outer: GraphModule
    parts: tuple[str, ...]
    too_small: frozenset[str]


@dataclass(frozen=True)
class Part:
    """One submodule of a split graph, with the names of its weights, which are its first placeholders, and of its other
    inputs.
    """

    gm: GraphModule
    slots: tuple[str, ...]
    inputs: tuple[str, ...]


def run_after(value: Any, earlier: Any) -> Any:
    """``value``; as a node of a graph it makes its users wait for ``earlier``."""
    return value


def split(gm: GraphModule, in_pytorch: Mapping[Node, str], smallest: float = 1) -> Split:
    """Move the supported operators into submodules; ``gm`` is changed.

    Partitions without any operator (constants only), or with fewer than ``smallest`` operators, stay in PyTorch.

    Raises:
        ConversionError: an operator reads more memory than OpenVINO's results have.
    """
    _keep_drawing_order(gm)
    partitioner = CapabilityBasedPartitioner(gm, _Supported(in_pytorch), allows_single_node_partition=True)
    computing = set(operators(gm))
    proposed = [(p, [n for n in p.nodes if n in computing]) for p in partitioner.propose_partitions()]
    partitions = [p for p, nodes in proposed if len(nodes) >= max(1, smallest)]
    too_small = frozenset(n.name for _, nodes in proposed if len(nodes) < smallest for n in nodes)
    before = set(dict(gm.named_children()))
    outer = partitioner.fuse_partitions(partitions) if partitions else gm
    _drop_drawing_order(outer)
    check_memory(outer)
    _give_numbers(outer)
    outer.recompile()
    parts = tuple(name for name, _ in outer.named_children() if name not in before and name.startswith(PREFIX))
    return Split(outer, parts, too_small)


def part_of(outer: GraphModule, call: Node, slot_names: Mapping[Node, str]) -> Part:
    """One submodule as a graph of its own, with the weights that ``slot_names`` names as its first placeholders."""
    submodule = outer.get_submodule(str(call.target))
    pairs = list(zip(placeholders(submodule), call.args))
    for inner, given in pairs:
        inner.meta.setdefault("val", given.meta.get("val"))
    slots = [(inner, slot_names[given]) for inner, given in pairs if given in slot_names]
    inputs = [(inner, inner.name) for inner, argument in pairs if argument not in slot_names]
    graph, copies = Graph(), dict[Node, Node]()
    for inner, _ in [*slots, *inputs]:
        copies[inner] = graph.placeholder(inner.name)
        copies[inner].meta = dict(inner.meta)
    for node in submodule.graph.nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            copies[node].meta = dict(node.meta)
    graph.output(torch.fx.node.map_arg(output_node(submodule).args[0], lambda n: copies[n]))
    return Part(GraphModule(submodule, graph), tuple(name for _, name in slots), tuple(name for _, name in inputs))


def _keep_drawing_order(gm: GraphModule) -> None:
    """Make every operator that draws random numbers wait for the one before it."""
    drawing = [n for n in operators(gm) if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]
    for earlier, node in itertools.pairwise(drawing):
        value, *rest = node.args
        with gm.graph.inserting_before(node):
            node.args = (gm.graph.call_function(run_after, (value, earlier)), *rest)


def _drop_drawing_order(gm: GraphModule) -> None:
    """Undo :func:`_keep_drawing_order`."""
    for node in list(gm.graph.nodes):
        if node.target is run_after:
            value = node.args[0]
            for user in list(node.users):
                user.args = tuple(value if argument is node else argument for argument in user.args)
            gm.graph.erase_node(node)


def _give_numbers(outer: GraphModule) -> None:
    """Let PyTorch's operators take Python numbers where their schema has no tensor: numbers of a call are tensors in a graph."""

    def number_of(source: Node) -> Node:
        if not isinstance(source.meta.get("val"), torch.Tensor):
            return source
        with outer.graph.inserting_before(node):
            return outer.graph.call_method("item", (source,))

    for node in [each for each in outer.graph.nodes if isinstance(each.target, torch._ops.OpOverload)]:
        types = [(each.name, str(each.type)) for each in node.target._schema.arguments]
        numbers = {name for name, kind in types if "Tensor" not in kind}
        node.args = tuple(
            torch.fx.node.map_arg(value, number_of) if name in numbers else value for (name, _), value in zip(types, node.args)
        )
        node.kwargs = {
            name: torch.fx.node.map_arg(value, number_of) if name in numbers else value for name, value in node.kwargs.items()
        }


class _Supported(OperatorSupportBase):
    def __init__(self, in_pytorch: Mapping[Node, str]) -> None:
        self._names = {node.name for node in in_pytorch}

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        if node.op == "get_attr":  # what PyTorch reads is not to pass through OpenVINO, which has fewer bits
            return all(self.is_node_supported(submodules, user) for user in node.users)
        if is_getitem(node):
            return node.all_input_nodes[0].name not in self._names
        return node.op == "call_function" and node.target is not run_after and node.name not in self._names
