"""int8 in the stand-in WebUI: the first picture calibrates, the next ones are made in int8, and the parameters say which."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.layers_in_8_bits import needs_vnni
from tests.hosts.webui.conftest import TITLE, arguments, before_every_step, engine_stats, ran
from tests.hosts.webui.test_compatibility import ControlNet, controlled, unet

pytestmark = needs_vnni


def picture(host: SimpleNamespace, **changes: Any) -> Any:
    values = {"prompt": "a cat", "width": 64, "height": 64, "steps": 10, **changes}
    return host.processing.generate(TITLE, arguments("int8"), **values)


@pytest.fixture(autouse=True)
def without_recipes(host: SimpleNamespace) -> Iterator[None]:
    """What one test has calibrated is not there in the next one."""
    yield
    from ov_backend.hosts.webui.session import session

    assert session.engine is not None
    recipes = session.engine.resources.recipes
    assert recipes.store is not None
    recipes.store.clear()
    recipes.clear()


@pytest.fixture
def calibrated(host: SimpleNamespace) -> SimpleNamespace:
    first = picture(host)
    assert ran(first).startswith("UNet calibrating int8, VAE")
    assert "this picture calibrates int8" in first.comments
    return host


def test_the_second_picture_is_made_in_int8_and_the_field_says_so(calibrated: SimpleNamespace) -> None:
    second = picture(calibrated)
    assert ran(second).startswith("UNet in int8, VAE")
    assert "% off" in second.comments
    assert engine_stats()["unet"]["int8"]["state"] == "on"
    assert not engine_stats()["vae_decode"]["int8"]


def test_both_passes_of_a_hires_fix_are_one_picture(host: SimpleNamespace) -> None:
    first, second = picture(host, enable_hr=True), picture(host, enable_hr=True)
    assert ran(first).startswith("UNet calibrating int8, VAE")
    assert "% off" not in first.comments
    assert ran(second).startswith("UNet in int8, VAE")


@pytest.mark.parametrize("how", ["interrupted", "skipped"])
def test_an_interrupted_picture_makes_no_recipe(how: str, host: SimpleNamespace) -> None:
    def interrupt(params: Any) -> None:
        setattr(host.shared.state, how, params.sampling_step >= 8)

    with before_every_step(interrupt):
        picture(host, steps=20)
    setattr(host.shared.state, how, False)
    assert ran(picture(host)).startswith("UNet calibrating int8, VAE")
    assert ran(picture(host)).startswith("UNet in int8, VAE")


def test_under_another_extensions_forward_the_blocks_are_calibrated_and_then_in_int8(host: SimpleNamespace) -> None:
    model, controlnet = unet(host), ControlNet()
    model.forward = lambda x, timesteps=None, context=None, **_: controlled(model, controlnet, x, timesteps, context)
    try:
        first, second = picture(host), picture(host)
    finally:
        del model.forward
    assert ran(first).startswith("UNet by its blocks calibrating int8, VAE")
    assert ran(second).startswith("UNet by its blocks in int8, VAE")
    assert "% off" in second.comments
    stats = engine_stats()["unet"]
    assert (stats["int8"]["state"], stats["fallbacks"], stats["blocks_in_pytorch"]) == ("on", {}, {})
