"""The families of networks that diffusers has: the pictures are PyTorch's, and the table in docs/models.md is right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ov_backend
from ov_backend import Settings

pytest.importorskip("diffusers")

from tests.helpers.diffusers_families import FAMILIES
from tests.helpers.extent import some

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
#: Where PyTorch's time goes, in any network.
_HEAVY = ("convolution", "linear", "mm", "bmm", "scaled_dot_product_attention", "native_layer_norm", "native_group_norm")
PART = ("LoRAs of PEFT", "Flux")


def rows() -> dict[str, list[str]]:
    """The table's rows by family: networks, their graphs, and how many heavy operators PyTorch has run."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in lines if name in FAMILIES}


def in_pytorch(draw: Callable[[], Any]) -> int:
    """How many products, convolutions and normalisations PyTorch runs itself for a picture."""
    with torch.autograd.profiler.profile() as profile:
        draw()
    return sum(event.name.removeprefix("aten::") in _HEAVY for event in profile.function_events)


def test_every_family_has_a_row() -> None:
    assert rows().keys() == FAMILIES.keys()


def test_the_list_of_an_adapter_s_features_is_emptied_as_by_pytorch(strict: Callable[..., Settings]) -> None:
    pipe, draw = FAMILIES["T2I-Adapter"]().pipe, torch.Generator().manual_seed(3)
    features = pipe.adapter(torch.rand(1, 3, 32, 32, generator=draw))
    latents = torch.randn(1, 4, 16, 16, generator=draw)
    text = torch.randn(1, 5, pipe.unet.config.cross_attention_dim, generator=draw)

    def call() -> tuple[torch.Tensor, int]:
        given = list(features)
        result = pipe.unet(latents, torch.tensor(5), text, down_intrablock_additional_residuals=given).sample
        return result, len(given)

    expected, left = call()
    assert left < len(features)
    with ov_backend.accelerate({"unet": pipe.unet}, strict(model_caching=False)) as accelerated:
        for answer, still in (call(), call()):
            torch.testing.assert_close(answer, expected, rtol=1e-3, atol=1e-4)
            assert still == left
        assert accelerated.stats()["unet"]["calls"] == 2


def test_another_strength_of_a_controlnet_compiles_nothing_and_is_right(strict: Callable[..., Settings]) -> None:
    controlnet, draw = FAMILIES["ControlNet"]().pipe.controlnet, torch.Generator().manual_seed(3)
    latents, hint = torch.randn(2, 4, 8, 12, generator=draw), torch.rand(2, 3, 16, 24, generator=draw)
    text = torch.randn(2, 5, controlnet.config.cross_attention_dim, generator=draw)

    def call(strength: float) -> list[torch.Tensor]:
        result = controlnet(latents, torch.tensor(5), text, hint, conditioning_scale=strength)
        return [*result.down_block_res_samples, result.mid_block_res_sample]

    expected = [call(strength) for strength in (1.0, 0.5)]
    assert all(2 * float(half.norm()) == pytest.approx(float(whole.norm()), rel=1e-4) for whole, half in zip(*expected))
    with ov_backend.accelerate({"controlnet": controlnet}, strict(model_caching=False)) as accelerated:
        for strength, residuals in zip((1.0, 0.5), expected):
            for answer, want in zip(call(strength), residuals, strict=True):
                torch.testing.assert_close(answer, want, rtol=1e-3, atol=1e-4)
        stats = accelerated.stats()["controlnet"]
    assert (stats["calls"], stats["captures"], stats["compiles"], stats["fallbacks"]) == (2, 1, 1, {})


@pytest.mark.parametrize("name", some(PART, FAMILIES))
def test_family(name: str, strict: Callable[..., Settings]) -> None:
    try:
        family = FAMILIES[name]()
    except (ImportError, AttributeError, TypeError) as missing:
        pytest.skip(f"not in the packages installed here: {missing}")
    family.pipe.set_progress_bar_config(disable=True)
    expected = [draw() for draw in family.draws]
    with ov_backend.accelerate(family.pipe, strict(model_caching=False)) as accelerated:
        pictures = [draw() for draw in family.draws]
        left = in_pytorch(family.draws[-1])
        stats = accelerated.stats()
    for picture, want in zip(pictures, expected):
        assert np.linalg.norm(picture - want) <= 1e-3 * np.linalg.norm(want)
    assert min(want.std() for want in expected) > 0.02, "a flat picture would prove nothing"
    assert not any(values["fallbacks"] for values in stats.values())
    graphs = Counter({network: values["captures"] for network, values in stats.items() if values["calls"]})
    networks, stated_left, *_ = rows()[name]
    assert {network: int(count) for network, count in re.findall(r"`(\w+)` (\d+)", networks)} == graphs
    assert int(stated_left) == left
