"""Extensions and settings that change networks; interrupts and errors: pictures with and without the script agree (f32)."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.integration.e2e.client import WebUI, psnr
from tests.integration.e2e.conftest import assert_equal, note
from tests.integration.e2e.helpers import ALL, host_of, need, need_a1111, need_probe, options, picture_by_pytorch

BLOCKS = "UNet by its blocks, VAE, text encoder"

# ---- changes to the UNet


def test_tiling_and_back(webui: WebUI, compare: Any, sd1: str) -> None:
    tiled, _ = compare(checkpoint=sd1, tiling=True)
    untiled, _ = compare(checkpoint=sd1, tiling=False)
    difference = psnr(tiled.images[0], untiled.images[0])
    need(difference < 60 or host_of(webui) != "Forge", "tiling: Forge says that it is unavailable")
    assert difference < 60


def test_token_merging_and_back(compare: Any, sd1: str) -> None:
    compare(BLOCKS, checkpoint=sd1, **options(token_merging_ratio=0.5))
    compare(checkpoint=sd1)


def test_hypertile_and_back(webui: WebUI, compare: Any, sd1: str) -> None:
    need("hypertile_enable_unet" in webui.settings, "HyperTile among its settings")
    size = {"width": 512, "height": 512, "steps": 2}
    tiles = options(hypertile_enable_unet=True, hypertile_max_tile_unet=256)
    compare(BLOCKS, checkpoint=sd1, **size, **tiles)
    compare(checkpoint=sd1, **size)


def test_hypertile_of_the_vae(webui: WebUI, compare: Any, sd1: str) -> None:
    need("hypertile_enable_vae" in webui.settings, "HyperTile among its settings")
    compare("UNet, VAE by its blocks, text encoder", checkpoint=sd1, **options(hypertile_enable_vae=True))
    compare(checkpoint=sd1)


def test_upcast_attention(compare: Any, sd1: str) -> None:
    compare(checkpoint=sd1, **options(upcast_attn=True))


def test_instance_forward_of_another_extension(webui: WebUI, compare: Any, sd1: str) -> None:
    need_probe(webui)
    need_a1111(webui, "extensions that put a forward on the UNet; it calls another function of it")
    probe = {"openvino probe": {"args": ["instance forward"]}}
    without = picture_by_pytorch(webui, sd1)
    off, _ = compare(BLOCKS, checkpoint=sd1, alwayson_scripts=probe)
    assert psnr(without, off.images[0]) < 60, "the probe's forward changes nothing"
    compare(checkpoint=sd1)  # now the class's own function is left on the instance
    webui.api("/probe/clean", {})


# ---- other decoders, encoders and previews


@pytest.mark.parametrize("method", ["TAESD", "Approx NN"])
def test_other_decoder(method: str, compare: Any, sd1: str) -> None:
    compare("UNet, text encoder", checkpoint=sd1, **options(sd_vae_decode_method=method))  # the VAE is not called


def test_other_encoder(webui: WebUI, compare: Any, sd1: str) -> None:
    start = picture_by_pytorch(webui, sd1)
    compare(checkpoint=sd1, init_images=[start], denoising_strength=0.6, **options(sd_vae_encode_method="TAESD"))


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


def stop_after_two_steps(webui: WebUI, route: str) -> threading.Thread:
    """Post to a route as soon as a generation has done two steps, in a thread that is returned."""

    def stop() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and webui.api("/sdapi/v1/progress?skip_current_image=true")["state"]["sampling_step"] < 2:
            time.sleep(0.05)
        webui.api(route, {})

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


@pytest.mark.parametrize("route", ["interrupt", "skip"])
def test_interrupt_and_skip(route: str, webui: WebUI, compare: Any, sd1: str) -> None:
    before = picture_by_pytorch(webui, sd1)

    stopper = stop_after_two_steps(webui, f"/sdapi/v1/{route}")
    stopped = webui.accelerated(checkpoint=sd1, steps=150)
    stopper.join()
    assert stopped.images
    assert 0 < webui.api("/openvino/status")["networks"]["unet"]["run_calls"] < 150
    off, _ = compare(checkpoint=sd1)
    assert psnr(before, off.images[0]) == float("inf")


def test_stopping_after_the_current_picture(webui: WebUI, sd1: str, request: pytest.FixtureRequest) -> None:
    need_probe(webui)
    off = webui.generate(checkpoint=sd1, steps=40)

    stopper = stop_after_two_steps(webui, "/probe/stop")
    on = webui.accelerated(checkpoint=sd1, steps=40, n_iter=4)
    stopper.join()
    note(request.node.name, off.images, on)
    assert len(on.images) < 4
    assert_equal(off.images, on.images[-1:])
    assert on.ran == ALL


def test_exception_in_mid_run(webui: WebUI, compare: Any, sd1: str) -> None:
    need_probe(webui)
    need_a1111(webui, "call of the module that the probe lets fail")
    with pytest.raises(RuntimeError, match="500"):
        webui.accelerated(checkpoint=sd1, alwayson_scripts={"openvino probe": {"args": ["raise"]}})
    assert webui.probe()["replaced"] == []
    compare(checkpoint=sd1)
