"""SD3: pictures with and without the script agree (f32), and all of its networks run in OpenVINO.

It needs a checkpoint with "sd3" in its name and both CLIP encoders in the file, whose sizes the WebUI fixes; the transformer may
be small. T5 is off, as it is by default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.e2e.client import WebUI, psnr
from tests.integration.e2e.extensions import beside_weights, use, with_lora, write_lora
from tests.integration.e2e.helpers import ALL, host_of, mask_of, need, need_probe


@pytest.fixture
def fields(webui: WebUI) -> Any:
    """The fields of a generation with SD3; every network ran in OpenVINO in the end."""
    need(host_of(webui) != "reForge", "SD3: its loader fails at every such checkpoint")
    before = webui.fallbacks()
    checkpoint = need(webui.checkpoint("sd3"), "checkpoint with 'sd3' in its name")
    no_preview = {"override_settings": {"live_previews_enable": False}}  # its network would be downloaded
    # Forge's automatic schedule for SD3 comes to zero a step early, and its sampler divides by it
    yield {"checkpoint": checkpoint, "sampler_name": "Euler", "scheduler": "Simple", **no_preview}
    assert not webui.fallbacks() - before, "no network ran in PyTorch"
    if webui.has("/probe/state"):
        assert webui.probe()["replaced"] == []


def test_sizes_and_back(webui: WebUI, compare: Any, fields: dict[str, Any]) -> None:
    square, _ = compare(ALL, **fields)
    compare(ALL, **fields, width=192)
    compiled = webui.api("/openvino/status")["networks"]["unet"]["compiles"]
    again, _ = compare(ALL, **fields)
    assert psnr(square.images[0], again.images[0]) == float("inf")
    assert webui.api("/openvino/status")["networks"]["unet"]["compiles"] == compiled


def test_img2img_and_inpainting(webui: WebUI, compare: Any, fields: dict[str, Any]) -> None:
    picture = webui.generate(**fields, seed=2).images[0]
    compare(ALL, **fields, init_images=[picture], denoising_strength=0.6)
    compare(ALL, **fields, init_images=[picture], mask=mask_of(picture), denoising_strength=0.8)


def test_a_batch_and_another_prompt(compare: Any, fields: dict[str, Any]) -> None:
    off, _ = compare(ALL, **fields, batch_size=2)
    assert psnr(off.images[0], off.images[1]) < 60, "the pictures have different seeds"
    compare(ALL, **fields, prompt="a (red:1.3) house by the sea", negative_prompt="blurred")


def test_hires_fix(compare: Any, fields: dict[str, Any]) -> None:
    hires = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "hr_second_pass_steps": 2, "denoising_strength": 0.7}
    compare(ALL, **fields, **hires)


def test_a_small_t5_encoder(webui: WebUI) -> None:
    """T5 at its true size would not fit; the WebUI's own class is tried at a small one."""
    need_probe(webui)
    answer = webui.api("/probe/t5", {})
    assert answer["calls"] == 2
    assert answer["error"] <= 1e-3


def test_a_lora_and_its_strength(webui: WebUI, compare: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    """The WebUI knows names of SD3's attention in diffusers' files; of the prompt's side only the last projection."""
    before, _ = compare(ALL, **fields)
    use(webui, fields["checkpoint"])
    name = write_lora(webui, tmp_path)
    for strength in (1.0, 0.5):
        off, _ = compare(ALL, **fields, prompt=with_lora(name, strength))
        assert psnr(before.images[0], off.images[0]) < 50, "the LoRA changes nothing"
    after, _ = compare(ALL, **fields)
    assert psnr(before.images[0], after.images[0]) == float("inf")


def test_a_lora_beside_the_weights(webui: WebUI, compare: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    use(webui, fields["checkpoint"])
    prompt = with_lora(write_lora(webui, tmp_path))
    beside = {**fields, "override_settings": {**fields["override_settings"], "lora_functional": True}}
    compare(beside_weights(webui, "UNet by its blocks, VAE, text encoder"), **beside, prompt=prompt)
    compare(ALL, **fields, prompt=prompt)
