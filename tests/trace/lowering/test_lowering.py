"""All passes together: their order, and the state in which they leave a graph."""

from __future__ import annotations

import torch

from ov_backend.trace.lowering import PASSES, lower
from tests.helpers.graphs import assert_close, names, run_eagerly, traced


def test_every_pass_is_run_on_the_result_of_the_one_before() -> None:
    q = torch.randn(1, 2, 4, 8)

    def f(q: torch.Tensor) -> torch.Tensor:
        attention = torch.nn.functional.scaled_dot_product_attention(q.detach(), q, q)
        return torch.ops.aten.view.default(attention.sum().reshape(1), [])

    gm = traced(f, q)
    lowered = lower(gm)
    assert "aten.detach.default" not in names(lowered)
    assert not any("flash" in name for name in names(lowered))
    assert names(lowered)[-1] == "aten.squeeze.dims"
    assert_close(run_eagerly(lowered, q), [f(q)])


def test_a_second_lowering_changes_nothing() -> None:
    x = torch.randn(1, 4, 3, 3).to(torch.bfloat16)
    gm = lower(traced(lambda x: torch.nn.functional.group_norm(x.detach(), 2), x))
    assert names(lower(gm)) == names(gm)


def test_what_computes_nothing_is_removed_first() -> None:
    assert [each.__name__ for each in PASSES[:2]] == ["remove_dead_code", "remove_identities"]
