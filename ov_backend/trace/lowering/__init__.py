"""Lowering: small passes over a captured ATen graph, each ``(gm) -> gm`` in a file of its own, run in the order of ``PASSES``."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import GraphModule

from ov_backend.trace.lowering.passes.drop_empty_operands import drop_empty_operands
from ov_backend.trace.lowering.passes.float_ranges import float_ranges
from ov_backend.trace.lowering.passes.remove_dead_code import remove_dead_code
from ov_backend.trace.lowering.passes.remove_identities import remove_identities
from ov_backend.trace.lowering.passes.separate_softmaxes import separate_softmaxes
from ov_backend.trace.lowering.passes.squeeze_scalars import squeeze_scalars
from ov_backend.trace.lowering.passes.unify_attention import unify_attention
from ov_backend.trace.lowering.passes.widen_group_norm import widen_group_norm
from ov_backend.trace.lowering.passes.zero_masked_rows import zero_masked_rows

Pass = Callable[[GraphModule], GraphModule]

PASSES: tuple[Pass, ...] = (
    remove_dead_code,
    remove_identities,
    drop_empty_operands,
    float_ranges,
    squeeze_scalars,
    separate_softmaxes,
    unify_attention,
    zero_masked_rows,
    widen_group_norm,
    remove_dead_code,
)


def lower(gm: GraphModule) -> GraphModule:
    """Run all passes in order, then check the graph."""
    for run_pass in PASSES:
        gm = run_pass(gm)
    gm.graph.lint()
    gm.recompile()
    return gm
