"""A second process, with another seed of hashes, finds the graphs of known networks by their code: it captures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ov_backend import Settings
from tests.helpers.alone import alone
from tests.helpers.small import engine_for
from tests.soundness.real import REAL, missing

#: Split ones (T5's buckets, FreeU's Fourier transform) are left out: their parts are found by their texts after a capture.
NAMES = (
    *("ldm UNet", "ldm VAE decoder", "CLIP text encoder", "diffusers UNet of SDXL", "diffusers UNet with a PEFT LoRA"),
    *("a network with PEFT adapters", "diffusers SD3 transformer", "WebUI UNet with LoRAs", "WebUI UNet with a hypernetwork"),
)


def captures(folder: str, names: tuple[str, ...]) -> dict[str, int]:
    """How many graphs each network captures with the store in a folder."""
    found = {}
    for name in names:
        case = REAL[name]()
        case.module.requires_grad_(False)
        network = engine_for(Settings(precision="f32", cache_dir=folder, fallback="raise"), case.module, case.hooks)
        case.call(network)
        found[name] = network.statistics.captures
        case.finish()
    return found


def test_known_networks_are_captured_once(tmp_path: Path) -> None:
    names = tuple(name for name in NAMES if not missing(name))
    if not names:
        pytest.skip("none of the networks' packages is installed")
    assert captures(str(tmp_path), names) == dict.fromkeys(names, 1)
    assert alone(captures, str(tmp_path), names) == dict.fromkeys(names, 0)
