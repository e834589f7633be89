"""A WebUI that was started with ``--lowvram``, on the CPU: nothing is moved there, and the UNet is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.e2e.client import WebUI, started
from tests.integration.e2e.conftest import _ready
from tests.integration.e2e.helpers import ALL


@pytest.fixture(scope="module")
def webui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebUI]:
    folder = os.environ.get("WEBUI_DIR")
    if folder is None:
        pytest.skip("the suite does not start the WebUI itself")
    with started(Path(folder), os.environ["WEBUI_PYTHON"], tmp_path_factory.mktemp("lowvram"), "--lowvram") as webui:
        yield _ready(webui)


def test_the_unet_is_whole(compare: Any, webui: WebUI, sd1: str) -> None:
    _, on = compare(checkpoint=sd1)
    compiles = webui.api("/openvino/status")["engine"]["compiles"]
    _, again = compare(checkpoint=sd1)
    assert on.ran == again.ran == ALL
    assert webui.api("/openvino/status")["engine"]["compiles"] == compiles


def test_a_checkpoint_that_returns_compiles_nothing(compare: Any, webui: WebUI, sd1: str) -> None:
    other = webui.checkpoint("sd1", number=1)
    if other is None:
        pytest.skip("this WebUI has one SD 1.x checkpoint")
    compare(checkpoint=other)
    compiles = webui.api("/openvino/status")["engine"]["compiles"]
    compare(checkpoint=sd1)
    assert webui.api("/openvino/status")["engine"]["compiles"] == compiles
