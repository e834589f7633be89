"""What the tests of ``torch.compile`` share: compare results with eager PyTorch's, and count who answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

import ov_backend

Compile = Callable[..., Any]


def agree(actual: Any, expected: Any, tolerance: float = 1e-3) -> None:
    """Same structure, shapes, dtypes and values; floats to ``tolerance`` of the largest value."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        long = [dim for dim, size in enumerate(expected.shape) if size > 1]  # along others there is no second element
        assert [actual.stride(dim) for dim in long] == [expected.stride(dim) for dim in long]
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


def total(count: str) -> int:
    """A count, such as "calls" that OpenVINO answered, of all graphs since the last reset."""
    return sum(network[count] for network in ov_backend.stats().values())


def calls() -> int:
    """Calls that OpenVINO answered since the last reset."""
    return total("calls")


def fallbacks() -> dict[str, int]:
    """Calls that PyTorch answered instead, by reason."""
    counts: Counter[str] = Counter()
    for network in ov_backend.stats().values():
        counts.update(network["fallbacks"])
    return dict(counts)


def corrections() -> dict[str, int]:
    """What was answered otherwise than asked for, with counts."""
    return {what: count for network in ov_backend.stats().values() for what, count in network["corrections"].items()}
