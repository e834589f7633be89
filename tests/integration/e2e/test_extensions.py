"""Other extensions that change the UNet or the VAE: pictures with and without the script agree (f32), and what answered.

WEBUI_EXTENSIONS names a folder with them: sd-webui-controlnet, sd-webui-freeu, sd-webui-regional-prompter,
multidiffusion-upscaler-for-automatic1111, sd-dynamic-thresholding, sd-webui-cutoff, adetailer (with any detection model of
ultralytics in models/adetailer). ControlNet also needs an SD 1.x checkpoint with "control" in its name whose UNet has twelve
input blocks: its forward expects as many residuals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.e2e.client import WebUI, argument_list, psnr
from tests.integration.e2e.conftest import assert_equal, note
from tests.integration.e2e.extensions import (
    CUTOFF,
    FREEU,
    THRESHOLDING,
    TILED_DIFFUSION,
    Controlled,
    always_on,
    with_lora,
    write_lora,
)
from tests.integration.e2e.helpers import ALL, every_generation, mask_of, need, picture_by_pytorch

BLOCKS = "UNet by its blocks, VAE, text encoder"


@pytest.fixture(autouse=True)
def nothing_is_left(webui: WebUI) -> Any:
    before = webui.fallbacks()
    yield
    assert webui.fallbacks() == before, "no network ran in PyTorch"
    if webui.has("/probe/state"):
        assert webui.probe()["replaced"] == []


def test_freeu(webui: WebUI, compare: Any, sd1: str) -> None:
    compare(BLOCKS, checkpoint=sd1, steps=5, alwayson_scripts=always_on(webui, "FreeU", FREEU))
    compare(ALL, checkpoint=sd1)


def test_regional_prompter(webui: WebUI, compare: Any, sd1: str) -> None:
    of_regions = [True, False, "Matrix", "Columns", "Mask", "Prompt", "1,1", "", False, False, False, "Attention", [False]]
    scripts = always_on(webui, "Regional Prompter", *of_regions, "0", "0", "0", "", "0", "0", False)
    compare(BLOCKS, checkpoint=sd1, prompt="a cat BREAK a red chair", steps=5, alwayson_scripts=scripts)
    compare(ALL, checkpoint=sd1)


def test_tiled_diffusion(webui: WebUI, compare: Any, sd1: str) -> None:
    scripts = always_on(webui, "Tiled Diffusion", *TILED_DIFFUSION)
    compare(ALL, checkpoint=sd1, width=256, height=192, alwayson_scripts=scripts)


def test_tiled_vae(webui: WebUI, compare: Any, sd1: str) -> None:
    scripts = always_on(webui, "Tiled VAE", True, 256, 32, False, True, True, False)
    expected = "UNet, VAE by its blocks, text encoder"
    compare(expected, checkpoint=sd1, width=384, height=384, steps=2, alwayson_scripts=scripts)
    compare(ALL, checkpoint=sd1)


def test_dynamic_thresholding(webui: WebUI, compare: Any, sd1: str) -> None:
    scripts = always_on(webui, "Dynamic Thresholding (CFG Scale Fix)", *THRESHOLDING)
    compare(ALL, checkpoint=sd1, cfg_scale=12, alwayson_scripts=scripts)


def test_cutoff(webui: WebUI, compare: Any, sd1: str) -> None:
    scripts = always_on(webui, "Cutoff", *CUTOFF)
    compare(ALL, checkpoint=sd1, prompt="a red chair", alwayson_scripts=scripts)


def test_adetailers_second_pass(webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    """It runs without the script that is chosen, so only the setting for every generation reaches it."""
    models = webui.api("/adetailer/v1/ad_model")["ad_model"] if webui.has("/adetailer/v1/ad_model") else []
    detector = need(next((name for name in models if name.endswith(".pt")), None), "detection model (*.pt) in models/adetailer")
    # everything that may be something, together: the second pass draws nearly the whole picture
    second = {"ad_model": detector, "ad_confidence": 0.0, "ad_mask_merge_invert": "Merge", "ad_inpaint_only_masked": False}
    fields = {"checkpoint": sd1, "alwayson_scripts": always_on(webui, "ADetailer", True, False, second)}
    plain, off = webui.generate(checkpoint=sd1), webui.generate(**fields)
    assert psnr(plain.images[0], off.images[0]) < 40, "the second pass changes nothing"
    with every_generation(webui):
        webui.generate(checkpoint=sd1)
        before = _calls(webui)
        webui.generate(checkpoint=sd1)
        of_one_pass = _calls(webui) - before
        on = webui.generate(**fields)
    note(request.node.name, off.images, on)
    assert_equal(off.images, on.images)
    assert on.ran == ALL or (on.ran.startswith(f"{ALL}, ") and on.ran.count(", ") == ALL.count(", ") + 1)  # the detector
    assert _calls(webui) - before > 2 * of_one_pass, "OpenVINO answers the second pass too"


def _calls(webui: WebUI) -> int:
    return int(webui.api("/openvino/status")["networks"]["unet"]["calls"])


@pytest.fixture
def controlled(webui: WebUI, tmp_path: Path) -> Controlled:
    return Controlled(webui, tmp_path, need(webui.checkpoint("control"), "SD 1.x checkpoint with 'control' in its name"))


@pytest.fixture
def controlled_xl(webui: WebUI, tmp_path: Path) -> Controlled:
    return Controlled(webui, tmp_path, need(webui.checkpoint("xl"), "SDXL checkpoint"))


def on_and_back(webui: WebUI, compare: Any, expected: str, fields: dict[str, Any]) -> None:
    """Without the extension, with it, and without it again, which must be as before."""
    plain = {"checkpoint": fields["checkpoint"], "steps": fields["steps"]}
    before, _ = compare(ALL, **plain)
    with_control, _ = compare(expected, **fields)
    if with_control.images[0].shape == before.images[0].shape:
        assert psnr(before.images[0], with_control.images[0]) < 40, "the extension changes nothing"
    after, _ = compare(ALL, **plain)
    assert psnr(before.images[0], after.images[0]) == float("inf")


def test_controlnet_and_back(webui: WebUI, compare: Any, controlled: Controlled) -> None:
    fields = controlled.fields(controlled.unit())
    on_and_back(webui, compare, BLOCKS, fields)
    compare(BLOCKS, **fields)
    networks = webui.api("/openvino/status")["networks"]
    assert networks["controlnet"]["fallbacks"] == networks["controlnet"]["by_blocks"] == {}


def test_two_controlnets(webui: WebUI, compare: Any, controlled: Controlled) -> None:
    units = [controlled.unit(), controlled.unit("other", seed=1, weight=0.6)]
    both, _ = compare(BLOCKS, **controlled.fields(*units))
    one, _ = compare(BLOCKS, **controlled.fields(units[0]))
    assert psnr(both.images[0], one.images[0]) < 40, "the second unit changes nothing"
    on_and_back(webui, compare, BLOCKS, controlled.fields(*reversed(units)))


def test_controlnet_with_hires_fix(webui: WebUI, compare: Any, controlled: Controlled) -> None:
    hires = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "hr_second_pass_steps": 3, "denoising_strength": 0.7}
    units = [controlled.unit(), controlled.unit("other", seed=1, hr_option="High res only")]
    on_and_back(webui, compare, BLOCKS, controlled.fields(*units, **hires))


@pytest.mark.parametrize("fill", [0, 1, 2])
def test_controlnet_with_inpainting(webui: WebUI, compare: Any, controlled: Controlled, fill: int) -> None:
    picture = picture_by_pytorch(webui, controlled.checkpoint)
    inpainting = {"init_images": [picture], "mask": mask_of(picture), "denoising_strength": 0.8, "inpainting_fill": fill}
    compare(BLOCKS, **controlled.fields(controlled.unit(), **inpainting))


@pytest.mark.parametrize("mode", ["Balanced", "My prompt is more important", "ControlNet is more important"])
def test_controlnets_modes(compare: Any, controlled: Controlled, mode: str) -> None:
    compare(BLOCKS, **controlled.fields(controlled.unit(control_mode=mode)))


def test_t2i_adapter(webui: WebUI, compare: Any, controlled: Controlled) -> None:
    on_and_back(webui, compare, BLOCKS, controlled.fields(controlled.unit("adapter", adapter=True)))


def test_t2i_adapter_with_controlnet(compare: Any, controlled: Controlled) -> None:
    compare(BLOCKS, **controlled.fields(controlled.unit("adapter", adapter=True), controlled.unit()))


def test_reference_only(webui: WebUI, compare: Any, controlled: Controlled) -> None:
    fields = controlled.fields(controlled.unit(module="reference_only"))
    on_and_back(webui, compare, BLOCKS, fields)
    on_and_back(webui, compare, BLOCKS, controlled.fields(controlled.unit()))


def test_controlnet_with_freeu(webui: WebUI, compare: Any, controlled: Controlled) -> None:
    fields = controlled.fields(controlled.unit())
    scripts = {**fields["alwayson_scripts"], **always_on(webui, "FreeU", FREEU)}
    compare(BLOCKS, **{**fields, "alwayson_scripts": scripts})


@pytest.mark.parametrize("first, last", [(0.3, 0.8), (0.0, 0.5), (0.5, 1.0)])
def test_controlnet_for_a_part_of_the_steps(compare: Any, controlled: Controlled, first: float, last: float) -> None:
    compare(BLOCKS, **controlled.fields(controlled.unit(guidance_start=first, guidance_end=last)))


def test_controlnet_with_a_lora(webui: WebUI, compare: Any, controlled: Controlled, tmp_path: Path) -> None:
    name = write_lora(webui, tmp_path)
    fields = controlled.fields(controlled.unit())
    without, _ = compare(BLOCKS, **fields)
    for strength in (1.0, 0.4):
        off, _ = compare(BLOCKS, **fields, prompt=with_lora(name, strength))
        assert psnr(without.images[0], off.images[0]) < 40, "the LoRA changes nothing"
    compare(ALL, checkpoint=controlled.checkpoint, steps=4, prompt=with_lora(name))
    on_and_back(webui, compare, BLOCKS, {**fields, "prompt": with_lora(name)})


def test_controlnet_of_sdxl(webui: WebUI, compare: Any, controlled_xl: Controlled) -> None:
    fields = controlled_xl.fields(controlled_xl.unit("xl"))
    on_and_back(webui, compare, BLOCKS, fields)
    compare(BLOCKS, **fields, width=192)
    networks = webui.api("/openvino/status")["networks"]
    companions = {name: stats for name, stats in networks.items() if name.startswith("controlnet")}
    assert any(stats["calls"] for stats in companions.values())
    assert all(stats["fallbacks"] == stats["by_blocks"] == {} for stats in companions.values())


def test_two_controlnets_of_sdxl_with_a_lora(webui: WebUI, compare: Any, controlled_xl: Controlled, tmp_path: Path) -> None:
    other = {"weight": 0.6, "control_mode": "ControlNet is more important"}
    units = [controlled_xl.unit("xl"), controlled_xl.unit("xl-other", seed=1, **other)]
    prompt = with_lora(write_lora(webui, tmp_path, "convolutions"))
    on_and_back(webui, compare, BLOCKS, controlled_xl.fields(*units, prompt=prompt))


def test_the_panel_counts_blocks_as_one_network(webui: WebUI, controlled: Controlled) -> None:
    webui.accelerated(argument_list("f32"), **controlled.fields(controlled.unit()))
    status = webui.api("/openvino/status")
    rows = [row for row in status["compiled"] if row["label"].startswith("UNet") and row["label"].endswith("by its blocks")]
    assert 1 <= len(rows) < 0.2 * sum(stats["held"] for name, stats in status["networks"].items() if name.startswith("unet"))
