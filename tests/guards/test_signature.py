"""A binder that has seen other calls says of a call what a new one says."""

from __future__ import annotations

import contextlib
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.core.errors import CaptureError
from ov_backend.guards.signature import Binder, Signature

X, Y = torch.ones(2, 3), torch.zeros(2, 3)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, Y), {}),
    ((X, X), {}),
    ((X,), {"y": Y}),
    ((X,), {"y": X}),
    ((), {"y": Y, "x": X}),
    ((X.t(), Y), {}),
    ((X.double(), Y), {}),
    ((X.long(), None), {}),
    ((torch.nn.Parameter(X, requires_grad=False), Y), {}),
    *(((X, None, number), {}) for number in (0, 0.0, -0.0, 1, 1.0, True, False, "1", None, float("nan"), torch.float32)),
    ((X, [Y]), {}),
    ((X, {"a": Y}), {}),
    ((X, (Y, Y)), {}),
    ((X.to_sparse(), Y), {}),
]


def plain(x: Any, y: Any = None, scale: Any = 1.0) -> Any:
    return x, y, scale


def with_rest(*values: Any, **named: Any) -> Any:
    return values, named


def with_a_tensor(x: Any = X, y: Any = Y, scale: Any = 1.0) -> Any:
    return x, y, scale


def told(binder: Binder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All that a binder says, or why it refuses."""
    try:
        call = binder(args, kwargs)
    except CaptureError as error:
        return str(error)
    return call.signature, list(map(id, call.tensors)), repr(call.spec), call.gradients, call.inference


@pytest.mark.parametrize("forward", [plain, with_rest, with_a_tensor])
def test_a_binder_says_the_same_of_a_call_whatever_it_has_seen(forward: Callable[..., Any]) -> None:
    binder = Binder(forward)
    bfloat16 = torch.autocast("cpu", dtype=torch.bfloat16)
    for _, around in itertools.product(range(2), (contextlib.nullcontext(), torch.enable_grad(), bfloat16)):
        with around:
            for args, kwargs in CALLS:
                assert told(binder, args, kwargs) == told(Binder(forward), args, kwargs)


def test_a_weight_that_asks_for_gradients_is_refused_though_its_like_was_taken() -> None:
    binder = Binder(plain)
    binder((X,), {})
    with torch.enable_grad(), pytest.raises(CaptureError, match="asks for gradients"):
        binder((X.clone().requires_grad_(),), {})


def test_defaults_that_are_exchanged_count_at_once() -> None:
    def forward(x: Any, scale: float = 1.0) -> Any:
        return x * scale

    binder = Binder(forward)
    before = binder((X,), {}).signature
    forward.__defaults__ = (2.0,)
    assert binder((X,), {}).signature != before


def test_a_signature_is_hashed_anew_in_another_process() -> None:
    signature = Binder(plain)((X,), {}).signature
    hash(signature)
    copied: Signature = pickle.loads(pickle.dumps(signature))
    assert copied == signature
    assert "_hash" not in vars(copied)
