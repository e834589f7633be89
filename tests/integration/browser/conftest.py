"""A real browser (Chromium, driven by Playwright) and the standalone page, which runs in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio
import httpx
import pytest

from tests.integration.browser.page import Page

ROOT = Path(__file__).parents[3]
_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Screenshots of the pages go here.
SHOTS = Path(os.environ.get("SCREENSHOTS") or ROOT / "out" / "screenshots")
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
#: A file name that must be shown as text.
NASTY = "<img src=x onerror=globalThis.broken=1>"


def why_not() -> str:
    """Why no browser can be driven here, or ""."""
    if int(gradio.__version__.split(".")[0]) < 5:
        return f"the standalone page needs current Gradio (here is {gradio.__version__})"
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright"
    if CHROMIUM is None:
        return "there is no Chromium: apt-get install chromium, or set CHROMIUM to a browser"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Server:
    """The page's process and its output."""

    url: str
    process: subprocess.Popen[str]
    out: Path
    lines: list[str] = field(default_factory=list)

    def log(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.hosts.standalone.checkpoints import write_small_checkpoint

    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "upscaler").mkdir()
    (folder / "upscaler" / "4x-sharp.safetensors").touch()
    return write_small_checkpoint(folder, NASTY, levels=2)


@pytest.fixture(scope="package")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-m", "ov_backend", "serve", "--checkpoint", str(checkpoint), "--port", "0"]
    command += ["--out", str(folder / "out"), "--cache-dir", str(folder / "graphs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    server = Server("", process, folder / "out")
    reader = threading.Thread(target=_read, args=(server,), daemon=True)
    reader.start()
    try:
        deadline = time.monotonic() + 180
        while not server.url:
            assert process.poll() is None, server.log()
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(20)


def _read(server: Server) -> None:
    assert server.process.stdout is not None
    for line in server.process.stdout:
        server.lines.append(line.rstrip())
        if line.startswith("Open http"):
            server.url = line.split()[1]


@pytest.fixture(scope="package")  # while it is open, no other test in this thread could run an event loop
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def errors() -> list[str]:
    """Errors of the page's scripts; a test that opens a page has none of them at its end."""
    return []


@pytest.fixture(scope="package")
def context(browser: Any) -> Any:
    """Where pages are opened; what one has loaded of Gradio's scripts, the next one has in its cache."""
    return browser.new_context()


@pytest.fixture
def open_page(context: Any, errors: list[str]) -> Iterator[Any]:
    """Opens pages as tabs of one browser; ``options`` are those of Playwright's ``Page.emulate_media``."""
    pages = []

    def open_one(url: str, **options: Any) -> Any:
        page = context.new_page()
        pages.append(page)
        page.set_viewport_size({"width": 1280, "height": 1000})
        page.emulate_media(**options)
        page.set_default_timeout(120_000)  # of a busy machine; only a failure waits that long
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        return page

    yield open_one
    for page in pages:
        page.evaluate("localStorage.clear()")  # the settings of one test are not another's
        page.close()
    assert errors == []


@pytest.fixture
def at(server: Server, open_page: Any) -> Iterator[Any]:
    """Opens the standalone page; whatever a test leaves running ends before the next one begins."""
    yield lambda **options: Page(open_page(server.url, **options))
    deadline = time.monotonic() + 60
    while httpx.get(f"{server.url}/openvino/status").json()["state"] != "idle":
        httpx.post(f"{server.url}/openvino/interrupt", json={})
        assert time.monotonic() < deadline
        time.sleep(0.2)
