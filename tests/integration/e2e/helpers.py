"""Helpers of the end-to-end tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.integration.e2e.client import WebUI

#: What the extension calls the WebUI that the others descend from.
A1111 = "AUTOMATIC1111's WebUI"
ALL = "UNet, VAE, text encoder"
LONG = "red brick house in a green valley under a blue sky "


def need(value: Any, what: str) -> Any:
    """A value, or the reason why this test cannot run against this WebUI."""
    if not value:
        pytest.skip(f"this WebUI has no {what}")
    return value


def need_probe(webui: WebUI) -> None:
    need(webui.has("/probe/state"), "probe extension (the suite brings it where it starts the WebUI)")


def host_of(webui: WebUI) -> str | None:
    """What the extension calls the WebUI; None without the probe."""
    return webui.probe().get("host") if webui.has("/probe/state") else None


def need_a1111(webui: WebUI, what: str) -> None:
    """Skip where the WebUI is a descendant of AUTOMATIC1111's that lacks something, or does it in its own way."""
    other = host_of(webui)
    if other not in (None, A1111):
        pytest.skip(f"{other} has no {what}")


@contextlib.contextmanager
def every_generation(webui: WebUI) -> Iterator[None]:
    """With the setting that accelerates every generation, in f32."""
    webui.set_options(openvino_always_on=True, openvino_precision="f32")
    try:
        yield
    finally:
        webui.set_options(openvino_always_on=False, openvino_precision="auto")


def options(**values: Any) -> dict[str, Any]:
    return {"override_settings": values}


def picture_by_pytorch(webui: WebUI, sd1: str) -> Any:
    """The picture of the suite's default prompt, without the script."""
    return webui.generate(checkpoint=sd1).images[0]


def mask_of(picture: Any) -> Any:
    mask = np.zeros_like(picture)
    mask[32:96, 48:112] = 255
    return mask


def loras(webui: WebUI) -> list[str]:
    return webui.names("/sdapi/v1/loras")


def reload_ui(webui: WebUI) -> None:
    """Reload the WebUI's page and wait until the WebUI answers again: an earlier request would crash it."""
    assert webui.log is not None
    starts = webui.log.read_text(errors="replace").count("Startup time")
    webui.api("/probe/reload-ui", {})
    end = time.monotonic() + 120
    while webui.log.read_text(errors="replace").count("Startup time") <= starts:
        assert time.monotonic() < end, "the WebUI did not come back"
        time.sleep(0.5)
