"""Every feature of the WebUI that reaches the networks: the picture with the script is the one without it (f32)."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.e2e.client import PROMPT, TITLE, WebUI, argument_list, psnr
from tests.e2e.conftest import MEMORY, assert_equal, note

ALL = "UNet, VAE, text encoder"
LONG = "red brick house in a green valley under a blue sky "


def need(value: Any, what: str) -> Any:
    if not value:
        pytest.skip(f"this WebUI has no {what}")
    return value


def options(**values: Any) -> dict[str, Any]:
    return {"override_settings": values}


def plain(webui: WebUI, sd1: str) -> Any:
    return webui.generate(checkpoint=sd1).images[0]


# ---- samplers, schedules, batches

SAMPLERS = (
    "DPM++ 2M", "DPM++ SDE", "DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM++ 2S a", "DPM++ 3M SDE", "Euler a", "Euler", "LMS", "Heun",
    "DPM2", "DPM2 a", "DPM fast", "DPM adaptive", "Restart", "DDIM", "DDIM CFG++", "PLMS", "UniPC", "LCM",
)  # fmt: skip
SCHEDULES = (
    "Uniform", "Karras", "Exponential", "Polyexponential", "SGM Uniform", "KL Optimal", "Align Your Steps", "Simple", "Normal",
    "DDIM", "Beta",
)  # fmt: skip


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sampler(sampler: str, webui: WebUI, compare: Any, sd1: str) -> None:
    need(sampler in webui.names("/sdapi/v1/samplers"), f"sampler {sampler}")
    compare(checkpoint=sd1, sampler_name=sampler)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule(schedule: str, webui: WebUI, compare: Any, sd1: str) -> None:
    need(schedule in webui.names("/sdapi/v1/schedulers", "label"), f"schedule {schedule}")
    compare(checkpoint=sd1, sampler_name="Euler", scheduler=schedule)


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": 1},
        {"cfg_scale": 1},
        {"batch_size": 2},
        {"batch_size": 3},
        {"batch_size": 4, "n_iter": 2},
        {"n_iter": 3},
        {"subseed": 5, "subseed_strength": 0.4},
        {"width": 192, "height": 128},
    ],
    ids=str,
)
def test_numbers(fields: dict[str, Any], compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, **fields)


# ---- prompts


@pytest.mark.parametrize(
    "fields",
    [
        {"negative_prompt": "blurry"},
        {"negative_prompt": LONG * 12},
        {"prompt": LONG * 7},
        {"prompt": LONG * 14},
        {"prompt": LONG * 20, "negative_prompt": LONG * 9},
        {"prompt": "a cat AND a dog :0.7"},
        {"prompt": "a cat BREAK a dog"},
        {"prompt": "a [cat:dog:0.5] in [snow|sand]"},
        {"prompt": "a (red:1.3) [small] ((cat))"},
        {"prompt": "", "negative_prompt": ""},
    ],
    ids=lambda fields: " ".join(f"{k}={v[:20]}*{len(v)}" for k, v in fields.items()),
)
def test_prompts(fields: dict[str, Any], compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, **fields)


@pytest.mark.parametrize(
    "values",
    [
        {"s_min_uncond": 5.0},
        {"skip_early_cond": 0.5},
        {"batch_cond_uncond": False},
        {"pad_cond_uncond": True},
        {"pad_cond_uncond_v0": True},
        {"s_min_uncond_all": True, "s_min_uncond": 3.0},
    ],
    ids=str,
)
def test_cond_and_uncond(values: dict[str, Any], webui: WebUI, compare: Any, sd1: str) -> None:
    need(all(name in webui.settings for name in values), "such setting")
    compare(checkpoint=sd1, steps=6, negative_prompt=LONG * 12, **options(**values))


@pytest.mark.parametrize("skip", [1, 2, 3, 4])
def test_clip_skip(skip: int, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, **options(CLIP_stop_at_last_layers=skip))


@pytest.mark.parametrize("emphasis", ["None", "Ignore", "Original", "No norm"])
def test_emphasis(emphasis: str, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, prompt="a (red:1.3) cat", **options(emphasis=emphasis))


def test_textual_inversion(webui: WebUI, compare: Any, sd1: str) -> None:
    webui.generate(checkpoint=sd1, steps=1)
    name = next(iter(webui.api("/sdapi/v1/embeddings")["loaded"]), None)
    off, _ = compare(checkpoint=sd1, prompt=f"{PROMPT} {need(name, 'embedding for this checkpoint')}")
    assert psnr(plain(webui, sd1), off.images[0]) < 60, "the embedding changes nothing"


def test_hypernetwork_and_back(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(webui.names("/sdapi/v1/hypernetworks")), None), "hypernetwork")
    without = plain(webui, sd1)
    for strength in (1, 0.5):
        off, _ = compare(checkpoint=sd1, prompt=f"{PROMPT} <hypernet:{name}:{strength}>")
        assert psnr(without, off.images[0]) < 60, "the hypernetwork changes nothing"
    compare(checkpoint=sd1)


# ---- img2img


def test_img2img(webui: WebUI, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, init_images=[plain(webui, sd1)], denoising_strength=0.6)


def test_img2img_of_two(webui: WebUI, compare: Any, sd1: str) -> None:
    first = plain(webui, sd1)
    compare(checkpoint=sd1, init_images=[first, first[::-1].copy()], denoising_strength=0.6, batch_size=2)


def mask_of(picture: Any) -> Any:
    mask = np.zeros_like(picture)
    mask[32:96, 48:112] = 255
    return mask


@pytest.mark.parametrize("full_res", [False, True])
@pytest.mark.parametrize("fill", [0, 1, 2, 3])
def test_inpainting(fill: int, full_res: bool, webui: WebUI, compare: Any, sd1: str) -> None:
    first = plain(webui, sd1)
    compare(
        checkpoint=sd1,
        init_images=[first],
        mask=mask_of(first),
        inpainting_fill=fill,
        inpaint_full_res=full_res,
        inpaint_full_res_padding=16,
        denoising_strength=0.7,
    )


@pytest.mark.parametrize("full_res", [False, True])
def test_inpainting_checkpoint(full_res: bool, webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(webui.checkpoint("inpaint"), "inpainting checkpoint")
    first = plain(webui, sd1)
    compare(checkpoint=name, init_images=[first], mask=mask_of(first), inpaint_full_res=full_res, denoising_strength=0.8)


def test_txt2img_with_an_inpainting_checkpoint(webui: WebUI, compare: Any) -> None:
    compare(checkpoint=need(webui.checkpoint("inpaint"), "inpainting checkpoint"))


def test_soft_inpainting(webui: WebUI, compare: Any, sd1: str) -> None:
    need("soft inpainting" in [s["name"] for s in webui.api("/sdapi/v1/script-info")], "soft inpainting")
    first = plain(webui, sd1)
    soft = {"soft inpainting": {"args": [True, 1, 0.5, 4, 0, 0.5, 2]}}
    compare(
        checkpoint=sd1,
        init_images=[first],
        mask=mask_of(first),
        mask_blur=4,
        denoising_strength=0.7,
        alwayson_scripts=soft,
        inpainting_fill=1,
    )


# ---- hires fix and refiner


@pytest.mark.parametrize("upscaler", ["Latent", "Lanczos"])
def test_hires(upscaler: str, webui: WebUI, compare: Any, sd1: str) -> None:
    known = webui.names("/sdapi/v1/upscalers") + webui.names("/sdapi/v1/latent-upscale-modes")
    need(upscaler in known, f"upscaler {upscaler}")
    compare(checkpoint=sd1, enable_hr=True, hr_scale=1.5, hr_upscaler=upscaler, denoising_strength=0.6)


def test_hires_with_another_checkpoint_and_sampler(webui: WebUI, compare: Any, sd1: str) -> None:
    other = need(webui.checkpoint("sd1", number=1), "second SD 1.x checkpoint")
    compare(
        checkpoint=sd1,
        enable_hr=True,
        hr_scale=1.25,
        hr_upscaler="Lanczos",
        denoising_strength=0.6,
        hr_checkpoint_name=other.rpartition(".")[0],
        hr_sampler_name="DPM++ 2M",
        hr_prompt="a dog",
    )
    compare(checkpoint=sd1)


def test_refiner(webui: WebUI, compare: Any, sd1: str) -> None:
    other = need(webui.checkpoint("sd1", number=1), "second SD 1.x checkpoint")
    compare(checkpoint=sd1, steps=6, refiner_checkpoint=other.rpartition(".")[0], refiner_switch_at=0.5)


def test_refiner_that_shares_the_model_object(webui: WebUI, compare: Any) -> None:
    first, second = (need(webui.checkpoint("sd1", number=n), "third and fourth SD 1.x checkpoint") for n in (2, 3))
    compare(checkpoint=first, steps=6, refiner_checkpoint=second.rpartition(".")[0], refiner_switch_at=0.5)


def test_sdxl_with_its_refiner(webui: WebUI, compare: Any) -> None:
    base, refiner = need(webui.checkpoint("xl"), "SDXL checkpoint"), need(webui.checkpoint("refiner"), "refiner")
    compare(checkpoint=base, steps=6, refiner_checkpoint=refiner.rpartition(".")[0], refiner_switch_at=0.3)


# ---- architectures and checkpoints


@pytest.mark.parametrize("words", [("xl",), ("sd2",), ("inpaint",), ("refiner",)], ids=str)
def test_architecture(words: tuple[str, ...], webui: WebUI, compare: Any) -> None:
    name = need(webui.checkpoint(*words), f"checkpoint called {words[0]}")
    off, _ = compare(checkpoint=name, negative_prompt="blurry")
    compare(checkpoint=name, width=192, prompt=LONG * 8)
    compare(checkpoint=name, init_images=[off.images[0]], denoising_strength=0.6)


@pytest.mark.parametrize("numbers", [(0, 1), (2, 3)], ids=str)
def test_checkpoint_change_there_and_back(numbers: tuple[int, int], webui: WebUI, compare: Any) -> None:
    first, second = (need(webui.checkpoint("sd1", number=n), f"SD 1.x checkpoint number {n + 1}") for n in numbers)
    a, _ = compare(checkpoint=first)
    b, _ = compare(checkpoint=second)
    again, _ = compare(checkpoint=first)
    assert psnr(a.images[0], b.images[0]) < 40
    assert psnr(a.images[0], again.images[0]) == float("inf")


def test_two_checkpoints_in_memory(webui: WebUI, compare: Any, sd1: str) -> None:
    other = need(webui.checkpoint("sd1", number=1), "second SD 1.x checkpoint")
    webui.set_options(sd_checkpoints_limit=2)
    try:
        for name in (sd1, other, sd1, other):
            compare(checkpoint=name)
    finally:
        webui.set_options(sd_checkpoints_limit=1)


def test_vae_change(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(webui.names("/sdapi/v1/sd-vae", "model_name")), None), "VAE file")
    off, _ = compare(checkpoint=sd1, **options(sd_vae=name))
    back, _ = compare(checkpoint=sd1, **options(sd_vae="Automatic"))
    assert psnr(off.images[0], back.images[0]) < 60, "the VAE changes nothing"


def test_unload_and_reload(webui: WebUI, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1)
    webui.api("/sdapi/v1/unload-checkpoint", {})
    webui.api("/sdapi/v1/reload-checkpoint", {})
    compare(checkpoint=sd1)


# ---- LoRA


def loras(webui: WebUI) -> list[str]:
    return webui.names("/sdapi/v1/loras") if webui.has("/sdapi/v1/loras") else []


def test_lora_strength_up_and_down(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(loras(webui)), None), "LoRA")
    pictures = [compare(checkpoint=sd1, prompt=f"{PROMPT} <lora:{name}:{s}>" if s else PROMPT)[1] for s in (0, 1, 0.5, 0)]
    assert psnr(pictures[0].images[0], pictures[1].images[0]) < 60, "the LoRA changes nothing"
    assert psnr(pictures[1].images[0], pictures[2].images[0]) < 60
    assert psnr(pictures[0].images[0], pictures[3].images[0]) == float("inf")


@pytest.mark.parametrize("tags", ["<lora:{0}:1> <lora:{1}:0.7>", "<lora:{0}:0:1>", "<lora:{0}:1:0>", "<lora:{0}:0.3:0.9>"])
def test_lora_combinations(tags: str, webui: WebUI, compare: Any, sd1: str) -> None:
    names = need(len(loras(webui)) > 1 and loras(webui), "two LoRAs")
    compare(checkpoint=sd1, prompt=f"{PROMPT} {tags.format(*names)}")


def test_lora_of_the_hires_pass_only(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(loras(webui)), None), "LoRA")
    hires = {"enable_hr": True, "hr_scale": 1.25, "hr_upscaler": "Latent", "denoising_strength": 0.7}
    compare(checkpoint=sd1, hr_prompt=f"{PROMPT} <lora:{name}:1>", **hires)
    compare(checkpoint=sd1)


def test_lora_that_does_not_touch_weights(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(loras(webui)), None), "LoRA")
    prompt = f"{PROMPT} <lora:{name}:1>"
    compare("UNet in PyTorch, VAE, text encoder in PyTorch", checkpoint=sd1, prompt=prompt, **options(lora_functional=True))
    compare(checkpoint=sd1, prompt=prompt)
    compare(checkpoint=sd1)


# ---- what changes the UNet's code


def test_tiling_and_back(webui: WebUI, compare: Any, sd1: str) -> None:
    tiled, _ = compare(checkpoint=sd1, tiling=True)
    untiled, _ = compare(checkpoint=sd1, tiling=False)
    assert psnr(tiled.images[0], untiled.images[0]) < 60


def test_token_merging_and_back(compare: Any, sd1: str) -> None:
    compare("UNet in PyTorch, VAE, text encoder", checkpoint=sd1, **options(token_merging_ratio=0.5))
    compare(checkpoint=sd1)


def test_hypertile_and_back(webui: WebUI, compare: Any, sd1: str) -> None:
    need("hypertile_enable_unet" in webui.settings, "HyperTile")
    size = {"width": 512, "height": 512, "steps": 2}
    tiles = options(hypertile_enable_unet=True, hypertile_max_tile_unet=256)
    compare("UNet in PyTorch, VAE, text encoder", checkpoint=sd1, **size, **tiles)
    compare(checkpoint=sd1, **size)


def test_hypertile_of_the_vae(webui: WebUI, compare: Any, sd1: str) -> None:
    need("hypertile_enable_vae" in webui.settings, "HyperTile")
    compare("UNet, VAE in PyTorch, text encoder", checkpoint=sd1, **options(hypertile_enable_vae=True))
    compare(checkpoint=sd1)


def test_upcast_attention(compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, **options(upcast_attn=True))


def test_instance_forward_of_another_extension(webui: WebUI, compare: Any, sd1: str) -> None:
    need(webui.has("/probe/state"), "probe extension (the suite brings it where it starts the WebUI)")
    odd = {"openvino probe": {"args": ["instance forward"]}}
    without = plain(webui, sd1)
    off, _ = compare("UNet in PyTorch, VAE, text encoder", checkpoint=sd1, alwayson_scripts=odd)
    assert psnr(without, off.images[0]) < 60, "the other forward changes nothing"
    compare(checkpoint=sd1)  # the class's own function lies on the instance now: not another extension's
    webui.api("/probe/clean", {})


# ---- what is not the script's affair


@pytest.mark.parametrize("method", ["TAESD", "Approx NN"])
def test_other_decoder(method: str, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, **options(sd_vae_decode_method=method))


def test_other_encoder(webui: WebUI, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, init_images=[plain(webui, sd1)], denoising_strength=0.6, **options(sd_vae_encode_method="TAESD"))


@pytest.mark.parametrize("kind", ["Full", "Approx NN", "TAESD"])
def test_live_previews(kind: str, webui: WebUI, compare: Any, sd1: str) -> None:
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            webui.api("/sdapi/v1/progress?skip_current_image=false")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        shown = options(show_progress_type=kind, live_previews_enable=True, show_progress_every_n_steps=1)
        compare(checkpoint=sd1, steps=8, **shown)
    finally:
        stop.set()
        watcher.join()


# ---- endings


@pytest.mark.parametrize("route", ["interrupt", "skip"])
def test_interrupt_and_skip(route: str, webui: WebUI, compare: Any, sd1: str) -> None:
    before = plain(webui, sd1)

    def stop() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and webui.api("/sdapi/v1/progress?skip_current_image=true")["state"]["sampling_step"] < 2:
            time.sleep(0.1)
        webui.api(f"/sdapi/v1/{route}", {})

    stopper = threading.Thread(target=stop)
    stopper.start()
    start = time.monotonic()
    stopped = webui.accelerated(checkpoint=sd1, steps=150)
    stopper.join()
    assert stopped.images
    assert time.monotonic() - start < 100
    off, _ = compare(checkpoint=sd1)
    assert psnr(before, off.images[0]) == float("inf")


def test_exception_in_mid_run(webui: WebUI, compare: Any, sd1: str) -> None:
    need(webui.has("/probe/state"), "probe extension (the suite brings it where it starts the WebUI)")
    with pytest.raises(RuntimeError, match="500"):
        webui.accelerated(checkpoint=sd1, alwayson_scripts={"openvino probe": {"args": ["raise"]}})
    assert webui.probe()["replaced"] == []
    compare(checkpoint=sd1)


# ---- the API


def test_api_without_arguments(webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    off = webui.generate(checkpoint=sd1)
    for arguments in ([], [None], ["no such device!", "f7", "maybe", -1], ["CPU"] * 20, ["CPU", "f32"]):
        on = webui.accelerated(arguments, checkpoint=sd1)
        note(f"{request.node.name} {arguments}"[:60], off.images, on)
        assert on.ran == ALL
        assert psnr(off.images[0], on.images[0]) > 25


def test_api_defaults_as_listed(webui: WebUI, sd1: str) -> None:
    listed = next(s for s in webui.api("/sdapi/v1/script-info") if s["name"] == TITLE.lower() and not s["is_img2img"])
    on = webui.accelerated([argument["value"] for argument in listed["args"]], checkpoint=sd1)
    assert on.ran == ALL


@pytest.mark.parametrize("arguments", [["GPU.7", *argument_list()[1:]], ["CPU", "f16", *argument_list()[2:]], ["NPU"]], ids=str)
def test_bad_device_or_precision_still_gives_the_picture(arguments: list[Any], webui: WebUI, sd1: str) -> None:
    off = webui.generate(checkpoint=sd1)
    on = webui.accelerated(arguments, checkpoint=sd1)
    if on.field:
        pytest.skip("this machine can do it")
    assert_equal(off.images, on.images)


@pytest.mark.parametrize("switch", ["unet", "vae", "text_encoder"])
def test_one_network_switched_off(switch: str, webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    off = webui.generate(checkpoint=sd1)
    on = webui.accelerated(argument_list(**{switch: False}), checkpoint=sd1)
    note(request.node.name, off.images, on)
    assert_equal(off.images, on.images)
    assert len(on.ran.split(", ")) == 2


def test_infotext_restores_the_arguments(webui: WebUI, sd1: str) -> None:
    on = webui.accelerated(argument_list(vae=False), checkpoint=sd1)
    again = webui.generate(checkpoint=sd1, infotext=on.infotexts[0], script_name=None)
    assert "precision=f32" in on.field
    assert "vae=off" in on.field
    assert again.images


@pytest.mark.parametrize("words", [("sd1",), ("sd2",), ("xl",)], ids=str)
def test_default_precision(words: tuple[str, ...], webui: WebUI, request: pytest.FixtureRequest) -> None:
    name = need(webui.checkpoint(*words), f"checkpoint called {words[0]}")
    off = webui.generate(checkpoint=name, steps=10)
    on = webui.accelerated(argument_list("auto"), checkpoint=name, steps=10)
    note(request.node.name, off.images, on)
    assert on.ran == ALL
    assert psnr(off.images[0], on.images[0]) > 20


# ---- every generation


@pytest.fixture
def always_on(webui: WebUI) -> Any:
    webui.set_options(openvino_always_on=True, openvino_precision="f32")
    yield
    webui.set_options(openvino_always_on=False, openvino_precision="auto")


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
        ("x/y/z plot", [4, "1,2", "", 0, "", "", 0, "", "", True, False, False, False, False, False, False, 0, False]),
    ],
    ids=["prompt matrix", "x/y/z plot"],
)
def test_other_scripts(script: str, arguments: list[Any], webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    need(script in webui.api("/sdapi/v1/scripts")["txt2img"], f"script {script}")
    prompt = {"prompt": "a cat|red|blue" if script == "prompt matrix" else PROMPT}
    fields = {"checkpoint": sd1, "script_name": script, "script_args": arguments, **prompt}
    off = webui.generate(**fields)
    webui.set_options(openvino_always_on=True, openvino_precision="f32")
    try:
        on = webui.generate(**fields)
    finally:
        webui.set_options(openvino_always_on=False, openvino_precision="auto")
    note(request.node.name, off.images, on)
    assert_equal(off.images, on.images)
    assert on.ran == ALL


def test_xyz_axes(webui: WebUI, sd1: str) -> None:
    need("x/y/z plot" in webui.api("/sdapi/v1/scripts")["txt2img"], "X/Y/Z plot")
    listed = next(s for s in webui.api("/sdapi/v1/script-info") if s["name"] == "x/y/z plot" and not s["is_img2img"])
    axes = next(a["choices"] for a in listed["args"] if a["label"] == "X type")
    numbers = [axes.index(f"[OpenVINO] {name}") for name in ("device", "precision")]
    arguments = [numbers[0], "CPU,PyTorch", "", numbers[1], "f32,auto", "", 0, "", ""]
    arguments += [True, False, True, False, False, False, False, 0, False]
    fields = {"checkpoint": sd1, "script_name": "x/y/z plot", "script_args": arguments}
    pictures = webui.generate(**fields)
    cells = [text.rpartition("OpenVINO: ")[2].partition(",")[0] if "OpenVINO: " in text else "" for text in pictures.infotexts]
    off = webui.generate(checkpoint=sd1)
    assert sum("ran" in cell for cell in cells) >= 2
    assert sum(not cell for cell in cells) >= 2
    small = [image for image in pictures.images if image.shape == off.images[0].shape]
    assert sum(psnr(image, off.images[0]) == float("inf") for image in small) >= 2, "PyTorch's column is PyTorch's"


# ---- leftovers


def test_nothing_is_left_behind_after_20_mixed_generations(webui: WebUI, sd1: str) -> None:
    need(webui.has("/probe/state"), "probe extension (the suite brings it where it starts the WebUI)")
    other = webui.checkpoint("sd1", number=1) or sd1
    first = plain(webui, sd1)
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
    before = webui.probe()
    sizes = []
    for round_ in range(2):
        for fields in mixed:
            webui.accelerated(**{"checkpoint": sd1, "seed": 7 + round_, **fields})
            state = webui.probe()
            assert state["replaced"] == []
            assert state["instances"] == before["instances"]
            sizes.append(state["rss"] >> 20)
    MEMORY.append(f"MiB before {before['rss'] >> 20}, after each of 20 mixed generations: {sizes}")
    assert sizes[-1] < sizes[9] * 1.25, "memory keeps growing"


def test_reload_ui(webui: WebUI, compare: Any, sd1: str) -> None:
    need(webui.has("/probe/state"), "probe extension (the suite brings it where it starts the WebUI)")
    assert webui.log is not None
    starts = webui.log.read_text(errors="replace").count("Startup time")
    webui.api("/probe/reload-ui", {})
    end = time.monotonic() + 120
    while webui.log.read_text(errors="replace").count("Startup time") <= starts:
        assert time.monotonic() < end, "the WebUI did not come back"
        time.sleep(0.5)
    compare(checkpoint=sd1)
    assert webui.probe()["replaced"] == []
