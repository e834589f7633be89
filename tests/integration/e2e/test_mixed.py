"""Generations with several extensions at once, in a random order: equal with and without the script, and nothing is left behind.

WEBUI_MIXED_SEED changes what is drawn; the seed of a run stands in its rows. WEBUI_MIXED_FROM goes on with a later generation,
WEBUI_MIXED_GENERATIONS ends after another number than 30. In Forge and reForge the extensions are those that come with them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from tests.integration.e2e.client import PROMPT, WebUI, psnr
from tests.integration.e2e.conftest import assert_equal, note
from tests.integration.e2e.extensions import (
    BUILT_IN,
    CUTOFF,
    FREEU,
    THRESHOLDING,
    TILED_DIFFUSION,
    Controlled,
    always_on,
    hint,
    write_lora,
)
from tests.integration.e2e.helpers import ALL, host_of, loras, need

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
        checkpoint: what they are made with.
        features: the fields that each of the extensions adds to a request, by name.
        loras: names of LoRAs.
        draw: where the choices come from.
    """

    def __init__(self, checkpoint: str, features: dict[str, dict[str, Any]], loras: list[str], draw: random.Random) -> None:
        self.checkpoint, self._features, self._loras, self._draw = checkpoint, features, loras, draw

    def next(self) -> tuple[str, dict[str, Any]]:
        """What is on in the next generation, and its fields."""
        width, height = self._draw.choice(SIZES)
        features = [name for name in self._features if self._draw.random() < 0.3]
        if "two ControlNets" in features and "ControlNet" in features:
            features.remove("ControlNet")
        if {"tiled diffusion", "hires fix"} <= set(features) and any("ControlNet" in name for name in features):
            features.remove("hires fix")  # these three fail together in the WebUI by itself
        tag = f" <lora:{self._draw.choice(self._loras)}:{self._draw.choice((1.0, 0.5))}>" if "LoRA" in features else ""
        fields = {"width": width, "height": height, "sampler_name": self._draw.choice(SAMPLERS), "seed": self._draw.randrange(99)}
        fields |= {"prompt": PROMPT + tag, "alwayson_scripts": {}, "override_settings": {}, "steps": 3}
        for name in features:
            for field, value in self._features[name].items():
                fields[field] = {**fields[field], **value} if isinstance(value, dict) else value
        return " + ".join(features) or "nothing", {**fields, "checkpoint": self.checkpoint}


def mix_of_extensions(webui: WebUI, folder: Path, draw: random.Random) -> Mix:
    """Of extensions for AUTOMATIC1111's WebUI, with files that are written for them."""
    controlled = Controlled(webui, folder, need(webui.checkpoint("control"), "SD 1.x checkpoint with 'control' in its name"))
    loras = [write_lora(webui, folder, kind) for kind in ("lora", "convolutions", "loha")]
    units = [controlled.unit(), controlled.unit("other", seed=1, weight=0.6)]
    scripts = {
        "ControlNet": always_on(webui, "ControlNet", units[0]),
        "two ControlNets": always_on(webui, "ControlNet", *units),
        "FreeU": always_on(webui, "FreeU", FREEU),
        "tiled diffusion": always_on(webui, "Tiled Diffusion", *TILED_DIFFUSION),
        "thresholding": always_on(webui, "Dynamic Thresholding (CFG Scale Fix)", *THRESHOLDING),
        "Cutoff": always_on(webui, "Cutoff", *CUTOFF),
    }
    features = {name: {"alwayson_scripts": script} for name, script in scripts.items()}
    features |= {"HyperTile": {"override_settings": HYPERTILE}, "ToMe": {"override_settings": TOME}, "LoRA": {}}
    return Mix(controlled.checkpoint, {**features, "hires fix": HIRES}, loras, draw)


def mix_of_built_in(webui: WebUI, host: str, draw: random.Random) -> Mix:
    """Of what Forge or reForge brings along; a ControlNet and LoRAs are those in its folders."""
    controlnets = [name for name in webui.api("/controlnet/model_list")["model_list"] if name != "None"]
    scripts = {name: always_on(webui, *script) for name, script in BUILT_IN[host].items()}
    if controlnets:
        unit = {"enabled": True, "module": "None", "model": controlnets[0], "weight": 1.0, "image": hint()}
        scripts["ControlNet"] = always_on(webui, "ControlNet", unit)
    features = {name: {"alwayson_scripts": script} for name, script in scripts.items()}
    features |= {"ToMe": {"override_settings": TOME}, "hires fix": HIRES, **({"LoRA": {}} if loras(webui) else {})}
    return Mix(need(webui.checkpoint("sd1"), "SD 1.x checkpoint"), features, loras(webui), draw)


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
    host, draw = need(host_of(webui), "probe extension"), random.Random(seed)
    mix = mix_of_built_in(webui, host, draw) if host in BUILT_IN else mix_of_extensions(webui, tmp_path, draw)
    plain = {"checkpoint": mix.checkpoint, "steps": 4}
    before, fallbacks = webui.generate(**plain), webui.fallbacks()
    for number in range(int(os.environ.get("WEBUI_MIXED_GENERATIONS", "30"))):
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
        assert [part.partition(" by its")[0] for part in on.ran.split(", ")] == ALL.split(", "), features
        assert difference(by_them, by_us) == {}, f"left behind after {features}"
    assert not webui.fallbacks() - fallbacks, "no network ran in PyTorch"
    after = webui.generate(**plain)
    assert (after.images[0] == before.images[0]).all()
    left, on = state_of(webui), webui.accelerated(**plain)
    assert difference(left, state_of(webui)) == {}
    assert_equal(before.images, on.images)
    assert on.ran == ALL
