"""In bf16 the CPU computes what PyTorch's autocast computes in bfloat16, and the rest in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.model.transformations.autocast_types import cast_to_bfloat16
from tests.helpers.small import engine_for
from tests.soundness import autocast

has_bf16 = pytest.mark.skipif(devices.resolved_precision(Settings(device="CPU")) != "bf16", reason="this CPU computes in f32")
Build = Callable[[ov.Node], ov.Node]


def product(x: ov.Node) -> ov.Node:
    return named(ops.matmul(x, ops.constant(np.eye(4, dtype=np.float32)), False, True), "mm/aten.mm.default/MatMul")


def named(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    return node


def number(value: float) -> ov.Node:
    return ops.constant(np.float32(value))


def row() -> ov.Node:
    return ops.constant(np.ones(4, dtype=np.float32))


#: What a node computes of the input ``x`` and the result ``p`` of a product, and the type it then has.
TYPES: dict[str, tuple[Callable[[ov.Node, ov.Node], ov.Node], str]] = {
    "before the first product": (lambda x, p: ops.sin(x), "f32"),
    "a product": (lambda x, p: product(p), "bf16"),
    "a product of an operator that is not on autocast's list": (
        lambda x, p: named(ops.matmul(p, p, False, True), "dot/aten.dot.default/MatMul"), "f32",
    ),
    "a product where autocast was off": (
        lambda x, p: named(ops.matmul(p, p, False, True), "keeps_float32_mm/aten.mm.default/MatMul"), "f32",
    ),
    "an activation where autocast was off": (lambda x, p: named(ops.relu(p), "keeps_float32_relu/aten.relu.default/Relu"), "f32"),
    "its activation": (lambda x, p: ops.relu(p), "bf16"),
    "its bias": (lambda x, p: named(ops.add(p, row()), "mm/aten.mm.default/Add"), "bf16"),
    "its sum with a number": (lambda x, p: named(ops.add(p, number(3)), "add/aten.add.Tensor/Add"), "bf16"),
    "its sum with a weight": (lambda x, p: named(ops.add(p, row()), "add/aten.add.Tensor/Add"), "f32"),
    "its sum with an input": (lambda x, p: named(ops.add(p, x), "add/aten.add.Tensor/Add"), "f32"),
    "a choice between two numbers": (lambda x, p: ops.select(ops.greater(x, number(0)), row(), row()), "f32"),
    "a view of it": (lambda x, p: ops.unsqueeze(p, np.array([0])), "bf16"),
    "a sum over it": (lambda x, p: ops.cum_sum(p, np.int64(0)), "f32"),
    "the exponential": (lambda x, p: ops.exp(p), "f32"),
    "what one operator computes in several steps": (
        lambda x, p: named(
            ops.multiply(named(ops.add(p, number(1)), "op/aten.op.default/Add"), number(2)), "op/aten.op.default/Multiply"
        ),
        "f32",
    ),
    "a normalization": (lambda x, p: named(ops.multiply(ops.relu(p), row()), "n/aten.native_layer_norm.default/Mul"), "bf16"),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_value_has_the_type_that_autocast_gives_it(name: str) -> None:
    build, expected = TYPES[name]
    x = ops.parameter([4, 4], np.float32)
    value = build(x, product(x))
    model = ov.Model([ops.result(value)], [x])
    cast_to_bfloat16(model, None)
    assert value.get_element_type().to_string() == expected
    assert model.outputs[0].get_element_type() == ov.Type.f32


def test_weights_are_rounded_to_the_nearest(tmp_path: Path) -> None:
    """OpenVINO's own conversion of a constant does not; a large one lies in a file."""
    weight = torch.randn(600, 600)
    x = ops.parameter([1, 600], np.float32)
    model = ov.Model([ops.result(ops.matmul(x, ops.constant(weight.numpy()), False, True))], [x])
    (buffer,) = cast_to_bfloat16(model, tmp_path)
    answer = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(np.eye(1, 600, dtype=np.float32))[0]
    assert torch.equal(torch.from_numpy(answer[0]), weight[:, 0].bfloat16().float())
    buffer.release()


class Angles(torch.nn.Module):
    """Sines of positions or of times, beside a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.register_buffer("frequencies", 1e4 ** (-torch.arange(16) / 16))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions.float()[:, None] * self.frequencies
        return self.last(self.layer(x) + torch.cat([angles.sin(), angles.cos()], -1))


@has_bf16
@pytest.mark.parametrize("precision", ["auto", "bf16"])
@pytest.mark.parametrize("positions", [torch.arange(3000, 3200), torch.tensor([813.37, 0.29])], ids=["positions", "timesteps"])
def test_angles_keep_their_digits(strict: Callable[..., Settings], precision: str, positions: torch.Tensor) -> None:
    torch.manual_seed(0)
    module, x = Angles().eval(), torch.randn(len(positions), 32)
    with torch.no_grad():
        got = engine_for(strict(precision=precision), module)(x, positions)
    assert not autocast.difference([got], lambda: [module(x, positions)])


@has_bf16
@pytest.mark.parametrize("hint", ["f32", "bf16"])
def test_a_precision_among_the_users_properties_is_left_to_the_device(strict: Callable[..., Settings], hint: str) -> None:
    torch.manual_seed(0)
    module, positions = Angles().eval(), torch.arange(3000, 3200)
    x = torch.randn(200, 32)
    with torch.no_grad():
        got = engine_for(strict(precision="auto", config={"INFERENCE_PRECISION_HINT": hint}), module)(x, positions)
        distance = autocast.distance(got, module(x, positions))
    assert distance < 1e-3 if hint == "f32" else distance > 0.1


class Masked(torch.nn.Module):
    """Attention whose mask has a row of the lowest numbers, as of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=mask)


@has_bf16
def test_a_row_of_the_lowest_numbers_in_a_mask_stays_finite(strict: Callable[..., Settings]) -> None:
    """bfloat16 has no number as low as float32's lowest, and a row of minus infinity has no softmax."""
    torch.manual_seed(0)
    module, x = Masked().eval(), torch.randn(1, 2, 6, 16)
    mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), torch.finfo(torch.float32).min)
    mask[0] = torch.finfo(torch.float32).min
    with torch.no_grad():
        network = engine_for(strict(precision="auto"), module)
        distance = autocast.distance(network(x, mask), module(x, mask))
    assert 1e-4 < distance < 1e-2, "it is computed in bfloat16, and not once more in float32"
