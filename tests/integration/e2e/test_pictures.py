"""img2img, inpainting, hires fix and refiner: pictures with the script and without it agree (f32)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.e2e.client import PROMPT, TITLE, Pictures, WebUI, argument_list, from_png, to_png
from tests.integration.e2e.conftest import assert_equal, note
from tests.integration.e2e.helpers import ALL, mask_of, need, need_probe, picture_by_pytorch

# ---- img2img


def test_img2img(webui: WebUI, compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, init_images=[picture_by_pytorch(webui, sd1)], denoising_strength=0.6)


def test_img2img_of_two(webui: WebUI, compare: Any, sd1: str) -> None:
    first = picture_by_pytorch(webui, sd1)
    compare(checkpoint=sd1, init_images=[first, first[::-1].copy()], denoising_strength=0.6, batch_size=2)


def test_batch_tab(webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    need_probe(webui)
    first = picture_by_pytorch(webui, sd1)
    fields = {"prompt": PROMPT, "steps": 4, "width": 128, "height": 128, "seed": 3, "sampler_name": "Euler a"}
    fields |= {"denoising_strength": 0.6, "override_settings": {"sd_model_checkpoint": sd1}}
    body = {"fields": fields, "init_images": [to_png(image) for image in (first, first[::-1].copy(), first[:, ::-1].copy())]}
    _, off, on = (  # twice without: encoding draws from PyTorch's generator, whose state depends on the generation before
        Pictures([from_png(image) for image in answer["images"]], answer["infotexts"])
        for arguments in ([], [], argument_list())
        for answer in [webui.api("/probe/batch", {**body, "script_name": TITLE, "script_args": arguments})]
    )
    note(request.node.name, off.images, on)
    assert len(on.images) == 3
    assert_equal(off.images, on.images)
    assert (off.field, on.ran) == ("", ALL)
    assert webui.probe()["replaced"] == []


@pytest.mark.parametrize("full_res", [False, True])
@pytest.mark.parametrize("fill", [0, 1, 2, 3])
def test_inpainting(fill: int, full_res: bool, webui: WebUI, compare: Any, sd1: str) -> None:
    first = picture_by_pytorch(webui, sd1)
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
    first = picture_by_pytorch(webui, sd1)
    compare(checkpoint=name, init_images=[first], mask=mask_of(first), inpaint_full_res=full_res, denoising_strength=0.8)


def test_txt2img_with_an_inpainting_checkpoint(webui: WebUI, compare: Any) -> None:
    compare(checkpoint=need(webui.checkpoint("inpaint"), "inpainting checkpoint"))


def test_soft_inpainting(webui: WebUI, compare: Any, sd1: str) -> None:
    need("soft inpainting" in [s["name"] for s in webui.api("/sdapi/v1/script-info")], "soft inpainting")
    first = picture_by_pytorch(webui, sd1)
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
    upscalers = webui.names("/sdapi/v1/upscalers") + webui.names("/sdapi/v1/latent-upscale-modes")
    need(upscaler in upscalers, f"upscaler {upscaler}")
    compare(checkpoint=sd1, enable_hr=True, hr_scale=1.5, hr_upscaler=upscaler, denoising_strength=0.6)


def test_hires_with_another_checkpoint_and_sampler(webui: WebUI, compare: Any, sd1: str) -> None:
    other = need(webui.checkpoint("sd1", number=1), "second SD 1.x checkpoint")
    compare(
        checkpoint=sd1,
        enable_hr=True,
        hr_scale=1.25,
        hr_upscaler="Latent",  # others round to pixels, and a VAE of random weights makes a difference of 1 of 255 larger
        denoising_strength=0.7,
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
