"""Architectures, changes of checkpoint, VAE and LoRA: pictures with the script and without it agree (f32)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.e2e.client import PROMPT, WebUI, psnr
from tests.integration.e2e.extensions import beside_weights
from tests.integration.e2e.helpers import LONG, loras, need, options, picture_by_pytorch

# ---- architectures and checkpoints


@pytest.mark.parametrize("words", [("xl",), ("sd2",), ("inpaint",), ("refiner",)], ids=str)
def test_architecture(words: tuple[str, ...], webui: WebUI, compare: Any) -> None:
    name = need(webui.checkpoint(*words), f"checkpoint called {words[0]}")
    off, _ = compare(checkpoint=name, negative_prompt="blurry")
    compare(checkpoint=name, width=192, prompt=LONG * 8)
    compare(checkpoint=name, init_images=[off.images[0]], denoising_strength=0.6)


@pytest.mark.parametrize("numbers", [(0, 1), (2, 3)], ids=str)
def test_changing_the_checkpoint_and_back(numbers: tuple[int, int], webui: WebUI, compare: Any) -> None:
    first, second = (need(webui.checkpoint("sd1", number=n), f"SD 1.x checkpoint number {n + 1}") for n in numbers)
    a, _ = compare(checkpoint=first)
    b, _ = compare(checkpoint=second)
    back, _ = compare(checkpoint=first)
    assert psnr(a.images[0], b.images[0]) < 40
    assert psnr(a.images[0], back.images[0]) == float("inf")


def test_two_checkpoints_in_memory(webui: WebUI, compare: Any, sd1: str) -> None:
    other = need(webui.checkpoint("sd1", number=1), "second SD 1.x checkpoint")
    webui.set_options(sd_checkpoints_limit=2)
    try:
        for name in (sd1, other, sd1, other):
            compare(checkpoint=name)
    finally:
        webui.set_options(sd_checkpoints_limit=1)


def test_vae_change(webui: WebUI, compare: Any, sd1: str) -> None:
    in_forge = webui.has("/sdapi/v1/sd-modules")  # where a VAE is one of several modules beside the checkpoint
    route = "/sdapi/v1/sd-modules" if in_forge else "/sdapi/v1/sd-vae"
    names = [name for name in webui.names(route, "model_name") if "flux" not in name]  # Forge lists them in the disk's order
    name = need(next(iter(names), None), "VAE file that its API lists")
    with_it: dict[str, Any] = {"forge_additional_modules": [name]} if in_forge else {"sd_vae": name}
    without: dict[str, Any] = {"forge_additional_modules": []} if in_forge else {"sd_vae": "Automatic"}
    other, before = webui.checkpoint("sd1", number=1), picture_by_pytorch(webui, sd1)
    for checkpoint in (sd1, other):  # the WebUI forgets the VAE of a checkpoint that stays in memory: load it again
        webui.generate(checkpoint=checkpoint, steps=1)
    off, _ = compare(checkpoint=sd1, **options(**with_it))
    assert psnr(before, off.images[0]) < 60, "the VAE changes nothing"
    compare(checkpoint=sd1, **options(**without))  # reForge has the checkpoint's own again only when it is loaded anew


def test_unload_and_reload(webui: WebUI, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1)
    webui.api("/sdapi/v1/unload-checkpoint", {})
    webui.api("/sdapi/v1/reload-checkpoint", {})
    compare(checkpoint=sd1)


# ---- LoRA


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


@pytest.mark.parametrize("number", range(6))
def test_lora_of_every_kind(number: int, webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(loras(webui)[number:], f"LoRA number {number + 1}")[0]
    off, _ = compare(checkpoint=sd1, prompt=f"{PROMPT} <lora:{name}:0.8>")
    assert psnr(picture_by_pytorch(webui, sd1), off.images[0]) < 60, f"{name} changes nothing"


def test_lora_of_the_hires_pass_only(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(loras(webui)), None), "LoRA")
    hires = {"enable_hr": True, "hr_scale": 1.25, "hr_upscaler": "Latent", "denoising_strength": 0.7}
    compare(checkpoint=sd1, hr_prompt=f"{PROMPT} <lora:{name}:1>", **hires)
    compare(checkpoint=sd1)


def test_lora_that_does_not_touch_weights(webui: WebUI, compare: Any, sd1: str) -> None:
    name = need(next(iter(loras(webui)), None), "LoRA")
    prompt = f"{PROMPT} <lora:{name}:1>"
    expected = beside_weights(webui, "UNet by its blocks, VAE, text encoder in PyTorch")
    compare(expected, checkpoint=sd1, prompt=prompt, **options(lora_functional=True))
    compare(checkpoint=sd1, prompt=prompt)
    compare(checkpoint=sd1)
