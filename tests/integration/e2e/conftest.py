"""The WebUI that the suite drives: WEBUI_URL, or WEBUI_DIR and WEBUI_PYTHON to start one. Without them all tests are skipped.

The tests use what the WebUI has: LoRAs, a VAE, an embedding, a hypernetwork, and checkpoints by words in their names ("xl",
"refiner", "sd2", "sd3", "inpaint"). Checkpoints without these words are SD 1.x: the first and second need different
configurations, the third and fourth the same one. Small ones suffice: ``demo_variants.py`` writes them. Run the suite in one
process (no ``-n``). WEBUI_TABLE names a file for the table of comparisons, WEBUI_FLAGS the WebUI's own flags, WEBUI_MEMORY_MB a
budget for compiled networks.
In Forge and reForge ("--always-cpu --skip-torch-cuda-test") checkpoints must have the widths of their kind: ``checkpoints.py``
writes such; what a WebUI lacks is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.e2e.client import Picture, Pictures, WebUI, argument_list, psnr, started

#: Test, what ran where, largest difference, share of pixels within 2, PSNR; printed at the end.
ROWS: list[tuple[str, str, int, float, float]] = []
#: A file that each row is appended to at once.
TABLE = os.environ.get("WEBUI_TABLE")
#: Lines about the server's memory, printed at the end.
MEMORY: list[str] = []

HOW = "set WEBUI_URL to a running WebUI with --api, or WEBUI_DIR and WEBUI_PYTHON to start one"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    available = os.environ.get("WEBUI_URL") or (os.environ.get("WEBUI_DIR") and os.environ.get("WEBUI_PYTHON"))
    for item in items:
        if "e2e" in Path(str(item.fspath)).parts:
            item.add_marker(pytest.mark.e2e)
            if not available:
                item.add_marker(pytest.mark.skip(reason=f"no WebUI: {HOW}"))


@pytest.fixture(scope="session")
def webui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebUI]:
    url = os.environ.get("WEBUI_URL")
    if url:
        yield _ready(WebUI(url.rstrip("/")))
        return
    scratch = tmp_path_factory.mktemp("webui")
    with started(Path(os.environ["WEBUI_DIR"]), os.environ["WEBUI_PYTHON"], scratch) as webui:
        yield _ready(webui)


def _ready(webui: WebUI) -> WebUI:
    names = [script["name"] for script in webui.api("/sdapi/v1/script-info")]
    assert "accelerate with openvino" in names, "the extension is not in this WebUI"
    options = webui.api("/sdapi/v1/options")
    if webui.has("/probe/settings"):
        options |= webui.api("/probe/settings")
    webui.settings = {name: _int_if_whole(value) for name, value in options.items()}
    return webui


def _int_if_whole(value: Any) -> Any:
    """The API returns sliders' whole numbers as floats, which some extensions do not accept."""
    return int(value) if isinstance(value, float) and value == int(value) else value


@pytest.fixture
def sd1(webui: WebUI) -> str:
    name = webui.checkpoint("sd1")
    if name is None:
        pytest.skip("this WebUI has no SD 1.x checkpoint")
    return name


@pytest.fixture
def compare(webui: WebUI, request: pytest.FixtureRequest) -> Any:
    """Generate with the script off and on, and compare the pictures; returns both."""

    def run(
        expected: str = "UNet, VAE, text encoder", precision: str = "f32", off: Pictures | None = None, **fields: Any
    ) -> tuple[Pictures, Pictures]:
        if "init_images" in fields:  # encoding draws from PyTorch's generator, whose state depends on the generation before
            webui.generate(**fields)
        off = off or webui.generate(**fields)
        on = webui.accelerated(argument_list(precision), **fields)
        note(request.node.name, off.images, on)
        assert_equal(off.images, on.images)
        assert off.field == ""
        assert on.ran == expected
        if "text encoder" in expected.split(", "):  # it is named without a call where the WebUI has kept the prompt's encoding
            if not calls_of_text_encoders(webui):
                webui.accelerated(argument_list(precision), **{**fields, "prompt": "one that was never encoded"})
            assert calls_of_text_encoders(webui), "no text encoder has ever run in OpenVINO"
        return off, on

    return run


def calls_of_text_encoders(webui: WebUI) -> int:
    """How many calls of text encoders OpenVINO has answered since they were loaded."""
    networks = webui.api("/openvino/status")["networks"]
    own = [network for name, network in networks.items() if name.startswith("text_encoder")]
    return sum(network["calls"] + sum(network["by_blocks"].values()) for network in own)


def note(row: str, expected: list[Picture], actual: Pictures) -> None:
    """Add a row to the table."""
    pairs = [(a, b) for a, b in zip(expected, actual.images) if a.shape == b.shape]
    largest = max((int(np.abs(a.astype(int) - b.astype(int)).max()) for a, b in pairs), default=-1)
    share = min((within(a, b) for a, b in pairs), default=0.0)
    ROWS.append((row, actual.ran, largest, share, min((psnr(a, b) for a, b in pairs), default=0.0)))
    if TABLE:  # at once: a long run may be aborted
        with Path(TABLE).open("a", encoding="utf-8") as file:
            file.write(line_of(*ROWS[-1]) + "\n")


def line_of(row: str, ran: str, largest: int, share: float, ratio: float) -> str:
    """One row of the table."""
    return f"{row:60s} {ran:45s} largest {largest:3d}  within 2: {share:8.3%}  PSNR {ratio:6.1f} dB"


def within(a: Picture, b: Picture, levels: int = 2) -> float:
    """Share of pixels that agree to ``levels`` of 255 in every channel."""
    return float((np.abs(a.astype(int) - b.astype(int)).max(-1) <= levels).mean())


def assert_equal(expected: list[Picture], actual: list[Picture]) -> None:
    """At least 99.9 % of the pixels agree to 2 of 255, and no picture is flat."""
    assert [image.shape for image in actual] == [image.shape for image in expected]
    for a, b in zip(expected, actual):
        assert b.std() > 2, "the picture is flat"
        assert within(a, b) >= 0.999, f"only {within(a, b):.2%} of the pixels agree"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if ROWS:
        terminalreporter.section("pictures with the script off and on")
        for row in ROWS:
            terminalreporter.write_line(line_of(*row))
    for line in MEMORY:
        terminalreporter.write_line(line)
