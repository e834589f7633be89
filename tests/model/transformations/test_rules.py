"""Every rule is applied where its fault may occur, and the model then computes what PyTorch does; the docs list all of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch
from torch.nn import functional

from ov_backend.model.conversion.converter import convert
from ov_backend.model.transformations.cpu_faults import RULES
from ov_backend.model.transformations.rule import Rule, apply_rules
from tests.helpers.graphs import traced
from tests.helpers.rewrites import PAGE, page

Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def of(w: torch.Tensor, *shape: int) -> torch.Tensor:
    """As many of the weights as a shape has."""
    return w[: math.prod(shape)].reshape(shape)


def read_twice(attention: torch.Tensor) -> torch.Tensor:
    return attention * attention.relu() + attention


#: By rule, what is computed of a value and 256 weights, and the shape of the value.
CASES: dict[str, tuple[Compute, tuple[int, ...]]] = {
    "roll_the_end_of_a_sequence": (
        lambda x, w: functional.linear(functional.linear(x, of(w, 16, 8)).tanh(), of(w, 8, 16)) + 0.95 * x,
        (8, 8),
    ),
    "transpose_in_5d": (lambda x, w: x.transpose(1, 2) + 1, (2, 3, 3, 4)),
    "roll_attention": (lambda x, w: read_twice((x @ x.mT).softmax(-1) @ x), (2, 3, 4, 4)),
    "roll_keys": (lambda x, w: (x @ of(w, 2, 4, 8).mT * 0.5).softmax(-1) @ x, (2, 4, 8)),
    "reduce_in_floats": (lambda x, w: (x * 10).int().sum(1) * 3, (5, 2, 5)),
    "reduce_in_two_axes": (lambda x, w: x.mean(2) * of(w, 3), (5, 3, 4)),
    "roll_before_reduction": (lambda x, w: x.flatten(2).transpose(1, 2).mean(1) * of(w, 8), (2, 8, 3, 3)),
    "halve_before_extremum": (lambda x, w: functional.max_pool2d(x, 2), (1, 3, 4, 4)),
    "drop_axes_afterwards": (lambda x, w: x.sum(1).transpose(0, 1) + 1, (3, 4, 5)),
    "transpose_as_reshape": (lambda x, w: x.sum(2, keepdim=True).transpose(1, 2) + 1, (3, 4, 5)),
    "add_up_in_float32": (lambda x, w: x.exp().sign().bfloat16().cumsum(0)[1::2].float(), (300, 2)),
    "roll_product_by_pixels": (lambda x, w: functional.conv2d(x * of(w, 1, 1, 4, 4), of(w, 6, 3, 2, 2)), (1, 3, 4, 4)),
    "step_before_convolution": (lambda x, w: functional.conv2d(x.relu(), of(w, 6, 3, 1, 1), stride=2, padding=1), (1, 3, 4, 4)),
    "convolve_whole_rows": (lambda x, w: functional.conv2d(x, of(w, 6, 1, 3, 3), stride=(1, 2)), (1, 1, 4, 4)),
    "roll_transposed_convolution": (
        lambda x, w: functional.conv_transpose2d(x, of(w, 3, 6, 2, 2), stride=3) + of(w, 6, 1, 1),
        (1, 3, 4, 4),
    ),
    "multiply_by_reciprocal": (lambda x, w: x.sum(1) / 7, (7, 7, 7)),
    "hide_constant": (lambda x, w: of(w, 6) / functional.linear(x, of(w, 6, 4)), (3, 4)),
    "exp_as_square": (lambda x, w: (x + 87.6).exp() * 0.5, (4, 4)),
    "erf_by_series": (lambda x, w: (x * 1e-6).erf() * 1e6, (4, 4)),
    "round_constant": (lambda x, w: x * w.bfloat16().float(), (256,)),
    "copy_weight_per_packing": (lambda x, w: of(w, 8, 8) @ (x @ of(w, 8, 8)), (8, 8)),
    "hide_second_constants": (
        lambda x, w: functional.linear(*(y.sign().bfloat16() for y in (x, of(w, 4, 4), of(w, 4)))).float() + of(w, 4),
        (3, 4),
    ),
    "abs_of_two_axes": (lambda x, w: torch.cat([x, x.tanh()]).abs() + torch.full((8,), -1.5).abs(), (4,)),
    "roll_slice": (lambda x, w: x[1:].gather(1, x[1:].abs().long().clamp(0, 3)), (4, 4)),
    "resize_to_the_middle": (lambda x, w: functional.interpolate(x, size=(1, 1), mode="bilinear"), (1, 2, 5, 5)),
    "gather_nearest": (lambda x, w: functional.interpolate(x, size=(18, 4)), (1, 2, 30, 2)),
    "group_norm_in_3d": (lambda x, w: functional.group_norm(x, 2) - x.exp(), (3, 4)),
    "reshape_to_no_axes": (lambda x, w: x.expand(()), ()),
    "compare_with_zero": (lambda x, w: x.topk(1).values.bool().float() + 1, (2, 4)),
    "swap_sides": (lambda x, w: (x.log() > 0) + 0.5, (4, 4)),
    "hide_extreme_factor": (lambda x, w: (x + 1.5) * 1e30, (3, 4)),
}


WEIGHTS = torch.linspace(1, 99, 256).sin()


def model_of(rule: Rule, x: torch.Tensor) -> ov.Model:
    """The model of a case; a trace would make two constants of the weight that is read in two ways."""
    if rule.name == "copy_weight_per_packing":
        value, square = ops.parameter([8, 8], np.float32), ops.constant(of(WEIGHTS, 8, 8).numpy())
        return ov.Model([ops.matmul(square, ops.matmul(value, square, False, False), False, False)], [value])
    compute, _ = CASES[rule.name]
    return convert(traced(lambda x: compute(x, WEIGHTS), x), [], ["x"]).model


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_applied_and_what_is_computed_is_right(rule: Rule) -> None:
    compute, shape = CASES[rule.name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    model = model_of(rule, x)
    assert apply_rules(model, RULES)[rule.name]
    found = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x.numpy()])[0]
    np.testing.assert_allclose(found, compute(x, WEIGHTS).numpy(), rtol=1e-3, atol=1e-4)


def test_every_rule_has_one_name_and_says_one_fault() -> None:
    assert len({rule.name for rule in RULES}) == len({rule.fault for rule in RULES}) == len(RULES)


def test_the_page_lists_what_the_code_does() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it with: python -m tests.helpers.rewrites"


#: What does nothing in the end: the device leaves it out, and has a product next to both constants again.
MOVES: dict[str, Callable[[ov.Node], ov.Node]] = {
    "nothing": lambda value: value,
    "reshape": lambda value: ops.reshape(value, [-1, value.get_output_shape(0)[-1]], False),
    "slice": lambda value: ops.slice(value, [0], [3], [1], [0]),
    "transposes": lambda value: ops.transpose(ops.transpose(value, [1, 0]), [1, 0]),
    "concat": lambda value: ops.concat([ops.slice(value, [0], [1], [1], [0]), ops.slice(value, [1], [3], [1], [0])], 0),
    "select": lambda value: ops.select(ops.constant(np.True_), value, value),
}


@pytest.mark.parametrize("features", [1, 4])
@pytest.mark.parametrize("order", ["add, move, convert", "add, convert, move", "convert, move, add"])
@pytest.mark.parametrize("move", MOVES)
def test_two_constants_of_two_types_are_added_to_a_product(move: str, order: str, features: int) -> None:
    weight, first, second = (of(WEIGHTS, *shape).numpy().round() + 2 for shape in ((features, 8), (features,), (features,)))
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 8
    parameter = ops.parameter([3, 8], np.float32)
    value = ops.matmul(ops.convert(parameter, "f16"), ops.constant(weight.astype(np.float16)), False, True)
    for step in order.split(", "):
        if step == "add":
            value = ops.add(value, ops.convert(ops.constant(first), value.get_output_element_type(0).to_string()))
        else:
            value = ops.convert(value, "f32") if step == "convert" else MOVES[move](value)
    model = ov.Model([ops.add(value, ops.constant(second))], [parameter])
    apply_rules(model, RULES)
    found = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([x])[0]
    np.testing.assert_allclose(found, x @ weight.T + first + second, rtol=1e-3)
