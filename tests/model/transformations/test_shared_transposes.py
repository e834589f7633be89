"""Transposes that share their input with other readers, or follow each other, beside a convolution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.model.transformations.shared_transposes import copy_shared_inputs
from tests.helpers.small import engine_for


class Shared(torch.nn.Module):
    """y [2, 6, 6, 16] goes to a transpose and a convolution, and in another shape to a product."""

    def __init__(self, other: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(16, 12, 3)
        self.other = other

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return self.convolution(y.permute(0, 3, 1, 2)), self.other(y)


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a product of rows": lambda y: y.reshape(-1, 16) * torch.arange(1.0, 17.0),
    "a normalisation of rows": lambda y: torch.nn.functional.layer_norm(y.reshape(-1, 16), (16,)),
    "one dimension more": lambda y: y[None] * torch.arange(1.0, 17.0),
    "a concatenation": lambda y: torch.cat([y, y]) * 3,
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_convolution_of_a_shared_input_is_right(strict: Callable[..., Settings], other: str) -> None:
    module, x = Shared(OTHERS[other]), torch.randn(2, 6, 6, 16)
    network = engine_for(strict(precision="f32"), module)
    with torch.no_grad():
        for got, expected in zip(network(x), module(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


class Rows(torch.nn.Module):
    """y [2, 4, 8, 8] is joined with the input, and goes as rows [2, 64, 4] to a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.product = torch.nn.Conv2d(4, 4, 1, groups=4), torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.convolution(x)
        return torch.cat([x + 2.0, y], 0), self.product(y.flatten(2).transpose(1, 2)).flatten(0, 1) * 2


class Twice(torch.nn.Module):
    """A convolution's result is transposed, reshaped and transposed."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.convolution = torch.nn.ConvTranspose2d(4, 4, 2, stride=2) if transposed else torch.nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.convolution(x).permute(0, 2, 3, 1).flatten(2).transpose(1, 2),)


class Repeated(torch.nn.Module):
    """Of each channel of a pooled picture [2, 4, 4, 4], a product with all of a repeated one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.max_pool2d(x.flatten(0, 1).unsqueeze(1)[:1], 2)
        return (y * self.weight) @ y.expand(2, 3, 4, 4).mT, (y + self.weight) @ y.repeat(2, 2, 1, 1).mT


@pytest.mark.parametrize(
    "make",
    [Rows, lambda: Twice(True), lambda: Twice(False), Repeated],
    ids=["rows", "transposed", "convolution", "repeated"],
)
def test_values_are_transposed_as_they_are(strict: Callable[..., Settings], make: Callable[[], torch.nn.Module]) -> None:
    module, x = make(), torch.randn(2, 4, 8, 8)
    network = engine_for(strict(precision="f32"), module)
    with torch.no_grad():
        for got, expected in zip(network(x), module(x), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_a_weight_is_not_copied_at_every_call() -> None:
    x, weight = ops.parameter([3, 8], np.float32), ops.constant(np.ones((2, 4, 8), np.float32))
    shared = ops.transpose(ops.reshape(weight, np.array([8, 8]), False), np.array([1, 0]))
    twice = ops.transpose(ops.reshape(ops.transpose(weight, np.array([1, 0, 2])), np.array([8, 8]), False), np.array([1, 0]))
    model = ov.Model([ops.matmul(ops.matmul(x, shared, False, False), twice, False, False), ops.relu(weight)], [x])
    copy_shared_inputs(model)
    assert not [node for node in model.get_ops() if node.get_type_name() == "Roll"]
