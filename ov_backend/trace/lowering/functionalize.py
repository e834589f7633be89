"""Functionalize writes to a graph's own intermediate results: some of PyTorch's composite operators write to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten

#: In training mode (argument 5) these write to running_mean and running_var (arguments 3 and 4), which their schemas do not say.
BATCH_NORMS = frozenset(
    getattr(_aten, name).default
    for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm", "_batch_norm_impl_index")
    if hasattr(_aten, name)
)


def functionalize_intermediates(gm: GraphModule) -> GraphModule:
    """Replace in-place operators (``add_``) by functional ones (``add``), where no other node shares the memory written to."""
    nodes = list(gm.graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    for node in nodes:
        functional = _functional_variant(node)
        if functional is None or not _shares_no_memory(node, nodes):
            continue
        written = node.args[0]
        assert isinstance(written, Node)
        for user in list(written.users):
            if position[user] > position[node]:
                user.replace_input_with(written, node)
        node.target = functional
    gm.recompile()
    return gm


def _functional_variant(node: Node) -> Any:
    """The operator that computes the same as an in-place one and writes to nothing, or None."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None or not schema.is_mutable:
        return None
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    packet = getattr(_aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(packet, overload, None)


def _shares_no_memory(node: Node, nodes: list[Node]) -> bool:
    """Whether the tensor that a node writes to is an intermediate result of which there is no view."""
    written = node.args[0]
    if not isinstance(written, Node) or written.op != "call_function":
        return False
    storage = _storage(written)
    return storage is not None and {n for n in nodes if _storage(n) == storage} <= {written, node}


def _storage(node: Node) -> int | None:
    value = node.meta.get("val")
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def mutates(node: Node) -> bool:
    """Whether an operator writes to one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return False
    return bool(schema.is_mutable or hidden_writes(node.target, node.args))


def hidden_writes(target: object, args: Sequence[Any]) -> list[Any]:
    """The tensors that an operator writes to although its schema does not say so."""
    if target in BATCH_NORMS and len(args) > 5 and args[5]:
        return [value for value in args[3:5] if value is not None]
    return []
