"""Complex arithmetic is written as real arithmetic, so that OpenVINO computes it; what has no rule stays in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from tests.helpers.torch_compile import agree, calls, fallbacks

OPTIONS = {"precision": "f32", "fallback": "raise"}


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> dict[str, int]:
    """What stays in PyTorch of a function whose results agree with eager."""
    expected = as_real(function(*inputs))
    agree(as_real(torch.compile(function, backend="openvino_fx", options=OPTIONS)(*inputs)), expected)
    (stats,) = ov_backend.stats().values()
    assert (calls(), fallbacks()) == (1, {})
    return dict(stats["in_pytorch"])


def as_real(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(as_real, value))
    return torch.view_as_real(value) if value.is_complex() else value


def z(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.relu().unflatten(-1, (4, 2)))


def turn(x: torch.Tensor) -> torch.Tensor:
    angles = torch.outer(torch.arange(3.0), torch.arange(4.0))
    return torch.polar(torch.ones_like(angles), angles)


ALL_OF_IT: dict[str, Callable[[torch.Tensor], Any]] = {
    "a rotation": lambda x: torch.view_as_real(z(x) * turn(x)).flatten(-2),
    "made of two parts": lambda x: (torch.complex(x, x * 2) * turn(x)[:, :1]).imag,
    "sums and differences": lambda x: (2 * z(x) + turn(x) - x[..., :4]).real,
    "a difference with a factor": lambda x: torch.sub(z(x), turn(x), alpha=2).real,
    "numbers": lambda x: ((1j * x + 2).real, (x - 1j).abs(), (z(x) / 2).imag),
    "conjugates": lambda x: ((z(x) * turn(x).conj()).real, (-z(x).conj()).imag),
    "products": lambda x: torch.view_as_real(z(x) @ turn(x).mT),
    "shapes": lambda x: torch.view_as_real(torch.cat(z(x).transpose(0, 1).split(2), 1)[..., None].expand(-1, -1, 2).contiguous()),
    "sums": lambda x: (z(x).sum(0).real, z(x).mean().imag, z(x)[torch.tensor([2, 0])].real),
}


@pytest.mark.parametrize("name", ALL_OF_IT)
def test_all_of_it_runs_in_openvino(name: str) -> None:
    assert compiled(ALL_OF_IT[name], torch.randn(3, 8)) == {}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex32])
def test_a_complex_input_is_divided_once(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn).flatten(-2)
        return x

    real = torch.float32 if dtype is torch.complex64 else torch.float16
    turning = torch.view_as_complex(torch.randn(4, 2, dtype=real))
    assert compiled(f, torch.randn(3, 8, dtype=real), turning) == {"aten.view_as_real.default": 1}


def test_what_is_viewed_by_other_strides() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = z(x).t().contiguous().view(2, 2, 3).transpose(0, 1)
        return torch.view_as_real(y * y).flatten(-2)

    assert compiled(f, torch.randn(3, 8)) == {}


SOME_OF_IT: dict[str, tuple[Callable[[torch.Tensor], Any], set[str]]] = {
    "a power": (lambda x: z(x).pow(3).real + x[..., :4], {"pow"}),
    "a transform": (lambda x: torch.fft.irfft(torch.fft.rfft(x.relu()) * 2j, n=8) + x, {"_fft_r2c", "_fft_c2r"}),
    "memory": (lambda x: (z(x) * 2).as_strided((2, 2), (1, 4)).real + x[:2, :2], {"as_strided"}),
    "a comparison": (lambda x: (z(x) == turn(x)).float() + x[..., :4], {"eq"}),
    "a returned value": (lambda x: z(x) * turn(x), {"complex"}),
}


@pytest.mark.parametrize("name", SOME_OF_IT)
def test_operators_without_a_rule_stay_in_pytorch(name: str) -> None:
    function, named = SOME_OF_IT[name]
    packets = {operator.split(".")[1] for operator in compiled(function, torch.randn(3, 8))}
    assert named <= packets <= named | {"view_as_real", "complex"}


def test_complex_numbers_of_64_bits_stay_in_pytorch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.view_as_complex(x.double().unflatten(-1, (4, 2)))
        return (y * y).real.float() + x[..., :4].relu()

    assert "aten.mul.Tensor" in compiled(f, torch.randn(3, 8))


def test_a_returned_view_of_an_input_stays_a_view() -> None:
    function = torch.compile(
        lambda x: (torch.view_as_real(torch.view_as_complex(x)), x + 1), backend="openvino_fx", options=OPTIONS
    )
    x = torch.randn(3, 2)
    view, _ = function(x)
    x.zero_()
    assert not view.any()
    assert calls() == 1
