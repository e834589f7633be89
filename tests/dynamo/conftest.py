"""Fixtures of the backend's tests: compile strictly, and compare with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend

Compile = Callable[..., Any]


@pytest.fixture
def compiled() -> Compile:
    """``torch.compile`` with this backend, in f32, where every fallback raises."""

    def make(model: Any, *, dynamic: bool | None = False, fullgraph: bool = False, **options: Any) -> Any:
        given = {"precision": "f32", "fallback": "raise", **options}
        return torch.compile(model, backend="openvino_fx", dynamic=dynamic, fullgraph=fullgraph, options=given)

    return make


def agree(actual: Any, expected: Any, tolerance: float = 1e-3) -> None:
    """Same structure, shapes, dtypes and values; floats to ``tolerance`` of the largest value."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        if expected.is_floating_point() and expected.numel():
            scale = max(1.0, float(expected.detach().double().nan_to_num(0, 0, 0).abs().max()))
            torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale, equal_nan=True)
        else:
            assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            agree(actual[key], expected[key], tolerance)
    elif isinstance(expected, (tuple, list)):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            agree(one, other, tolerance)
    else:
        assert actual == expected


def calls() -> int:
    """Calls that OpenVINO answered since the last reset."""
    return sum(network["calls"] for network in ov_backend.stats().values())


def fallbacks() -> dict[str, int]:
    """Calls that PyTorch answered instead, by reason."""
    found: dict[str, int] = {}
    for network in ov_backend.stats().values():
        for reason, count in network["fallbacks"].items():
            found[reason] = found.get(reason, 0) + count
    return found
