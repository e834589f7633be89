"""``Accelerated.precompile`` on real pipelines: afterwards a picture of these sizes makes nothing, and is right."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.errors import SettingsError
from ov_backend.pipelines.precompile import Size

pytest.importorskip("diffusers")

from tests.helpers.diffusers_pipelines import tiny
from tests.helpers.small import Slow, Small, inputs
from tests.integration.fidelity.test_pipelines import KINDS, assert_same_picture, draw

Strict = Callable[..., Settings]


def made(accelerated: Any) -> dict[str, tuple[int, int]]:
    """Captures and compiles of every network so far."""
    return {name: (values["captures"], values["compiles"]) for name, values in accelerated.stats().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_of_precompiled_sizes_make_nothing(kind: str, strict: Strict) -> None:
    pipe = tiny(kind)
    cases = [((16, 24), 1), ((16, 24), 2), ((24, 16), 1), ((24, 16), 2)]
    expected = [draw(pipe, size, num_images_per_prompt=batch) for size, batch in cases]
    begun: list[Size] = []
    ready: list[Size] = []
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        before = torch.get_rng_state()
        sizes = [(24, 16), (16, 24)]
        told = accelerated.precompile(sizes, (1, 2), begin=begun.append, done=ready.append)
        assert torch.equal(torch.get_rng_state(), before), "the process's own random numbers go on where they were"
        assert told == begun == ready == [(24, 16, 1), (24, 16, 2), (16, 24, 1), (16, 24, 2)]
        counts = made(accelerated)
        assert counts["unet"] == (4, 4)
        assert not sum(sum(values["fallbacks"].values()) for values in accelerated.stats().values())
        for (size, batch), picture in zip(cases, expected):
            assert_same_picture(draw(pipe, size, num_images_per_prompt=batch), picture)
        assert made(accelerated) == counts


def test_arguments_reach_the_pipeline(strict: Strict) -> None:
    pipe = tiny("sd1")
    with ov_backend.accelerate(pipe, strict()) as accelerated:
        accelerated.precompile([(16, 16)], arguments={"guidance_scale": 1.0})
        counts = made(accelerated)
        draw(pipe, (16, 16), guidance_scale=1.0)
        assert made(accelerated) == counts
        draw(pipe, (16, 16))
        assert made(accelerated)["unet"] == (2, 2), "with guidance it is another graph"


def test_cancel_returns_within_a_second_and_what_was_begun_is_kept(strict: Strict) -> None:
    module = Slow(seconds=1.2)
    with ov_backend.accelerate({"net": module}, strict()) as accelerated:
        start = time.monotonic()

        def generate(size: Size) -> None:
            module(*inputs(size[1], size[0], size[2]))

        ready = accelerated.precompile(
            [(8, 8), (16, 8)], generate=generate, cancel=lambda: time.monotonic() - start > 0.3
        )
        assert ready == []
        accelerated.engine.resources.worker.wait()
        assert accelerated.stats()["net"]["held"] == 1
        assert accelerated.precompile([(8, 8)], generate=generate) == [(8, 8, 1)]
        assert made(accelerated)["net"] == (1, 1)


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
