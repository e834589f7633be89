"""Each of our decompositions computes what PyTorch's operator computes, eagerly and in OpenVINO."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._decomp import decomposition_table

import ov_backend
from ov_backend.core.errors import SettingsError
from ov_backend.trace.lowering.decompose import decompose
from ov_backend.trace.lowering.decompositions import (
    OPENVINO_DECOMPOSITIONS,
    argmax,
    available,
    decompositions,
    safe_softmax,
    selected,
    var_mean,
    where,
)
from ov_backend.trace.lowering.training_decompositions import (
    convolution_backward,
    max_pool2d_with_indices_backward,
    training_decompositions,
)
from tests.helpers.graphs import assert_close, names, run_openvino, traced

aten = torch.ops.aten
REDUCTIONS: list[dict[str, Any]] = [{}, {"dim": 0}, {"dim": -1, "keepdim": True}, {"keepdim": True}]


def in_openvino(function: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What OpenVINO computes of a function with our decompositions."""
    return run_openvino(decompose(traced(function, *inputs), OPENVINO_DECOMPOSITIONS), *inputs)


INT32 = torch.iinfo(torch.int32)
NUMBERS = torch.tensor([-1e30, -1000.0, -100.0, -88.0, -20.0, -1.0, -0.04, 0.0, 1e-9, 0.04, 0.06, 1.0, 20.0, 1000.0, math.inf])
#: Functions that OpenVINO would compute otherwise of these inputs.
FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "an expanded copy": (lambda x: aten.expand_copy(x, [2, 3, 4]) + 1, torch.randn(3, 1)),
    "only zero is false": (lambda x: x.bool(), torch.tensor([INT32.min, -1, 0, 1, INT32.max], dtype=torch.int32)),
    "integers beyond float16 become infinite": (
        lambda x: x.to(torch.float16).abs().sqrt(),
        torch.tensor([70000, -70000, 65504, 65519, 65520, 3, 0], dtype=torch.int32),
    ),
    "the logarithm of the sigmoid of no number": (F.logsigmoid, torch.tensor([math.nan, math.inf, -math.inf, 1.0])),
    "logarithms of large numbers": (torch.log1p, NUMBERS[7:]),
    "exponentials of large numbers": (torch.expm1, -NUMBERS[7:]),
    "the variance of large numbers that differ little": (
        lambda x: x.var(-1),
        1e4 + torch.randn(4, 16, generator=torch.Generator().manual_seed(0)) * 1e-3,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_pytorch_s(name: str) -> None:
    function, x = FUNCTIONS[name]
    assert_close(in_openvino(function, x), [function(x)])


@pytest.mark.parametrize("keywords", REDUCTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_argmax_of_integers_is_the_first_position(dtype: torch.dtype, keywords: dict[str, Any]) -> None:
    x = torch.tensor([[3, 7, 7, 1], [9, 0, 9, 9], [9, 7, 2, 2]], dtype=dtype)
    expected = torch.argmax(x, **keywords)
    assert_close([argmax(x, **keywords)], [expected])
    gm = decompose(traced(lambda x: torch.argmax(x, **keywords), x), OPENVINO_DECOMPOSITIONS)
    assert "aten.argmax.default" not in names(gm)
    assert_close(run_openvino(gm, x), [expected])


def test_argmax_of_floats_and_scalars_is_not_decomposed() -> None:
    assert argmax(torch.randn(3)) is NotImplemented
    assert argmax(torch.tensor(3)) is NotImplemented


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int32], ids=str)
def test_running_sums_of_narrow_integers_are_exact(dtype: torch.dtype) -> None:
    x = torch.tensor([[200, 100, 255], [200, 1, 7]]).to(dtype)
    assert_close(in_openvino(lambda x: x.cumsum(0), x), [x.cumsum(0)])
    gm = decompose(traced(lambda x: x.cumsum(0, dtype=torch.int32), x), OPENVINO_DECOMPOSITIONS)
    assert gm(x).dtype is torch.int32


def with_infinite_row() -> torch.Tensor:
    x = torch.randn(3, 4)
    x[1], x[2, 0] = -math.inf, -math.inf
    return x


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_safe_softmax_is_zero_where_all_values_are_minus_infinity(dtype: torch.dtype | None) -> None:
    x = with_infinite_row()
    result = safe_softmax(x, -1, dtype)
    assert result.dtype is (dtype or torch.float32)
    assert result[1].tolist() == [0.0] * 4
    assert_close([result[::2]], [torch.softmax(x, -1, dtype=dtype)[::2]])


@pytest.mark.skipif(not hasattr(aten, "_safe_softmax"), reason="the operator came with torch 2.5")
def test_safe_softmax_in_openvino() -> None:
    x = with_infinite_row()
    table = decompositions((), [aten.all.dim])  # OpenVINO has no conversion for all.dim
    gm = decompose(traced(lambda x: aten._safe_softmax(x, -1), x), table)
    assert "aten._safe_softmax.default" not in names(gm)
    assert_close(run_openvino(gm, x), [aten._safe_softmax(x, -1)])


@pytest.mark.parametrize("correction", [0, 1, 2.5, None, 12, 24])
@pytest.mark.parametrize("dim", [None, [0], [-1, 0]], ids=str)
@pytest.mark.parametrize("keepdim", [True, False])
def test_var_mean(dim: list[int] | None, correction: float | None, keepdim: bool) -> None:
    x = torch.randn(2, 3, 4)
    expected = torch.ops.aten.var_mean.correction(x, dim, correction=correction, keepdim=keepdim)
    assert_close(var_mean(x, dim, correction=correction, keepdim=keepdim), expected)


@pytest.mark.parametrize("operator", ["var", "std", "var_mean"])
def test_variances_in_openvino(operator: str) -> None:
    x = torch.randn(2, 3, 4) + 5
    function = getattr(torch, operator)
    gm = decompose(traced(lambda x: function(x, 1, correction=2), x), OPENVINO_DECOMPOSITIONS)
    assert f"aten.{operator}.correction" not in names(gm)
    expected = function(x, 1, correction=2)
    assert_close(run_openvino(gm, x), expected if isinstance(expected, tuple) else [expected])


def test_a_sign_bit_is_a_boolean_beside_what_openvino_computes() -> None:
    module = nn.Linear(4, 4)
    function = lambda y: (y.signbit(), torch.copysign(y, y + 1), torch.copysign(y, -1.5))  # noqa: E731
    module.forward = lambda x: (*function(F.linear(x, module.weight)), x * 2)  # type: ignore[method-assign]
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = module(x)
        with ov_backend.accelerate({"x": module}, ov_backend.Settings(precision="f32", fallback="raise", model_caching=False)):
            assert_close([*module(x)], [*expected])


#: Shape of x, shape of weight, stride, padding, dilation, groups.
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], list[int], list[int], list[int], int]] = [
    ((2, 3, 9), (4, 3, 3), [1], [0], [1], 1),
    ((2, 3, 8, 9), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    ((2, 4, 8, 9), (6, 2, 3, 2), [2, 3], [1, 0], [1, 1], 2),
    ((1, 4, 9, 9), (4, 1, 3, 3), [2, 2], [2, 2], [2, 2], 4),
    ((2, 2, 5, 6, 7), (3, 2, 2, 3, 3), [1, 2, 1], [0, 1, 1], [1, 1, 2], 1),
]


def convolution_arguments(case: tuple[Any, ...], mask: list[bool]) -> list[Any]:
    shape, kernel, stride, padding, dilation, groups = case
    x, weight = torch.randn(shape), torch.randn(kernel)
    out = aten.convolution(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)
    bias = [kernel[0]]
    return [torch.randn_like(out), x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups, mask]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_gradients_of_convolutions(case: tuple[Any, ...]) -> None:
    arguments = convolution_arguments(case, [True, True, True])
    assert_close(convolution_backward(*arguments), aten.convolution_backward(*arguments), 1e-4)


@pytest.mark.parametrize("case", CONVOLUTIONS[1:3], ids=str)
def test_gradients_of_convolutions_in_openvino(case: tuple[Any, ...]) -> None:
    grad, x, weight, *rest = convolution_arguments(case, [True, True, True])
    gm = traced(lambda grad, x, weight: aten.convolution_backward(grad, x, weight, *rest), grad, x, weight)
    gm = decompose(gm, training_decompositions())
    assert "aten.convolution_backward.default" not in names(gm)
    assert_close(run_openvino(gm, grad, x, weight), aten.convolution_backward(grad, x, weight, *rest), 1e-4)


def test_only_the_gradients_of_the_mask_are_computed() -> None:
    arguments = convolution_arguments(CONVOLUTIONS[1], [False, True, False])
    grad_x, grad_weight, grad_bias = convolution_backward(*arguments)
    assert grad_x is None
    assert grad_bias is None
    assert grad_weight is not None
    assert_close([grad_weight], [aten.convolution_backward(*arguments)[1]], 1e-4)


def test_transposed_convolutions_are_not_decomposed() -> None:
    arguments = convolution_arguments(CONVOLUTIONS[1], [True, True, True])
    arguments[7] = True
    assert convolution_backward(*arguments) is NotImplemented


#: Kernel, stride, padding, dilation, ceil_mode.
POOLS: list[tuple[Any, ...]] = [
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([3, 3], [1, 2], [1, 1], [1, 1], False),  # windows overlap: an input is the maximum of several
    ([3, 2], [2, 2], [1, 0], [2, 1], True),
]


@pytest.mark.parametrize("lead", [(2, 3), (3,)], ids=str)
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_gradients_of_max_pooling(pool: tuple[Any, ...], lead: tuple[int, ...]) -> None:
    x = torch.randn(*lead, 9, 8)
    out, indices = aten.max_pool2d_with_indices(x, *pool)
    grad = torch.randn_like(out)
    arguments = (grad, x, *pool, indices)
    expected = aten.max_pool2d_with_indices_backward(*arguments)
    assert_close([max_pool2d_with_indices_backward(*arguments)], [expected])


def test_gradients_of_max_pooling_in_openvino() -> None:
    x = torch.randn(2, 3, 9, 8)
    out, indices = aten.max_pool2d_with_indices(x, *POOLS[1])
    grad = torch.randn_like(out)

    def f(grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return aten.max_pool2d_with_indices_backward(grad, x, *POOLS[1], indices)

    gm = decompose(traced(f, grad, x, indices), training_decompositions())
    assert "aten.scatter_add.default" in names(gm)
    assert_close(run_openvino(gm, grad, x, indices), [f(grad, x, indices)])


def test_training_decomposes_the_backward_pass_and_no_operator_that_openvino_has() -> None:
    table = training_decompositions()
    assert {aten.gelu_backward.default, aten._softmax_backward_data.default, aten.native_layer_norm.default} <= set(table)
    assert not {aten.convolution.default, aten._softmax.default, aten.gelu.default} & set(table)
    assert table[aten.convolution_backward.default] is convolution_backward


def test_an_operator_is_selected_by_overload_or_by_packet() -> None:
    assert set(selected(("aten.silu.default",))) == {aten.silu.default}
    assert {aten.silu.default, aten.silu.out} <= set(selected(("aten.silu",)))
    with pytest.raises(SettingsError, match=r"aten\.mm\.default"):
        selected(("aten.silu", "aten.mm.default"))


def test_the_users_choice_precedes_ours_and_ours_precedes_pytorchs() -> None:
    refused = [aten.var.correction, aten.silu.default, aten.mm.default]
    table = decompositions((), refused)
    assert table[aten.var.correction] is OPENVINO_DECOMPOSITIONS[aten.var.correction]
    assert table[aten.silu.default] is available(refused)[aten.silu.default]
    assert aten.mm.default not in table
    assert decompositions(("aten.std_mean",))[aten.std_mean.correction] is selected(("aten.std_mean",))[aten.std_mean.correction]


def test_a_decomposition_of_pytorch_that_is_wrong_is_not_used() -> None:
    """The entry can go when this fails: the labels 3 and 2 stand behind the end."""
    x, labels = torch.tensor([[0.3, -0.2, 0.9, 0.1, 0.4]]), torch.tensor([[0, 1, -1, 3, 2]])
    loss = aten.multilabel_margin_loss_forward.default
    assert not torch.allclose(decomposition_table[loss](x, labels, 0)[0], loss(x, labels, 0)[0])
    assert not available([loss])


@pytest.mark.parametrize("number", [1e-9, 1e-40, 70000.0, 1e30, torch.tensor(1e-9), torch.tensor(0.5)], ids=str)
def test_products_and_quotients_of_float16_with_a_number_that_it_cannot_hold(number: Any) -> None:
    x = torch.tensor([0.0, 1.0, 60000.0, math.inf], dtype=torch.float16)
    for function in (lambda x: x * number, lambda x: number * x, lambda x: x / number):
        assert_close(in_openvino(function, x), [function(x)])


@pytest.mark.parametrize("shapes", [((), ()), ((1, 1), (3, 1)), ((3, 4), (4,))], ids=str)
def test_a_choice_between_booleans(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    x, y = (torch.randint(0, 2, shape).bool() for shape in shapes)
    condition = torch.tensor([True, False, True])[:, None]
    expected = torch.where(condition, x, y)
    assert_close([where(condition, x, y)], [expected])
    assert where(condition, x.float(), y.float()) is NotImplemented
    gm = decompose(traced(torch.where, condition, x, y), OPENVINO_DECOMPOSITIONS)
    assert "aten.where.self" not in names(gm)
    assert_close(run_openvino(gm, condition, x, y), [expected])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32], ids=str)
def test_a_choice_between_a_boolean_and_a_number(dtype: torch.dtype) -> None:
    x, y = torch.tensor([True, False, True]), torch.tensor([3, 4, 5], dtype=dtype)
    condition = torch.tensor([True, True, False])

    def both(c: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(c, x, y), torch.where(c, y, x)

    assert_close(in_openvino(both, condition, x, y), both(condition, x, y))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weights", [{}, {"weight": torch.rand(14), "pos_weight": torch.rand(14)}], ids=["plain", "weighted"])
def test_the_loss_of_an_improbable_answer_is_finite(reduction: str, weights: dict[str, torch.Tensor]) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(x, target, reduction=reduction, **weights) + F.logsigmoid(x)

    x, target = NUMBERS[:-1], torch.linspace(0, 1, 14)
    assert loss(x, target).isfinite().all()
    assert_close(in_openvino(loss, x, target), [loss(x, target)])


def elu_of(alpha: float, scale: float = 1.0, input_scale: float = 1.0) -> Callable[[torch.Tensor], torch.Tensor]:
    """ELU with all digits; PyTorch 2.1's own loses those of small numbers."""
    return lambda x: torch.where(x > 0, scale * x, alpha * scale * torch.expm1(input_scale * x))


@pytest.mark.parametrize("factor", [1e-30, 1e-9, 1e-5, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize(
    "function,exact",
    [
        (torch.log1p, torch.log1p),
        (torch.expm1, torch.expm1),
        (nn.ELU(2.0), elu_of(2.0)),
        (nn.SELU(), elu_of(1.6732632423543772, 1.0507009873554805)),
        (nn.CELU(0.7), elu_of(0.7, 1.0, 1 / 0.7)),
    ],
)
def test_small_numbers_keep_their_digits(
    function: Callable[[torch.Tensor], torch.Tensor], exact: Callable[[torch.Tensor], torch.Tensor], factor: float
) -> None:
    x = torch.linspace(-0.9, 2, 30) * factor
    (result,) = in_openvino(lambda x: function(x), x)
    torch.testing.assert_close(result, exact(x), rtol=1e-5, atol=0)


@pytest.mark.parametrize("function", [nn.ELU(), nn.SELU(), nn.CELU(), nn.Mish()])
def test_functions_like_elu_of_all_sizes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.tensor([*(sign * size for size in (0.01, 1, 9, 12, 15, 20, 50, 80, 1e4) for sign in (1, -1)), math.nan, math.inf])
    (result,) = in_openvino(lambda x: function(x), x)
    torch.testing.assert_close(result, function(x), rtol=1e-4, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [0, 1e-30, 0.5])
@pytest.mark.parametrize("operator", [torch.addcmul, torch.addcdiv])
def test_factors_of_large_products(operator: Callable[..., torch.Tensor], value: float) -> None:
    x, small = torch.tensor([1e30, 2.0]), torch.tensor([1e-15, 4.0])
    for other in (x, small):
        expected = operator(x, x, other, value=value)
        torch.testing.assert_close(in_openvino(lambda x, y: operator(x, x, y, value=value), x, other), [expected])


def test_the_loss_of_a_right_answer_keeps_its_digits() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(x, (x > 0).to(x.dtype), reduction="none")

    x = torch.tensor([sign * size for size in (0.01, 1, 5, 9, 10.9, 12, 14) for sign in (1, -1)])
    (result,) = in_openvino(loss, x)
    torch.testing.assert_close(result, loss(x), rtol=1e-3, atol=1e-6)
