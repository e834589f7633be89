"""Other extensions that change the UNet or the VAE: pictures with and without the script agree (f32), and what answered.

WEBUI_EXTENSIONS names a folder with them: sd-webui-controlnet, sd-webui-freeu, sd-webui-regional-prompter,
multidiffusion-upscaler-for-automatic1111, sd-dynamic-thresholding, sd-webui-cutoff. ControlNet also needs an SD 1.x checkpoint
with "control" in its name whose UNet has twelve input blocks: its forward expects as many residuals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.e2e.client import WebUI, argument_list, psnr, to_png
from tests.integration.e2e.helpers import ALL, need, need_probe

BLOCKS = "UNet by its blocks, VAE, text encoder"


@pytest.fixture(autouse=True)
def nothing_is_left(webui: WebUI) -> Any:
    before = webui.fallbacks()
    yield
    assert webui.fallbacks() == before, "no network ran in PyTorch"
    if webui.has("/probe/state"):
        assert webui.probe()["replaced"] == []


def always_on(webui: WebUI, title: str, *arguments: Any) -> dict[str, Any]:
    names = {script["name"] for script in webui.api("/sdapi/v1/script-info")}
    need(title.lower() in names, f"extension {title!r} (WEBUI_EXTENSIONS names a folder with it)")
    return {title: {"args": list(arguments)}}


def test_freeu(webui: WebUI, compare: Any, sd1: str) -> None:
    stages = [{"backbone_factor": 1.2, "skip_factor": 0.9}, {"backbone_factor": 1.4, "skip_factor": 0.2}]
    state = {"enable": True, "transition_smoothness": 0.5, "version": "1", "stage_infos": stages}
    compare(BLOCKS, checkpoint=sd1, steps=5, alwayson_scripts=always_on(webui, "FreeU", state))
    compare(ALL, checkpoint=sd1)


def test_regional_prompter(webui: WebUI, compare: Any, sd1: str) -> None:
    of_regions = [True, False, "Matrix", "Columns", "Mask", "Prompt", "1,1", "", False, False, False, "Attention", [False]]
    scripts = always_on(webui, "Regional Prompter", *of_regions, "0", "0", "0", "", "0", "0", False)
    compare(BLOCKS, checkpoint=sd1, prompt="a cat BREAK a red chair", steps=5, alwayson_scripts=scripts)
    compare(ALL, checkpoint=sd1)


def test_tiled_diffusion(webui: WebUI, compare: Any, sd1: str) -> None:
    tiles = [128, 128, 16, 16, 8, 2]
    no_inversion = ["None", 1, False, 10, 1, 1, 64]
    scripts = always_on(webui, "Tiled Diffusion", True, "MultiDiffusion", False, True, *tiles, *no_inversion, *[False] * 4)
    compare(ALL, checkpoint=sd1, width=256, height=192, alwayson_scripts=scripts)


def test_tiled_vae(webui: WebUI, compare: Any, sd1: str) -> None:
    scripts = always_on(webui, "Tiled VAE", True, 256, 32, False, True, True, False)
    expected = "UNet, VAE by its blocks, text encoder"
    compare(expected, checkpoint=sd1, width=384, height=384, steps=2, alwayson_scripts=scripts)
    compare(ALL, checkpoint=sd1)


def test_dynamic_thresholding(webui: WebUI, compare: Any, sd1: str) -> None:
    values = [True, 7, 0.9, "Constant", 0, "Constant", 0, 4, "enable", "MEAN", "AD", 1]
    scripts = always_on(webui, "Dynamic Thresholding (CFG Scale Fix)", *values)
    compare(ALL, checkpoint=sd1, cfg_scale=12, alwayson_scripts=scripts)


def test_cutoff(webui: WebUI, compare: Any, sd1: str) -> None:
    scripts = always_on(webui, "Cutoff", True, "red", 0.5, True, False, "", "Lerp", False)
    compare(ALL, checkpoint=sd1, prompt="a red chair", alwayson_scripts=scripts)


@pytest.fixture
def controlled(webui: WebUI, tmp_path: Path) -> dict[str, Any]:
    """The fields of a generation with one ControlNet, which has random weights and fits its checkpoint."""
    always_on(webui, "ControlNet")
    need_probe(webui)
    checkpoint = need(webui.checkpoint("control"), "SD 1.x checkpoint with 'control' in its name")
    webui.generate(checkpoint=checkpoint, steps=1, override_settings_restore_afterwards=False)
    webui.api("/probe/controlnet", {"file": str(tmp_path / "e2e-random.safetensors")})
    webui.set_options(control_net_models_path=str(tmp_path))
    models = webui.api("/controlnet/model_list?update=true")["model_list"]
    hint = np.zeros((128, 128, 3), np.uint8)
    hint[30:90, 40:100], hint[::8] = 255, 120
    unit = {"enabled": True, "module": "none", "model": models[0], "weight": 1.0, "image": to_png(hint), "processor_res": 128}
    return {"checkpoint": checkpoint, "steps": 4, "alwayson_scripts": always_on(webui, "ControlNet", unit)}


def test_controlnet_and_back(webui: WebUI, compare: Any, controlled: dict[str, Any]) -> None:
    checkpoint = controlled["checkpoint"]
    before, _ = compare(ALL, checkpoint=checkpoint, steps=4)
    with_control, _ = compare(BLOCKS, **controlled)
    assert psnr(before.images[0], with_control.images[0]) < 40, "the ControlNet changes nothing"
    networks = webui.api("/openvino/status")["networks"]
    assert networks["controlnet"]["fallbacks"] == networks["controlnet"]["by_blocks"] == {}
    after, _ = compare(ALL, checkpoint=checkpoint, steps=4)
    assert psnr(before.images[0], after.images[0]) == float("inf")


def test_controlnet_with_freeu(webui: WebUI, compare: Any, controlled: dict[str, Any]) -> None:
    state = {"enable": True, "version": "1", "stage_infos": [{"backbone_factor": 1.2, "skip_factor": 0.9}]}
    scripts = {**controlled["alwayson_scripts"], **always_on(webui, "FreeU", state)}
    compare(BLOCKS, **{**controlled, "alwayson_scripts": scripts})


def test_controlnet_for_a_part_of_the_steps(webui: WebUI, compare: Any, controlled: dict[str, Any]) -> None:
    (unit,) = controlled["alwayson_scripts"]["ControlNet"]["args"]
    unit.update(guidance_start=0.3, guidance_end=0.8, control_mode="ControlNet is more important")
    compare(BLOCKS, **controlled)


def test_the_panel_counts_blocks_as_one_network(webui: WebUI, controlled: dict[str, Any]) -> None:
    webui.accelerated(argument_list("f32"), **controlled)
    status = webui.api("/openvino/status")
    rows = [row for row in status["compiled"] if row["label"].startswith("UNet") and row["label"].endswith("by its blocks")]
    assert 1 <= len(rows) < 0.2 * sum(stats["held"] for name, stats in status["networks"].items() if name.startswith("unet"))
