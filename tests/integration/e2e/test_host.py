"""The API, always on, other scripts, and leftovers: pictures with the script and without it agree (f32)."""

from __future__ import annotations

import io
import time
import urllib.request
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ov_backend.ui.choices import Choices
from tests.integration.e2e.client import PROMPT, TITLE, WebUI, argument_list, psnr, to_png
from tests.integration.e2e.conftest import MEMORY, assert_equal, note
from tests.integration.e2e.helpers import ALL, LONG, every_generation, need, need_probe, options, picture_by_pytorch, reload_ui

# ---- the panel


def test_a_comparison_makes_the_last_picture_again(webui: WebUI, sd1: str) -> None:
    webui.set_options(sd_model_checkpoint=sd1)
    on = webui.accelerated(enable_hr=True, hr_scale=1.5, hr_upscaler="Latent", denoising_strength=0.5)
    assert on.ran == ALL
    webui.api("/openvino/compare", {"choices": {"precision": "f32"}})
    end = time.monotonic() + 300
    while (job := webui.api("/openvino/status")["job"])["state"] in ("queued", "running"):
        assert time.monotonic() < end, job
        time.sleep(0.5)
    assert job["state"] == "done", job
    assert job["result"]["psnr_db"] is None or job["result"]["psnr_db"] > 40, job
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{webui.url}/openvino/compare/openvino") as answer:
        again = np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB"))
    assert psnr(again, on.images[0]) > 40, "another picture was compared"


# ---- the API


def test_arguments_that_make_no_sense_still_accelerate(webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    off = webui.generate(checkpoint=sd1, cfg_scale=4)  # see test_default_precision
    for arguments in ([], [None], ["no such device!", "f7", "maybe", -1], ["CPU"] * 20, ["CPU", "f32"]):
        on = webui.accelerated(arguments, checkpoint=sd1, cfg_scale=4)
        note(f"{request.node.name} {arguments}"[:60], off.images, on)
        assert on.ran == ALL
        assert psnr(off.images[0], on.images[0]) > 25


def test_the_defaults_listed_by_the_api_accelerate(webui: WebUI, sd1: str) -> None:
    listed = next(s for s in webui.api("/sdapi/v1/script-info") if s["name"] == TITLE.lower() and not s["is_img2img"])
    on = webui.accelerated([argument["value"] for argument in listed["args"]], checkpoint=sd1)
    assert on.ran == ALL


@pytest.mark.parametrize("arguments", [["GPU.7", *argument_list()[1:]], ["CPU", "f16", *argument_list()[2:]], ["NPU"]], ids=str)
def test_bad_device_or_precision_still_gives_the_picture(arguments: list[Any], webui: WebUI, sd1: str) -> None:
    off = webui.generate(checkpoint=sd1)
    on = webui.accelerated(arguments, checkpoint=sd1)
    if on.ran == ALL:
        pytest.skip("this machine has that device or precision")
    assert on.ran == "all in PyTorch"
    assert_equal(off.images, on.images)


@pytest.mark.parametrize("switch", ["unet", "vae", "text_encoder"])
def test_one_network_switched_off(switch: str, webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    off = webui.generate(checkpoint=sd1)
    on = webui.accelerated(argument_list(**{switch: False}), checkpoint=sd1)
    note(request.node.name, off.images, on)
    assert_equal(off.images, on.images)
    assert on.ran == ", ".join(network for network in ALL.split(", ") if network.lower() != switch.replace("_", " "))


def test_infotext_restores_the_arguments(webui: WebUI, sd1: str) -> None:
    """As "Read generation parameters" does: the WebUI's own parser reads the text that it wrote into the picture."""
    values = ["CPU", "f32", True, False, True, False, 700, '{"PERFORMANCE_HINT": "LATENCY"}', "auto"]
    on = webui.accelerated(values, checkpoint=sd1)
    picture = to_png(on.images[0], parameters=on.infotexts[0])
    parameters = webui.api("/sdapi/v1/png-info", {"image": picture})["parameters"]
    assert list(vars(Choices.from_infotext(parameters["OpenVINO"])).values()) == values
    assert (parameters["Seed"], parameters["Steps"]) == ("1", "3")


@pytest.mark.parametrize("words", [("sd1",), ("sd2",), ("xl",)], ids=str)
def test_default_precision(words: tuple[str, ...], webui: WebUI, request: pytest.FixtureRequest) -> None:
    name = need(webui.checkpoint(*words), f"checkpoint called {words[0]}")
    # At a CFG scale of 7 rounding decides at some seeds what is drawn: PyTorch's own bf16 differs there as much.
    off = webui.generate(checkpoint=name, steps=10, cfg_scale=4)
    on = webui.accelerated(argument_list("auto"), checkpoint=name, steps=10, cfg_scale=4)
    note(request.node.name, off.images, on)
    assert on.ran == ALL
    assert psnr(off.images[0], on.images[0]) > 20


# ---- always on


@pytest.fixture
def always_on(webui: WebUI) -> Any:
    with every_generation(webui):
        yield


def test_always_on(webui: WebUI, sd1: str, always_on: None, request: pytest.FixtureRequest) -> None:
    on = webui.generate(checkpoint=sd1)
    image = webui.generate(checkpoint=sd1, init_images=[on.images[0]], denoising_strength=0.6)
    webui.set_options(openvino_always_on=False)
    off = webui.generate(checkpoint=sd1)
    note(request.node.name, off.images, on)
    assert (on.ran, image.ran, off.field) == (ALL, ALL, "")
    assert_equal(off.images, on.images)


@pytest.mark.parametrize(
    "script,arguments",
    [
        ("prompt matrix", [False, False, "positive", "comma", 0]),
        ("prompts from file or textbox", [False, False, "start", 'a dog\n--steps 2 --prompt "a bird"']),
        ("x/y/z plot", [4, "1,2", "", 0, "", "", 0, "", ""]),
    ],
    ids=["prompt matrix", "prompts from file", "x/y/z plot"],
)
def test_other_scripts(script: str, arguments: list[Any], webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    need(script in webui.api("/sdapi/v1/scripts")["txt2img"], f"script {script}")
    listed = next(s for s in webui.api("/sdapi/v1/script-info") if s["name"] == script and not s["is_img2img"])
    arguments = arguments + [argument["value"] for argument in listed["args"][len(arguments) :]]  # each has more of its own
    prompt = {"prompt": "a cat|red|blue" if script == "prompt matrix" else PROMPT}
    fields = {"checkpoint": sd1, "script_name": script, "script_args": arguments, **prompt}
    off = webui.generate(**fields)
    with every_generation(webui):
        on = webui.generate(**fields)
    note(request.node.name, off.images, on)
    assert_equal(off.images, on.images)
    assert on.ran == ALL


@pytest.mark.parametrize(
    "script,arguments",
    [
        ("sd upscale", ["", 32, "Lanczos", 1.5]),
        ("loopback", [2, 0.5, "Linear", "None"]),
        ("poor man's outpainting", [64, 4, 0, ["left"]]),
        ("outpainting mk2", ["", 64, 8, ["left"], 1.0, 0.05]),
        # four tiles of 128 pixels, each drawn into the picture of the one before; to twice the size, without an upscaler
        ("ultimate sd upscale", ["", 128, 128, 8, 16, 32, 0.35, 16, 0, True, 0, False, 4, 0, 2, 0, 0, 2]),
    ],
    ids=["sd upscale", "loopback", "poor man's outpainting", "outpainting mk2", "ultimate sd upscale"],
)
def test_other_scripts_of_img2img(
    script: str, arguments: list[Any], webui: WebUI, sd1: str, request: pytest.FixtureRequest
) -> None:
    need(script in webui.api("/sdapi/v1/scripts")["img2img"], f"script {script}")
    fields = {"checkpoint": sd1, "script_name": script, "script_args": arguments}
    fields |= {"init_images": [picture_by_pytorch(webui, sd1)], "denoising_strength": 0.6}
    webui.generate(**fields)  # encoding draws from PyTorch's generator, whose state depends on the generation before
    off = webui.generate(**fields)
    with every_generation(webui):
        on = webui.generate(**fields)
    note(request.node.name, off.images, on)
    assert_equal(off.images, on.images)
    assert on.ran == ALL


def test_xyz_axes(webui: WebUI, sd1: str) -> None:
    need("x/y/z plot" in webui.api("/sdapi/v1/scripts")["txt2img"], "X/Y/Z plot")
    listed = next(s for s in webui.api("/sdapi/v1/script-info") if s["name"] == "x/y/z plot" and not s["is_img2img"])
    axes = next(a["choices"] for a in listed["args"] if a["label"] == "X type")
    numbers = [axes.index(f"[OpenVINO] {name}") for name in ("device", "precision")]
    arguments = [numbers[0], "", ["CPU", "PyTorch"], numbers[1], "", ["f32", "auto"], 0, "", []]
    arguments += [a["label"] == "Include Sub Images" or a["value"] for a in listed["args"][len(arguments) :]]
    fields = {"checkpoint": sd1, "script_name": "x/y/z plot", "script_args": arguments}
    pictures = webui.generate(**fields)
    cells = [text.rpartition("OpenVINO: ")[2].partition(",")[0] if "OpenVINO: " in text else "" for text in pictures.infotexts]
    off = webui.generate(checkpoint=sd1)
    assert sum("ran" in cell for cell in cells) >= 2
    assert sum(not cell for cell in cells) >= 2
    small = [image for image in pictures.images if image.shape == off.images[0].shape]
    assert sum(psnr(image, off.images[0]) == float("inf") for image in small) >= 2, "the column PyTorch differs from PyTorch"


# ---- leftovers


def test_nothing_is_left_behind_after_20_mixed_generations(webui: WebUI, sd1: str) -> None:
    need_probe(webui)
    other = webui.checkpoint("sd1", number=1) or sd1
    first = picture_by_pytorch(webui, sd1)
    mixed = [
        {},
        {"prompt": LONG * 9},
        {"checkpoint": other},
        {"init_images": [first], "denoising_strength": 0.5},
        {"tiling": True},
        {"width": 128, "height": 192},
        {"enable_hr": True, "hr_scale": 1.25, "hr_upscaler": "Latent", "denoising_strength": 0.6},
        {"batch_size": 2},
        {"sampler_name": "DDIM"},
        options(token_merging_ratio=0.5),
    ]
    before, fallbacks = webui.probe(), webui.fallbacks()
    sizes = []
    for repeat in range(2):
        for fields in mixed:
            on = webui.accelerated(**{"checkpoint": sd1, "seed": 7 + repeat, **fields})
            assert [part.partition(" by its")[0] for part in on.ran.split(", ")] == ALL.split(", "), fields
            state = webui.probe()
            assert state["replaced"] == []
            assert state["instances"] == before["instances"]
            sizes.append(state["rss"] >> 20)
    MEMORY.append(f"MiB before {before['rss'] >> 20}, after each of 20 mixed generations: {sizes}")
    MEMORY.append(f"calls answered by PyTorch instead of OpenVINO during these 20: {dict(webui.fallbacks() - fallbacks)}")
    assert sizes[-1] < sizes[9] * 1.25, "memory keeps growing"
    assert webui.fallbacks() == fallbacks


def test_reload_ui(webui: WebUI, compare: Any, sd1: str) -> None:
    need_probe(webui)
    compare(checkpoint=sd1)
    compiles = webui.api("/openvino/status")["engine"]["compiles"]
    reload_ui(webui)
    compare(checkpoint=sd1)
    assert webui.api("/openvino/status")["engine"]["compiles"] <= compiles
    assert webui.probe()["replaced"] == []


def test_disabling_the_extension(webui: WebUI, compare: Any, sd1: str) -> None:
    need_probe(webui)
    before, name = picture_by_pytorch(webui, sd1), need(webui.probe()["extension"], "extension folder")
    disabled = webui.settings["disabled_extensions"]
    webui.set_options(disabled_extensions=[*disabled, name])
    reload_ui(webui)
    try:
        assert TITLE.lower() not in webui.api("/sdapi/v1/scripts")["txt2img"]
        assert not webui.has("/openvino/status")
        assert webui.probe()["replaced"] == []
        assert psnr(before, picture_by_pytorch(webui, sd1)) == float("inf")
    finally:
        webui.set_options(disabled_extensions=disabled)
        reload_ui(webui)
    compare(checkpoint=sd1)
