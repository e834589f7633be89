"""Copies and files of an accelerated module are those of the module itself."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import torch

from ov_backend import Settings, accelerate
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
