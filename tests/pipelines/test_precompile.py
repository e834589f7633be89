"""Precompile: nothing is computed, later calls need no compile, and it can be cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable

from ov_backend import Settings, accelerate
from ov_backend.pipelines.precompile import Size, precompile
from tests.helpers.small import Slow, Small, assert_right, engine_for, inputs

Strict = Callable[..., Settings]
SIZES: list[Size] = [(8, 8, 1), (16, 8, 1), (8, 8, 2)]


def test_every_size_is_compiled_and_nothing_is_computed(strict: Strict) -> None:
    module = Small()
    finished: list[Size] = []
    with accelerate({"net": module}, strict()) as accelerated:

        def generate(size: Size) -> None:
            width, height, batch = size
            output = module(*inputs(height, width, batch))
            assert output.shape == (batch, 8, height, width)
            assert not output.any(), "it was computed"

        assert precompile(SIZES, generate, done=finished.append) == SIZES
        assert finished == SIZES
        assert accelerated.stats()["net"]["compiles"] == 3
        reference = Small()
        for width, height, batch in SIZES:
            assert_right(accelerated.engine.networks["net"], reference, *inputs(height, width, batch))
        assert accelerated.stats()["net"]["compiles"] == 3


def test_precompile_is_cancelled_before_the_compile_ends(strict: Strict) -> None:
    module = Slow(seconds=1.2)
    network = engine_for(strict(), module)
    start = time.monotonic()
    ready = precompile(
        SIZES, lambda size: network(*inputs(size[1], size[0], size[2])), cancel=lambda: time.monotonic() - start > 0.3
    )
    assert ready == []
    assert len(network.resources.worker) == 1, "the running compile goes on"
    network.resources.worker.wait()
    assert network.stats()["held"] == 1
    assert not network.statistics.fallbacks


def test_networks_compute_after_a_warm_up(strict: Strict) -> None:
    module = Small()
    network = engine_for(strict(), module)
    assert precompile([(8, 8, 1)], lambda size: network(*inputs())) == [(8, 8, 1)]
    assert_right(network, module, *inputs())
    assert precompile([(8, 8, 1)], lambda size: network(*inputs()), cancel=lambda: True) == []
