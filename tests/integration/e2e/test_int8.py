"""int8 in the real WebUI: the first picture calibrates, the second is made in int8, and X/Y/Z plot has an axis for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.layers_in_8_bits import needs_vnni
from tests.integration.e2e.client import WebUI, argument_list, psnr
from tests.integration.e2e.conftest import note
from tests.integration.e2e.helpers import need

pytestmark = needs_vnni


@pytest.fixture
def demo(webui: WebUI) -> Iterator[dict[str, Any]]:
    """A picture of the demo checkpoint, whose weights are trained: with random ones a recipe is refused."""
    name = need(webui.checkpoint("fluent"), "demo checkpoint")
    need(webui.has("/probe/state"), "probe extension")
    webui.accelerated(checkpoint=name, steps=1)  # opens the store
    webui.api("/probe/forget-recipes", {})
    yield {"checkpoint": name, "prompt": "a fox in the snow", "steps": 10, "width": 256, "height": 256}
    webui.generate(checkpoint=webui.checkpoint("sd1"), steps=1)


def test_the_first_picture_calibrates_and_the_second_is_made_in_int8(
    webui: WebUI, demo: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    off = webui.generate(**demo)
    first, second = (webui.accelerated(argument_list("int8"), **demo) for _ in range(2))
    note(request.node.name, off.images, second)
    assert first.ran == "UNet calibrating int8, VAE, text encoder"
    assert second.ran == "UNet in int8, VAE, text encoder"
    assert "precision=int8" in second.field
    assert psnr(off.images[0], second.images[0]) > 20
    int8 = webui.api("/openvino/status")["networks"]["unet"]["int8"]
    assert (int8["state"], int8["error"] < 0.03) == ("on", True)
    assert "fit in memory" in int8["memory"] or "both in memory" in int8["memory"]


def test_the_precision_is_an_axis_of_xyz_plot(webui: WebUI, demo: dict[str, Any]) -> None:
    for _ in range(2):  # the second one makes the recipe: a picture in f32 would drop what the first one has observed
        webui.accelerated(argument_list("int8"), **demo)
    listed = next(s for s in webui.api("/sdapi/v1/script-info") if s["name"] == "x/y/z plot" and not s["is_img2img"])
    axes = next(a["choices"] for a in listed["args"] if a["label"] == "X type")
    arguments = [axes.index("[OpenVINO] precision"), "", ["f32", "int8"], 0, "", [], 0, "", []]
    arguments += [True, True, False, False, False, False, False, 0, False]
    pictures = webui.generate(**demo, script_name="x/y/z plot", script_args=arguments)
    assert [sum(part in text for text in pictures.infotexts[1:]) for part in ("UNet, VAE", "UNet in int8")] == [1, 1]
