"""``Accelerated.precompile`` without a pipeline: cancelled, interrupted, and with nothing to call."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import ov_backend
from ov_backend import Settings
from ov_backend.core.errors import SettingsError
from ov_backend.pipelines.precompile import Size
from tests.helpers.small import Slow, Small, inputs

Strict = Callable[..., Settings]


def test_what_was_begun_before_a_cancel_is_kept(strict: Strict) -> None:
    module = Slow(seconds=0.8)
    with ov_backend.accelerate({"net": module}, strict()) as accelerated:
        start = time.monotonic()

        def generate(size: Size) -> None:
            module(*inputs(size[1], size[0], size[2]))

        ready = accelerated.precompile([(8, 8), (16, 8)], generate=generate, cancel=lambda: time.monotonic() - start > 0.2)
        assert ready == []
        accelerated.engine.resources.worker.wait()
        assert accelerated.stats()["net"]["held"] == 1
        assert accelerated.precompile([(8, 8)], generate=generate) == [(8, 8, 1)]
        assert accelerated.stats()["net"]["compiles"] == 1


def test_a_host_that_takes_an_interruption_for_the_end_is_not_believed(strict: Strict) -> None:
    module = Small()
    with ov_backend.accelerate({"net": module}, strict()) as accelerated:
        cancelled: list[bool] = []

        def generate(size: Size) -> None:
            module(*inputs(size[1], size[0]))
            cancelled.append(True)

        assert accelerated.precompile([(8, 8), (16, 8)], generate=generate, cancel=lambda: bool(cancelled)) == []


@pytest.mark.parametrize("named", [True, False])
def test_without_a_pipeline_it_says_what_is_missing(named: bool, strict: Strict) -> None:
    class Holder:
        unet = Small()

    target = {"net": Small()} if named else Holder()
    with (
        ov_backend.accelerate(target, strict()) as accelerated,
        pytest.raises(SettingsError, match="is no pipeline that makes pictures of a prompt; give generate="),
    ):
        accelerated.precompile([(8, 8)])
