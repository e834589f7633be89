"""What an accelerated model leaves behind when it is deleted: nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ov_backend
from tests.helpers.lifetimes import ALIVE, Lives
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
