"""The passes over a graph: each alone, and all together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from ov_backend.trace.lowering import PASSES, lower
from ov_backend.trace.lowering.passes.float_ranges import float_ranges
from ov_backend.trace.lowering.passes.remove_dead_code import remove_dead_code
from ov_backend.trace.lowering.passes.remove_identities import remove_identities
from ov_backend.trace.lowering.passes.squeeze_scalars import squeeze_scalars
from ov_backend.trace.lowering.passes.widen_group_norm import widen_group_norm
from tests.helpers.graphs import assert_close, names, node_of, run_eagerly, run_openvino, traced

aten = torch.ops.aten


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


def test_only_what_has_elements_is_joined() -> None:
    x, empty, whole = torch.randn(2, 3), torch.tensor([]), torch.empty(0, 3, dtype=torch.int64)

    def f(x: torch.Tensor, empty: torch.Tensor, whole: torch.Tensor) -> Any:
        of_floats, of_nothing = torch.cat((x.long(), empty), -1), torch.cat((empty, empty))
        return torch.cat((empty, x), -1), torch.cat((whole, x, whole, x * 2)), of_floats, of_nothing

    gm = lower(traced(f, x, empty, whole))
    joined = [[each.meta["val"].numel() for each in node.args[0]] for node in gm.graph.nodes if node.target is aten.cat.default]
    assert joined == [[6, 0], [0, 0], [6], [6, 6]]
    assert_close(run_eagerly(gm, x, empty, whole), f(x, empty, whole))


RANGES = [(0, 1, 0.25), (2, 0, -0.5), (1, 7, 1.5), (1, 0, -0.25), (0.5, 3), (2.0,), (0, 4, 1.0)]


@pytest.mark.parametrize("numbers", RANGES, ids=str)
def test_ranges_of_floats(numbers: tuple[float, ...]) -> None:
    x = torch.ones(1)
    gm = float_ranges(traced(lambda x: torch.arange(*numbers) * x, x))
    assert_close(run_openvino(gm, x), [torch.arange(*numbers)])


def test_ranges_of_integers_stay() -> None:
    x = torch.ones(1, dtype=torch.int32)
    gm = float_ranges(traced(lambda x: torch.arange(1, 7, 2) * x, x))
    (node,) = (node for node in gm.graph.nodes if "arange" in str(node.target))
    assert node.args == (1, 7, 2)


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("view", [aten.view.default, aten._unsafe_view.default], ids=str)
def test_a_view_as_a_scalar_becomes_a_squeeze(view: torch._ops.OpOverload, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    gm = squeeze_scalars(traced(lambda x: view(x, []) * 2, x))
    assert names(gm) == ["aten.squeeze.dims", "aten.mul.Tensor"]
    gm.recompile()
    assert_close(run_eagerly(gm, x), [x.reshape(()) * 2])


def test_a_product_as_a_scalar_runs_in_openvino() -> None:
    """Without the pass the CPU device crashes on a product that is reshaped to a scalar."""
    x, y = torch.randn(1, 4), torch.randn(4, 1)
    gm = squeeze_scalars(traced(lambda x, y: torch.mm(x, y).view([]) + 1, x, y))
    assert_close(run_openvino(gm, x, y), [torch.mm(x, y).view([]) + 1])


@pytest.mark.parametrize(("x", "shape"), [(torch.tensor(3.0), []), (torch.randn(2, 3), [1, 6])], ids=["scalar", "dimensions"])
def test_another_view_stays(x: torch.Tensor, shape: list[int]) -> None:
    assert names(squeeze_scalars(traced(lambda x: aten.view.default(x, shape), x))) == ["aten.view.default"]


IDENTITIES = {
    "detach": aten.detach.default,
    "alias": aten.alias.default,
    "cast to the same dtype": lambda x: aten._to_copy.default(x, dtype=torch.float32),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_identity_is_removed(name: str) -> None:
    x = torch.randn(2, 3)
    gm = remove_identities(traced(lambda x: IDENTITIES[name](x) * 2, x))
    assert names(gm) == ["aten.mul.Tensor"]
    gm.recompile()
    assert_close(run_eagerly(gm, x), [x * 2])


def test_the_copy_of_a_literal_is_removed() -> None:
    x = torch.randn(2)
    gm = traced(lambda x: x + torch.tensor([1.0, 2.0]), x)
    assert "aten.lift_fresh_copy.default" in names(gm)
    gm = remove_identities(gm)
    assert names(gm) == ["aten.add.Tensor"]
    gm.recompile()
    assert_close(run_eagerly(gm, x), [x + torch.tensor([1.0, 2.0])])


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: aten.alias(aten.detach(aten.alias(x))) + 1, ["aten.add.Tensor"]),
        (lambda x: aten.detach(x * 2), ["aten.mul.Tensor"]),
        (lambda x: x.to(torch.float64) + 1, ["aten._to_copy.default", "aten.add.Tensor"]),
        (lambda x: x.clone() + 1, ["aten.clone.default", "aten.add.Tensor"]),
    ],
    ids=["a chain", "a detached result", "a cast to another dtype", "a copy"],
)
def test_what_is_left_of(function: Callable[[torch.Tensor], torch.Tensor], left: list[str]) -> None:
    assert names(remove_identities(traced(function, torch.randn(2)))) == left


def test_a_result_that_is_detached_is_another_object() -> None:
    x = torch.randn(2)
    gm = remove_identities(traced(lambda x: (aten.detach(x), x + 1), x))
    gm.recompile()
    first, second = run_eagerly(gm, x)
    assert first is not x
    assert first.data_ptr() == x.data_ptr()
    assert torch.equal(second, x + 1)


def test_a_computed_result_and_its_detached_one_are_two_objects() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, aten.detach(y)

    gm = remove_identities(traced(function, torch.randn(2)))
    gm.recompile()
    first, second = run_eagerly(gm, torch.randn(2))
    assert first is not second


def unread_bytes(x: torch.Tensor) -> torch.Tensor:
    torch.empty(0, dtype=torch.uint8)
    (x + 1).exp().sin()
    return x * 2


def unread_numbers(x: torch.Tensor) -> torch.Tensor:
    torch.rand(3).exp()
    torch.bernoulli(x)
    return x * 2


def unread_assertion(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all())
    return x * 2


def unread_write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.zeros(2)


@pytest.mark.parametrize(
    "function, kept",
    [
        (unread_bytes, ["aten.mul.Tensor"]),
        (unread_numbers, ["aten.rand.default", "aten.bernoulli.default", "aten.mul.Tensor"]),
        (unread_assertion, ["aten.gt.Scalar", "aten.all.default", "aten._assert_async.default", "aten.mul.Tensor"]),
        (unread_write, ["aten.add_.Tensor", "aten.zeros.default"]),
    ],
)
def test_only_what_has_no_effect_is_removed(function: Callable[[torch.Tensor], torch.Tensor], kept: list[str]) -> None:
    found = names(remove_dead_code(traced(function, torch.ones(4))))
    assert [name for name in found if name != "aten.detach.default"] == kept


NORM = "aten.native_group_norm.default"


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.group_norm(x, 2, weight, bias)


def widened(function: Callable[..., Any], *tensors: torch.Tensor) -> GraphModule:
    gm = widen_group_norm(traced(function, *tensors))
    gm.graph.eliminate_dead_code()  # of casts of results that are not read
    gm.recompile()
    return gm


def inputs(dtype: torch.dtype) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in (torch.randn(2, 4, 3, 3), torch.randn(4), torch.randn(4))]


def test_bfloat16_is_widened_and_the_result_narrowed() -> None:
    tensors = inputs(torch.bfloat16)
    gm = widened(norm, *tensors)
    assert names(gm) == ["aten._to_copy.default"] * 3 + [NORM, "aten._to_copy.default"]
    node = node_of(gm, NORM)
    assert [argument.meta["val"].dtype for argument in node.args[:3]] == [torch.float32] * 3
    assert node.meta["val"][0].dtype is torch.float32
    (result,) = run_eagerly(gm, *tensors)
    assert result.dtype is torch.bfloat16
    expected = norm(*(tensor.float() for tensor in tensors)).to(torch.bfloat16)
    assert torch.equal(result, expected), "rounded once, at the end"
    assert_close(run_openvino(gm, *tensors), [expected], 1e-2)


def test_no_weight_and_no_bias() -> None:
    x = inputs(torch.bfloat16)[0]
    gm = widened(lambda x: torch.nn.functional.group_norm(x, 2), x)
    assert names(gm).count("aten._to_copy.default") == 2
    assert torch.equal(run_eagerly(gm, x)[0], torch.nn.functional.group_norm(x.float(), 2).to(torch.bfloat16))


def test_a_shared_input_is_cast_once_and_each_result_that_is_read_is_narrowed() -> None:
    x, weight, _ = inputs(torch.bfloat16)

    def f(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.ops.aten.native_group_norm.default(x, weight, weight, 2, 4, 9, 2, 1e-5)

    gm = widened(f, x, weight)
    assert names(gm).count("aten._to_copy.default") == 2 + 3
    assert [result.dtype for result in run_eagerly(gm, x, weight)] == [torch.bfloat16] * 3


def test_other_dtypes_stay() -> None:
    assert names(widened(norm, *inputs(torch.float32))) == [NORM]
