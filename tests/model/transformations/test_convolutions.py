"""Convolutions that the CPU device gets wrong are computed in another form."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.answers import assert_right
from tests.helpers.small import engine_for


def test_a_kernel_of_a_convolution_and_of_its_transpose() -> None:
    rng = np.random.default_rng(0)
    kernel = torch.from_numpy(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))

    class Back(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = torch.nn.Parameter(kernel, requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.conv2d(x, self.kernel, padding=1)
            return torch.nn.functional.conv_transpose2d(y, self.kernel, padding=1)

    module, x = Back(), torch.from_numpy(rng.standard_normal((1, 4, 8, 8)).astype(np.float32))
    network = engine_for(Settings(precision="f32", model_caching=False, fallback="raise"), module)
    torch.testing.assert_close(network(x), module(x), rtol=1e-3, atol=1e-3)


class Masked(torch.nn.Module):
    """A number for each pixel, and a convolution whose kernel is as large as the picture."""

    def __init__(self, convolution: torch.nn.Module, shape: tuple[int, ...], quotient: bool) -> None:
        super().__init__()
        self.convolution, self.mask, self.quotient = convolution, torch.nn.Parameter(torch.rand(shape) + 0.5), quotient
        self.channels = torch.nn.Parameter(torch.rand(8, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        masked = x / self.mask if self.quotient else x * self.mask
        return self.convolution(masked), self.convolution(x * self.mask.exp() * self.channels)


@pytest.mark.parametrize("quotient", [False, True])
@pytest.mark.parametrize("shape", [(8, 3, 3), (3, 3), (3,), (3, 1), (8, 1, 1)])
def test_a_number_for_each_pixel_before_a_convolution(
    strict: Callable[..., Settings], shape: tuple[int, ...], quotient: bool
) -> None:
    for kind, groups in ((torch.nn.Conv2d, 1), (torch.nn.Conv2d, 8), (torch.nn.Conv2d, 2), (torch.nn.ConvTranspose2d, 1)):
        assert_right(strict, Masked(kind(8, 8, 3, padding=1, groups=groups), shape, quotient), torch.randn(2, 8, 3, 3))


@pytest.mark.parametrize("convolution", [torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_of_single_pixels_with_padding_and_steps(
    strict: Callable[..., Settings], convolution: Callable[..., torch.nn.Module], groups: int
) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution(4, 6, 1, stride=2, padding=1, groups=groups).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.convolution(x.relu() + 1)
            return y, y.flatten(2).mean(-1)

    dimensions = {torch.nn.Conv1d: 1, torch.nn.Conv2d: 2, torch.nn.Conv3d: 3}[convolution]
    for size in (5, 6):
        assert_right(strict, Steps(), torch.randn(2, 4, *[size] * dimensions))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [2, 3])
def test_a_convolution_of_one_channel_to_a_column(strict: Callable[..., Settings], stride: int, groups: int) -> None:
    class Column(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = torch.nn.Conv2d(groups, 16, (2, 3), (1, stride), groups=groups).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.convolution(x)
            return y, y.relu()

    assert_right(strict, Column(), torch.randn(2, groups, 5, 3))


def test_steps_behind_a_padded_convolution_of_single_pixels(strict: Callable[..., Settings]) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.padded = torch.nn.GroupNorm(2, 16), torch.nn.Conv2d(16, 8, 1, padding=1)
            self.steps, self.last = torch.nn.Conv2d(8, 8, 1, 2), torch.nn.Conv2d(8, 8, 1, padding=1, groups=8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            stepped = self.steps(self.padded(self.norm(x)))
            return stepped.mean((2, 3)), self.last(stepped)

    assert_right(strict, Steps(), torch.randn(2, 16, 8, 8))


@pytest.mark.parametrize("convolution", [torch.nn.Conv1d, torch.nn.Conv2d])
def test_steps_of_single_pixels_behind_a_part_of_a_split(
    strict: Callable[..., Settings], convolution: Callable[..., torch.nn.Module]
) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = convolution(2, 8, 1, stride=2).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolution(x.chunk(2, 1)[1] + 0.5)

    assert_right(strict, Steps(), torch.randn(1, 4, *[4] * (2 if convolution is torch.nn.Conv2d else 1)))


@pytest.mark.parametrize("convolution", [torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d])
@pytest.mark.parametrize("groups", [1, 4])
def test_pixels_to_which_the_kernel_of_a_transposed_convolution_does_not_come(
    strict: Callable[..., Settings], convolution: Callable[..., torch.nn.Module], groups: int
) -> None:
    class Pixels(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.apart = convolution(4, 8, 2, stride=3, groups=groups).requires_grad_(False)
            steps = (1, 1, 3) if convolution is torch.nn.ConvTranspose3d else (1, 3)
            self.columns = convolution(4, 8, 2, stride=steps, groups=groups).requires_grad_(False)
            self.further = convolution(4, 8, 3, stride=3, output_padding=2, groups=groups).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.apart(x) + 0.5, self.columns(x), self.further(x).sigmoid()

    torch.manual_seed(0)
    module, x = Pixels(), torch.randn(1, 4, *[3] * (2 if convolution is torch.nn.ConvTranspose2d else 3))
    for precision, tolerance in (("f32", 1e-3), ("bf16", 0.05)):
        found = engine_for(strict(precision=precision), module)(x)
        torch.testing.assert_close(found, module(x), rtol=tolerance, atol=tolerance)
