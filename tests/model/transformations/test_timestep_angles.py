"""Timestep embeddings keep their accuracy in bfloat16; other angles are not rewritten."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.model.transformations.timestep_angles import keep_angles_exact
from tests.helpers.small import Computing, engine_for

Strict = Callable[..., Settings]


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


class Timesteps(torch.nn.Module):
    """timesteps [B] -> [B, 64]: the sinusoidal embedding of diffusion networks, and a layer behind it."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(64, 64), scale

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-9.2 * torch.arange(32, dtype=torch.float32) / 32)
        angle = t[:, None].float() * frequencies[None] * self.scale
        return self.layer(torch.cat([torch.cos(angle), torch.sin(angle)], -1))


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("t", [[813.37, 0.29], [999.0, 501.0], [7.7, 0.0], [999, 501], [1, 0]], ids=str)
def test_timesteps_in_bfloat16(strict: Strict, t: list[float], scale: float) -> None:
    """813.37 is 812 in bfloat16; an angle computed from that is off by more than a radian."""
    module, x = Timesteps(scale), torch.tensor(t)
    assert relative_error(engine_for(strict(precision="bf16"), module)(x), module(x)) < 4e-2


def test_angles_that_are_not_of_timesteps_keep_their_accuracy(strict: Strict) -> None:
    def angles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * y) + torch.cos(x + 1) + torch.sin(x.sum(-1, keepdim=True))

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    network = engine_for(strict(precision="bf16"), Computing(angles))
    assert relative_error(network(x, y), angles(x, y)) < 2e-2


def rewritten(build: Callable[[ov.Node], ov.Node], shape: list[int], dtype: type = np.float32) -> bool:
    """Whether the argument of the only sine of a model is replaced; the rewritten model computes the same."""
    x = ops.parameter(shape, dtype)
    sine = ops.sin(build(x))
    model = ov.Model([sine], [x])
    argument = sine.input_value(0).get_node().get_friendly_name()
    tensor = np.linspace(0, 900, int(np.prod(shape))).astype(dtype).reshape(shape) if -1 not in shape else None
    before = None if tensor is None else ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(tensor)[0]
    keep_angles_exact(model)
    model.validate_nodes_and_infer_types()
    if tensor is not None:
        after = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(tensor)[0]
        np.testing.assert_allclose(after, before, atol=2e-4)
    return bool(sine.input_value(0).get_node().get_friendly_name() != argument)


def frequencies(*shape: int) -> ov.Node:
    return ops.constant(np.geomspace(1, 1e-3, int(np.prod(shape))).astype(np.float32).reshape(shape))


REWRITTEN: dict[str, tuple[Callable[[ov.Node], ov.Node], list[int], type]] = {
    "the input itself": (lambda x: x, [4], np.float32),
    "times frequencies": (lambda x: ops.multiply(ops.unsqueeze(x, np.array([1])), frequencies(1, 8)), [3], np.float32),
    "frequencies times the input": (lambda x: ops.multiply(frequencies(8), x), [1], np.float32),
    "divided": (lambda x: ops.divide(x, ops.constant(np.float32(7))), [4], np.float32),
    "reshaped": (lambda x: ops.multiply(ops.reshape(x, np.array([2, 2]), False), frequencies(2, 2)), [4], np.float32),
    "integers": (lambda x: ops.multiply(ops.convert(x, "f32"), frequencies(4)), [4], np.int64),
}
LEFT: dict[str, tuple[Callable[[ov.Node], ov.Node], list[int], type]] = {
    "too many elements": (lambda x: ops.multiply(x, frequencies(65)), [65], np.float32),
    "a sum": (lambda x: ops.add(x, frequencies(4)), [4], np.float32),
    "a square": (lambda x: ops.multiply(x, x), [4], np.float32),
    "the input as a divisor": (lambda x: ops.divide(frequencies(4), ops.add(x, ops.constant(np.float32(1)))), [4], np.float32),
    "a repeated input": (lambda x: ops.tile(x, np.array([2])), [4], np.float32),
    "open sizes": (lambda x: ops.multiply(x, ops.constant(np.float32(2))), [-1], np.float32),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_multiples_of_a_small_input_are_rewritten(name: str) -> None:
    assert rewritten(*REWRITTEN[name])


@pytest.mark.parametrize("name", LEFT)
def test_other_arguments_are_not(name: str) -> None:
    assert not rewritten(*LEFT[name])


def test_sine_and_cosine_share_the_exact_angle() -> None:
    x = ops.parameter([4], np.float32)
    angle = ops.multiply(x, frequencies(4))
    sine, cosine = ops.sin(angle), ops.cos(angle)
    model = ov.Model([sine, cosine], [x])
    keep_angles_exact(model)
    names = {node.input_value(0).get_node().get_friendly_name() for node in (sine, cosine)}
    assert len(names) == 1
    assert angle.get_friendly_name() not in names
