"""Partition: which operators OpenVINO computes and which stay in PyTorch, and the coverage that results.

What the converter can do is asked of the converter itself (see :mod:`ov_backend.conversion.converter`); here is only what must
stay in PyTorch whatever the converter says: operators the user disabled, random numbers, dtypes and shapes that
OpenVINO would compute differently.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from ov_backend.partitioning.known_wrong import withdrawn
from ov_backend.tensors import COMPUTED
from ov_backend.fx_utils import used
from ov_backend.partitioning.int64_range import too_large
from ov_backend.settings import Settings, operator_name

#: How torch names the submodules it gathers; torch 2.1 has no way to choose it.
PREFIX = "fused_"
VIEW = "hands out a view of a tensor that is handed out too"
_AFTER = "_after"
#: Of PT2E quantization; OpenVINO makes of each pair, and of the operators between them, arithmetic in int8.
QUANTIZERS = frozenset(
    f"quantized_decomposed.{what}quantize_per_{each}.default" for what in ("", "de") for each in ("tensor", "channel")
)


@dataclass(frozen=True)
class Coverage:
    """How much of a graph runs in OpenVINO.

    Attributes:
        total: operators in the graph.
        in_pytorch: operators that stay in PyTorch, each with its count.
        reasons: why, by operator.
    """

    total: int
    in_pytorch: Mapping[str, int]
    reasons: Mapping[str, str]

    @property
    def percent(self) -> float:
        """Share of the operators that run in OpenVINO, 0 to 100."""
        return 100.0 if not self.total else 100.0 * (1 - sum(self.in_pytorch.values()) / self.total)


def operators(gm: GraphModule) -> list[Node]:
    """The nodes of a graph that compute something."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and getattr(n.target, "__name__", "") != "getitem"]


def excluded(gm: GraphModule, settings: Settings) -> dict[Node, str]:
    """The operators that must stay in PyTorch, each with the reason in words."""
    views = handed_out(gm)
    large = {} if settings.truncate_long_and_double else too_large(gm, settings.wide_integers)
    found = {}
    for node in operators(gm):
        why = reason(node, settings) or large.get(node, "") or (VIEW if node in views else "")
        if why:
            found[node] = why
    return found


def handed_out(gm: GraphModule) -> set[Node]:
    """The views through which one result shares memory with another, or with an input, as it does in PyTorch."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    results = list(dict.fromkeys(output.all_input_nodes))
    owners = Counter(filter(None, (_storage(n) for n in [*results, *(n for n in gm.graph.nodes if n.op == "placeholder")])))
    views: set[Node] = set()
    for result in results:
        node = result
        while node.op == "call_function" and owners.get(_storage(node), 0) > 1 and node not in views:
            source = next((n for n in node.all_input_nodes if _storage(n) == _storage(node)), None)
            if source is None:
                break
            views.add(node)
            node = source
    return views


def _storage(node: Node) -> int:
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return 0
    return int(value.untyped_storage()._cdata)


def reason(node: Node, settings: Settings) -> str:
    """Why one operator must stay in PyTorch, judged by itself, or ""."""
    name = operator_name(node.target)
    if name in settings.disabled_ops or name.rpartition(".")[0] in settings.disabled_ops:
        return "disabled by the option disabled_ops"
    if not isinstance(node.target, torch._ops.OpOverload) or not (node.target.namespace == "aten" or name in QUANTIZERS):
        return "not an ATen operator"
    if torch.Tag.nondeterministic_seeded in node.target.tags and not _drops_nothing(node):
        return "draws random numbers, which must be PyTorch's own"
    wrong = withdrawn(node, name)
    if wrong:
        return wrong
    computed = {*COMPUTED, torch.float64} if settings.truncate_long_and_double else COMPUTED
    for value in _values(node):
        if value.dtype.is_complex:
            return f"computes in {str(value.dtype).removeprefix('torch.')}, which OpenVINO does not have"
        if value.dtype not in computed:
            return f"computes in {str(value.dtype).removeprefix('torch.')}, which OpenVINO would round to less"
        if value.numel() == 0:
            return "handles an empty tensor"
    return ""


def _drops_nothing(node: Node) -> bool:
    """Attention and dropout are tagged as random although with a probability of 0 they draw nothing."""
    names = [argument.name for argument in node.target._schema.arguments]
    for probability in ("dropout_p", "p"):
        if probability in names:
            position = names.index(probability)
            return bool((node.args[position] if position < len(node.args) else node.kwargs.get(probability, 0.0)) == 0.0)
    return False


def _values(node: Node) -> Iterable[torch.Tensor]:
    for each in (node, *node.all_input_nodes):
        yield from used(each)


def coverage(gm: GraphModule, in_pytorch: Mapping[Node, str]) -> Coverage:
    """Sum up which operators of ``gm`` stay in PyTorch, and why."""
    names = Counter(operator_name(node.target) for node in in_pytorch)
    return Coverage(len(operators(gm)), dict(names), {operator_name(n.target): why for n, why in in_pytorch.items()})


def _in_drawing_order(gm: GraphModule) -> list[Node]:
    """Make every operator that draws random numbers wait for the one before it; undone by :func:`_free`."""
    drawing = [n for n in operators(gm) if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]
    for before, node in itertools.pairwise(drawing):
        node.kwargs = {**node.kwargs, _AFTER: before}
    return drawing


def _free(gm: GraphModule) -> None:
    for node in gm.graph.nodes:
        if _AFTER in node.kwargs:
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != _AFTER}


class _Supported(OperatorSupportBase):
    def __init__(self, in_pytorch: Mapping[Node, str]) -> None:
        self._names = {node.name for node in in_pytorch}

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        if node.op == "get_attr":
            return True
        if getattr(node.target, "__name__", "") == "getitem":
            return node.all_input_nodes[0].name not in self._names
        return node.op == "call_function" and node.name not in self._names


def split(
    gm: GraphModule, in_pytorch: Mapping[Node, str], smallest: float = 1
) -> tuple[GraphModule, list[str], set[str]]:
    """Gather the supported operators into submodules.

    Groups without any operator (constants only) stay where they are, and so do those of fewer than ``smallest``.

    Returns:
        The outer graph, the submodules' names, and the names of the nodes left out for being in too small a group.
    """
    _in_drawing_order(gm)
    partitioner = CapabilityBasedPartitioner(gm, _Supported(in_pytorch), allows_single_node_partition=True)
    proposed = [(p, [n for n in p.nodes if n in set(operators(gm))]) for p in partitioner.propose_partitions()]
    groups = [p for p, computing in proposed if len(computing) >= max(1, smallest)]
    small = {n.name for _, computing in proposed if len(computing) < smallest for n in computing}
    before = set(dict(gm.named_children()))
    outer = partitioner.fuse_partitions(groups) if groups else gm
    _free(outer)
    outer.recompile()
    return outer, [name for name, _ in outer.named_children() if name not in before and name.startswith(PREFIX)], small
