"""Generations with several extensions at once, in a random order: equal with and without the script, and nothing is left behind.

WEBUI_MIXED_SEED changes what is drawn; the seed of a run stands in its rows. WEBUI_MIXED_FROM goes on with a later generation.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from tests.integration.e2e.client import PROMPT, WebUI, psnr
from tests.integration.e2e.conftest import assert_equal, note
from tests.integration.e2e.extensions import (
    CUTOFF,
    FREEU,
    THRESHOLDING,
    TILED_DIFFUSION,
    Controlled,
    always_on,
    write_lora,
)
from tests.integration.e2e.helpers import need

GENERATIONS = 30
SIZES = ((128, 128), (192, 128))
SAMPLERS = ("Euler a", "Euler", "DPM++ 2M", "DPM++ SDE", "Heun", "DDIM", "DPM2 a", "LMS")
HYPERTILE = {"hypertile_enable_unet": True, "hypertile_max_tile_unet": 128}
TOME = {"token_merging_ratio": 0.4}
#: In dB, in f32. Tokens are merged by how similar they are, and of two similarities that are nearly equal rounding decides which
#: is larger. Seen: 29 dB with all networks, 46 with the UNet in PyTorch and the text encoder alone in OpenVINO.
LEAST_PSNR_OF_TOKEN_MERGING = 25.0
HIRES = {"enable_hr": True, "hr_scale": 1.25, "hr_upscaler": "Latent", "hr_second_pass_steps": 2, "denoising_strength": 0.7}


class Mix:
    """Draws generations, each with some of the extensions.

    Args:
        controlled: writes ControlNets.
        loras: names of LoRAs.
        draw: where the choices come from.
    """

    def __init__(self, controlled: Controlled, loras: list[str], draw: random.Random) -> None:
        webui, self._draw, self._controlled, self._loras = controlled.webui, draw, controlled, loras
        units = [controlled.unit(), controlled.unit("other", seed=1, weight=0.6)]
        self._scripts: dict[str, dict[str, Any]] = {
            "ControlNet": always_on(webui, "ControlNet", units[0]),
            "two ControlNets": always_on(webui, "ControlNet", *units),
            "FreeU": always_on(webui, "FreeU", FREEU),
            "tiled diffusion": always_on(webui, "Tiled Diffusion", *TILED_DIFFUSION),
            "thresholding": always_on(webui, "Dynamic Thresholding (CFG Scale Fix)", *THRESHOLDING),
            "Cutoff": always_on(webui, "Cutoff", *CUTOFF),
        }

    def next(self) -> tuple[str, dict[str, Any]]:
        """What is on in the next generation, and its fields."""
        width, height = self._draw.choice(SIZES)
        features = [name for name in (*self._scripts, "HyperTile", "ToMe", "LoRA", "hires fix") if self._draw.random() < 0.3]
        if "two ControlNets" in features and "ControlNet" in features:
            features.remove("ControlNet")
        if {"tiled diffusion", "hires fix"} <= set(features) and any("ControlNet" in name for name in features):
            features.remove("hires fix")  # these three fail together in the WebUI by itself
        scripts: dict[str, Any] = {}
        for name in features:
            scripts.update(self._scripts.get(name, {}))
        tag = f" <lora:{self._draw.choice(self._loras)}:{self._draw.choice((1.0, 0.5))}>" if "LoRA" in features else ""
        settings = {**(HYPERTILE if "HyperTile" in features else {}), **(TOME if "ToMe" in features else {})}
        fields = {"width": width, "height": height, "sampler_name": self._draw.choice(SAMPLERS), "seed": self._draw.randrange(99)}
        fields |= {"prompt": PROMPT + tag, "alwayson_scripts": scripts, "override_settings": settings, "steps": 3}
        more = HIRES if "hires fix" in features else {}
        return " + ".join(features) or "nothing", {**fields, **more, "checkpoint": self._controlled.checkpoint}


def state_of(webui: WebUI) -> dict[str, str]:
    """Everything that could be left behind: functions, attributes, hooks, weights and settings."""
    state: dict[str, str] = webui.api("/probe/everything")
    return state


def difference(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What differs between two states, by name."""
    names = sorted(before.keys() | after.keys())
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def test_mixed_generations(webui: WebUI, tmp_path: Path) -> None:
    seed = int(os.environ.get("WEBUI_MIXED_SEED", "15"))
    controlled = Controlled(webui, tmp_path, need(webui.checkpoint("control"), "SD 1.x checkpoint with 'control' in its name"))
    loras = [write_lora(webui, tmp_path, kind) for kind in ("lora", "convolutions", "loha")]
    mix = Mix(controlled, loras, random.Random(seed))
    plain = {"checkpoint": controlled.checkpoint, "steps": 4}
    before, fallbacks = webui.generate(**plain), webui.fallbacks()
    for number in range(GENERATIONS):
        features, fields = mix.next()
        if number + 1 < int(os.environ.get("WEBUI_MIXED_FROM", "1")):
            continue
        off, by_them = webui.generate(**fields), state_of(webui)
        on, by_us = webui.accelerated(**fields), state_of(webui)
        note(f"mixed {seed}: {number + 1:2d} {features}", off.images, on)
        if "ToMe" in features:  # rounding may decide otherwise which of two tokens are merged
            assert min(map(psnr, off.images, on.images)) >= LEAST_PSNR_OF_TOKEN_MERGING, features
        else:
            assert_equal(off.images, on.images)
        assert not {"PyTorch", "partly"} & set(on.ran.replace(",", "").split()), features
        assert difference(by_them, by_us) == {}, f"left behind after {features}"
    assert not webui.fallbacks() - fallbacks, "no network ran in PyTorch"
    after = webui.generate(**plain)
    assert (after.images[0] == before.images[0]).all()
    left, on = state_of(webui), webui.accelerated(**plain)
    assert difference(left, state_of(webui)) == {}
    assert_equal(before.images, on.images)
