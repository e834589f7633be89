"""What an accelerated model leaves behind when it is deleted: nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from tests.helpers.lifetimes import ALIVE, Lives, eventually
from tests.helpers.small import Small, inputs


@pytest.mark.parametrize("restored", [False, True], ids=["in use", "restored, with the handle kept"])
def test_a_deleted_model_is_freed(strict: Callable[..., ov_backend.Settings], restored: bool) -> None:
    module = Small()
    accelerated = ov_backend.accelerate({"net": module}, strict())
    module(*inputs())
    lives = Lives(module)
    assert lives.left() == ALIVE
    if restored:
        accelerated.restore()
        assert accelerated.stats()["net"]["calls"] == 1
    else:
        del accelerated
    del module
    assert not lives.left()


def test_a_deleted_pipeline_is_freed_without_restore(strict: Callable[..., ov_backend.Settings]) -> None:
    class Pipeline:
        def __init__(self, unet: torch.nn.Module) -> None:
            self.unet = unet

        def __call__(self, *given: torch.Tensor) -> Any:
            return self.unet(*given)

    pipe = Pipeline(Small())
    ov_backend.accelerate(pipe, strict())
    pipe(*inputs())
    lives = Lives(pipe.unet)
    pipe.unet = Small()
    pipe(*inputs())
    assert eventually(lambda: not lives.left()), "the part that another took the place of"
    lives = Lives(pipe.unet)
    assert lives.left() == ALIVE
    assert "forward" in vars(pipe.unet), "without the handle, too, the pipeline's new parts are accelerated"
    del pipe
    assert eventually(lambda: not lives.left())
