"""Live previews in the middle of a generation, by the page's thread or by the generation's own: none waits for a compile."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.hosts.webui.conftest import ALL, TITLE, arguments, before_every_step, engine_stats, ran, ran_text
from tests.hosts.webui.test_other_networks import Upscaler, long

__all__ = ["long"]
#: Sides that no other test makes.
SIDES = {"the page's thread": 56, "the generation's own thread": 72}


@pytest.fixture(params=SIDES)
def previewed(request: pytest.FixtureRequest, host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a preview by a function, as the WebUI makes it."""
    common = sys.modules["modules.sd_samplers_common"]
    monkeypatch.setattr(common, "sample_to_image", lambda make: make(), raising=False)

    def in_another_thread(make: Any) -> Any:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(torch.inference_mode()(make)()))
        thread.start()
        thread.join()
        return results[0]

    own = request.param == "the generation's own thread"
    make = (lambda function: common.sample_to_image(function)) if own else in_another_thread  # type: ignore[attr-defined]
    return SimpleNamespace(make=make, side=SIDES[request.param])


def decoder_counts() -> tuple[int, int]:
    """How often a VAE's decoder was compiled, and was answered."""
    stats = engine_stats().get("vae_decode", {"compiles": 0, "calls": 0})
    return stats["compiles"], stats["calls"]


def test_a_preview_is_pytorchs_until_its_network_is_compiled(host: SimpleNamespace, previewed: Any) -> None:
    counts: list[tuple[int, int]] = []
    previews: list[np.ndarray[Any, Any]] = []
    side = previewed.side
    latent = torch.randn(1, 4, side // 2, side // 2, generator=torch.Generator().manual_seed(0))

    def preview(_: Any) -> None:
        previews.append(previewed.make(lambda: host.shared.sd_model.first_stage_model.decode(latent)).numpy())
        counts.append(decoder_counts())

    with before_every_step(preview):
        first = host.processing.generate(TITLE, arguments(), prompt="a cat", width=side, height=side)
        ours = decoder_counts()
        second = host.processing.generate(TITLE, arguments(), prompt="a cat", width=side, height=side)
    steps = len(counts) // 2
    assert len(set(counts[:steps])) == 1, "the previews of the first picture compile and call nothing"
    assert ours[0] == counts[0][0] + 1, "the picture itself does"
    assert decoder_counts()[0] == ours[0]
    assert decoder_counts()[1] > ours[1] + 1, "what is compiled answers the previews, too"
    for result in previews:
        np.testing.assert_allclose(result, previews[0], atol=1e-3)
    assert ran(first) == ran(second) == ran_text(*ALL)


def test_a_previews_own_network_is_pytorchs(host: SimpleNamespace, long: None, previewed: Any) -> None:
    network = Upscaler(seed=11)
    with before_every_step(lambda _: previewed.make(lambda: network(torch.rand(1, 3, 8, 8)))):
        texts = [ran(host.processing.generate(TITLE, arguments(), prompt="a cat")) for _ in range(2)]
    assert texts == [ran_text(*ALL)] * 2
