"""Copies and files of an accelerated module are those of the module itself."""

from __future__ import annotations

import copy
import copyreg
import gc
import io
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings, accelerate
from ov_backend.core.patching import is_patched
from tests.helpers.small import Small, inputs

Strict = Callable[..., Settings]


def test_a_copy_computes_with_its_own_weights(strict: Strict) -> None:
    module = Small()
    with accelerate({"net": module}, strict()):
        module(*inputs())
        duplicate = copy.deepcopy(module)
        with torch.no_grad():
            duplicate.offset.add_(5)
        assert torch.allclose(duplicate(*inputs()), module(*inputs()) + 5, atol=1e-3)
    assert torch.allclose(duplicate(*inputs()), module(*inputs()) + 5, atol=1e-3)


def _by_hand(module: torch.nn.Module) -> torch.nn.Module:
    """Goes round every function that Python has for it, as some programs do."""
    duplicate = type(module).__new__(type(module))
    duplicate.__dict__ = vars(module).copy()
    return duplicate


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "for data on several devices": lambda module: module._replicate_for_data_parallel(),
    "by hand": _by_hand,
    "of a copy": lambda module: copy.copy(_by_hand(module)),
    "of a copy by hand": lambda module: _by_hand(_by_hand(module)),
}


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("duplicate_of", COPIES.values(), ids=COPIES.keys())
def test_a_copy_with_another_weight_computes_with_it(strict: Strict, duplicate_of: Callable[[Any], Any], hooked: bool) -> None:
    module = Small()
    if hooked:
        module.register_forward_hook(lambda module, args, result: result * 1)
    with accelerate({"net": module}, strict()):
        expected = module(*inputs()) + 5
        duplicate = duplicate_of(module)
        duplicate._parameters = dict(module._parameters)
        duplicate._buffers = {**module._buffers, "offset": module.offset + 5}
        assert torch.allclose(duplicate(*inputs()), expected, atol=1e-3)
        assert torch.allclose(module(*inputs()) + 5, expected, atol=1e-3)
    assert torch.allclose(duplicate(*inputs()), expected, atol=1e-3)


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, _by_hand])
def test_a_copy_of_a_copy_has_its_weights(strict: Strict, again: Callable[[Any], Any], restored: bool) -> None:
    module = Small()
    accelerated = accelerate({"net": module}, strict())
    expected = module(*inputs()) + 5
    first = _by_hand(module)
    first._parameters = dict(module._parameters)
    first._buffers = {**module._buffers, "offset": module.offset + 5}
    if restored:
        accelerated.restore()
    duplicate = again(first)
    assert torch.allclose(duplicate(*inputs()), expected, atol=1e-3)
    accelerated.restore()
    assert torch.allclose(duplicate(*inputs()), expected, atol=1e-3)


class Keeping(torch.nn.Module):
    """x times a weight of its own."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Borrowing(torch.nn.Module):
    """Has no weight."""


@pytest.mark.parametrize("both", [False, True])
def test_a_forward_that_is_lent_stays_bound(strict: Strict, both: bool) -> None:
    lender, borrower, other, x = Keeping(2.0), Keeping(3.0), Borrowing(), torch.ones(3)
    with accelerate({"net": lender, **({"other": borrower} if both else {})}, strict()):
        lender(x)
        borrower.forward = lender.forward  # type: ignore[method-assign]
        other.forward = lender.forward
        for module in (lender, borrower, other):
            assert torch.allclose(module(x), x * 2)


def test_a_bound_function_of_the_modules_own_stays_bound_in_a_copy(strict: Strict) -> None:
    module, x = Keeping(3.0), torch.ones(3)
    module.forward = types.MethodType(lambda self, x: x * self.factor + 1, module)  # type: ignore[method-assign]
    with accelerate({"net": module}, strict(fallback="pytorch")):
        module(x)
        duplicate = _by_hand(module)
        duplicate._parameters = {"factor": torch.nn.Parameter(torch.tensor(8.0), requires_grad=False)}
        assert torch.allclose(duplicate(x), x * 4)


class CopyingItself(Small):
    """Goes through its own attributes."""

    def __deepcopy__(self, memo: dict[int, Any]) -> CopyingItself:
        duplicate = _by_hand(self)
        duplicate.__dict__ = {name: copy.deepcopy(value, memo) for name, value in vars(self).items()}
        return duplicate


def test_a_class_that_copies_itself_has_copies_with_their_weights(strict: Strict) -> None:
    module = CopyingItself()
    with accelerate({"net": module}, strict()):
        expected = module(*inputs()) + 5
        duplicate = copy.deepcopy(module)
        duplicate.offset.add_(5)
        assert torch.allclose(duplicate(*inputs()), expected, atol=1e-3)
        assert torch.allclose(module(*inputs()) + 5, expected, atol=1e-3)


class WithState(Small):
    """Says itself what of it is copied."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "copied": True}


@pytest.mark.parametrize("kind", [Small, WithState])
@pytest.mark.parametrize("duplicate_of", [copy.copy, copy.deepcopy])
def test_a_copy_is_as_if_it_had_never_been_accelerated(
    strict: Strict, kind: type[Small], duplicate_of: Callable[[Any], Any]
) -> None:
    gc.collect()  # networks of other tests, of the same class
    module = kind()
    before = dict(vars(duplicate_of(module)))
    with accelerate({"net": module}, strict()):
        module(*inputs())
        duplicate = duplicate_of(module)
    assert vars(duplicate).keys() == before.keys()
    assert getattr(duplicate, "copied", False) is (kind is WithState)
    assert "forward" not in vars(module)
    assert not any(is_patched(value) for value in vars(module).values())
    assert kind not in copyreg.dispatch_table


def test_a_copy_keeps_the_forward_that_stood_on_the_module_itself(strict: Strict) -> None:
    module = Small()
    own = module.forward
    module.forward = lambda *args: own(*args) * 2  # type: ignore[method-assign]
    mine = module.forward
    with accelerate({"net": module}, strict(fallback="pytorch")):
        assert copy.copy(module).forward is mine
    assert module.forward is mine


def test_an_accelerated_module_can_be_saved(strict: Strict) -> None:
    module, file = Small(), io.BytesIO()
    with accelerate({"net": module}, strict()):
        module(*inputs())
        torch.save(module, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        with torch.no_grad():
            loaded.offset.add_(5)
        assert torch.allclose(loaded(*inputs()), module(*inputs()) + 5, atol=1e-3)
