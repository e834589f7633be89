"""Records the panel at work in a real browser: docs/images/recording.webp and docs/images/panel.png.

    python -m docs.record [--out docs/images] [--seconds 20]

WEBUI_DIR and WEBUI_PYTHON name a WebUI to start, with an empty store, so that the first picture shows how networks are prepared;
WEBUI_URL names one that runs. demo_checkpoint/ has to be among its checkpoints. Without either, the standalone page is recorded,
and panel.png stays as it is. Chromium computes beside the networks, so the seconds in the recording are no benchmark. What takes
longer than --seconds is shown faster, and the last line says how much.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from tests.integration.browser.conftest import CHROMIUM, FLAGS, ROOT
from tests.integration.browser.page import PANEL
from tests.integration.e2e.client import TITLE, started

PROMPTS = ("a fox in the snow", "a rocket under a night sky")
WINDOW = {"width": 1120, "height": 940}
#: A dot that follows the mouse: the browser's own pointer is in no recording.
POINTER = """() => {
    const dot = document.createElement('div');
    dot.style = `position: fixed; z-index: 9999; width: 18px; height: 18px; margin: -9px; border-radius: 50%;
        background: rgb(220 38 38 / 60%); pointer-events: none; left: -50px; top: 0`;
    document.body.append(dot);
    addEventListener('mousemove', e => { dot.style.left = `${e.clientX}px`; dot.style.top = `${e.clientY}px`; }, true);
}"""


@dataclass(frozen=True)
class Host:
    """Where the panel is: its address, and the selectors of what the recording operates."""

    url: str
    prompt: str
    generate: str
    in_webui: bool


@dataclass
class Recording:
    """The frames of a page, each with its time in seconds."""

    page: Any
    frames: list[tuple[float, Image.Image]] = field(default_factory=list)

    def __enter__(self) -> Recording:
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.on("Page.screencastFrame", self._add)
        self._session.send("Page.startScreencast", {"format": "jpeg", "quality": 95, "everyNthFrame": 3})
        self.began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._session.send("Page.stopScreencast")
        self.ended = time.monotonic()

    def _add(self, frame: dict[str, Any]) -> None:
        self._session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})
        picture = Image.open(io.BytesIO(base64.b64decode(frame["data"]))).convert("RGB")
        self.frames.append((frame["metadata"]["timestamp"], picture))

    def note(self) -> None:
        """Add what is shown now: the browser may leave out the last one of several changes."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append((time.time(), picture))

    def save(self, path: Path, seconds: float, per_second: int = 6) -> float:
        """Write an animation that is repeated for ever.

        Args:
            path: of the file.
            seconds: that it may last; a longer recording is shown faster.
            per_second: at most so many frames.

        Returns:
            how many times as fast it is shown as it was.
        """
        self.frames.sort(key=lambda frame: frame[0])
        start, faster = self.frames[0][0], max(1.0, (self.ended - self.began) / seconds)
        kept: dict[int, tuple[float, Image.Image]] = {}
        for moment, picture in self.frames:  # the last picture of each fraction of a second, from its first one's time on
            at = (moment - start) / faster
            number = int(at * per_second)
            kept[number] = kept[number][0] if number in kept else at, picture
        times, pictures = zip(*kept.values())
        ends = [*times[1:], (self.ended - self.began) / faster]
        durations = [max(20, round(1000 * (end - at))) for at, end in zip(times, ends)]
        durations[-1] = max(2000, durations[-1])
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=70, method=4)
        return faster


def main() -> None:
    """Record, and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the recording; a longer one is shown faster")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, host(Path(folder)) as where, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport=WINDOW)
        page.set_default_timeout(60_000)
        prepare(page, where)
        path = options.out / "recording.webp"
        faster = record(page, where, options.seconds).save(path, options.seconds)
        sys.stdout.write(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, shown {faster:.1f} times as fast as it was\n")
        if where.in_webui:
            page.locator(f"{PANEL}_panel").screenshot(path=options.out / "panel.png")
        browser.close()


@contextlib.contextmanager
def host(folder: Path) -> Iterator[Host]:
    """The WebUI that the environment names, or the standalone page with the demo checkpoint and an empty store."""
    if url := os.environ.get("WEBUI_URL"):
        yield _webui(url.rstrip("/"))
    elif webui := os.environ.get("WEBUI_DIR"):
        settings = {
            "sd_model_checkpoint": "fluent-sd.safetensors",
            "quicksettings_list": [],
            "ui_reorder_list": ["scripts", "dimensions", "cfg"],  # the panel beside the picture
            "samples_save": False,
            "grid_save": False,
            "show_progress_every_n_steps": 2,
        }
        (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        with started(Path(webui), os.environ["WEBUI_PYTHON"], folder) as running:
            running.api("/openvino/cache", method="DELETE")
            yield _webui(running.url)
    else:
        with _standalone(folder) as url:
            yield Host(url, "#prompt textarea", "#generate", in_webui=False)


def _webui(url: str) -> Host:
    return Host(f"{url}/?__theme=light", "#txt2img_prompt textarea", "#txt2img_generate", in_webui=True)


@contextlib.contextmanager
def _standalone(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "ov_backend", "serve", "--port", "0", "--out", str(folder / "out")]
    command += ["--cache-dir", str(folder / "graphs")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(line.split()[1] for line in process.stdout if line.startswith("Open http"))
    finally:
        process.terminate()
        process.wait()


def prepare(page: Any, where: Host) -> None:
    """Open the page, with the panel in view, as somebody has it who has chosen the script and the checkpoint's own size."""
    page.goto(where.url)
    if where.in_webui:
        page.wait_for_selector("#txt2img_generate", state="visible")
        page.click("#txt2img_script_container #script_list input")
        page.locator("ul.options li", has_text=TITLE).first.click()
        for name, value in (("width", 256), ("height", 256), ("steps", 20), ("cfg_scale", 4)):
            page.fill(f"#txt2img_{name} input[type=number]", str(value))
            page.press(f"#txt2img_{name} input[type=number]", "Tab")
    page.wait_for_selector(f"{PANEL}_view", state="visible")
    page.wait_for_function(f"document.querySelector('{PANEL}_view').dataset.openvinoState")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(1500)
    page.evaluate(POINTER)


def record(page: Any, where: Host, seconds: float) -> Recording:
    """Two pictures, one after the other; the last one stays in view until the end."""
    with Recording(page) as recording:
        for prompt in PROMPTS:
            page.fill(where.prompt, "")
            page.locator(where.prompt).press_sequentially(prompt, delay=60)
            before = _run(page)["number"]
            _click(page, where.generate)
            _finish(page, before)
            recording.note()
            page.wait_for_timeout(2500)
        page.wait_for_timeout(max(0.0, recording.began + seconds - time.monotonic()) * 1000)
        recording.note()
    return recording


def _click(page: Any, selector: str) -> None:
    """Move the pointer to an element, and click it, as a hand does."""
    box = page.locator(selector).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=12)
    page.wait_for_timeout(250)
    page.mouse.down()
    page.mouse.up()


def _finish(page: Any, before: int) -> None:
    """Wait until a generation after number ``before`` has ended well, and the panel says so."""
    while (run := _run(page))["number"] <= before or run["active"]:
        page.wait_for_timeout(150)
    assert not run["error"], run
    page.wait_for_function(f"document.querySelector('{PANEL}_headline').textContent.startsWith('Done')")


def _run(page: Any) -> dict[str, Any]:
    """The status's last generation; its number is 0 before the first."""
    return dict(page.evaluate("OpenVINOPanel.request('status')")["run"] or {"number": 0, "active": False})


if __name__ == "__main__":
    main()
