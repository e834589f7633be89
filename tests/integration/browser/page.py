"""The standalone page as the tests use it."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PANEL = "#openvino_txt2img"


class Page:
    """The standalone page as a user operates it."""

    most_steps = 900

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_selector(f"{PANEL}_view")
        page.wait_for_function("document.querySelector('.openvino-view').dataset.openvinoState")

    def set(self, **fields: Any) -> Page:
        for name, value in fields.items():
            self.page.fill(f"#{name} :is(input, textarea)", str(value))
        return self

    def choose(self, field: str, option: str) -> None:
        self.unfold()
        self.page.click(f"{PANEL}_{field} input")
        self.page.get_by_role("option", name=re.compile(f"^{re.escape(option)}")).first.click()

    def begin(self, width: int, height: int, steps: int) -> None:
        self.set(width=width, height=height, steps=steps).generate()

    def unfold(self) -> Page:
        """Open the panel; Gradio makes what stands in it only then."""
        if not self.page.is_visible(f"{PANEL}_device"):
            self.page.click("#openvino > button")
            self.page.wait_for_selector(f"{PANEL}_prepare", state="visible")
        return self

    def fill(self, part: str, text: str) -> None:
        """Write into a field of the panel, and leave it."""
        self.unfold()
        field = self.page.locator(f"{PANEL}_{part}:is(input), {PANEL}_{part} :is(input, textarea)").first
        field.fill(text)
        field.press("Tab")

    def restore(self, picture: Path) -> None:
        """Read the settings from a picture's file."""
        self.page.set_input_files("#restore input[type=file]", str(picture))

    def start_from(self, picture: Path) -> None:
        """Give a picture to start from."""
        for seconds in (2, 4, 8):  # a picture given before Gradio's field has loaded its parts is lost, and so is the field
            self.page.click("#start_from button")
            self.page.wait_for_selector("#start canvas")
            self.page.wait_for_timeout(1000 * seconds)
            self.page.set_input_files("#start input[type=file]", str(picture))
            for _ in range(15):
                self.page.wait_for_timeout(1000)
                if self.page.locator("#started input:checked").count():
                    return
            self.page.reload()
            Page(self.page)
        raise AssertionError("the page takes no picture to start from")

    def drop(self, picture: Path, onto: str) -> None:
        """Drop a picture's file onto a part of the page."""
        data = base64.b64encode(picture.read_bytes()).decode()
        self.page.evaluate(
            """async ([data, name, onto]) => {
                const bytes = await (await fetch(`data:image/png;base64,${data}`)).blob();
                const dataTransfer = new DataTransfer();
                dataTransfer.items.add(new File([bytes], name, { type: "image/png" }));
                const options = { bubbles: true, cancelable: true, dataTransfer };
                document.querySelector(onto).dispatchEvent(new DragEvent("drop", options));
            }""",
            [data, picture.name, onto],
        )

    def generate(self) -> None:
        self.number = self.run["number"] + 1
        self.page.click("#generate")

    @property
    def run(self) -> dict[str, Any]:
        return self.api()["run"] or {"number": 0, "active": False}

    def text(self, part: str) -> str:
        return str(self.page.text_content(f"{PANEL}_{part}")).strip()

    @property
    def message(self) -> str:
        return str(self.page.text_content("#message")).strip()

    def wait_for_message(self, text: str) -> None:
        self.page.wait_for_function("text => document.querySelector('#message').textContent.includes(text)", arg=text)

    def wait_for(self, part: str, pattern: str, seconds: float = 120) -> str:
        """The text of a part of the panel, once it matches."""
        self.page.wait_for_function(
            "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector).textContent)",
            arg=[f"{PANEL}_{part}", pattern],
            timeout=seconds * 1000,
        )
        return self.text(part)

    def finish(self) -> str:
        """Wait for the end of this page's generation; returns the headline."""
        deadline = time.monotonic() + 180
        while (run := self.run)["number"] < self.number or run["active"]:
            assert time.monotonic() < deadline, run
            self.page.wait_for_timeout(100)
        return self.wait_for("headline", "^(Done|Ended|Interrupted)")

    def open_more(self) -> None:
        """Open the panel's accordion."""
        self.unfold()
        self.page.click(f"{PANEL}_more button")
        self.page.wait_for_selector(f"{PANEL}_details", state="visible")

    def press(self, action: str) -> None:
        """Press a button of the panel, or the page's own for what it has begun."""
        if action == "interrupt":
            self.page.click("#interrupt:enabled")
        else:
            self.unfold().page.click(f"{PANEL}_{action}:enabled")

    def api(self, path: str = "status") -> Any:
        return self.page.evaluate("(path) => OpenVINOPanel.request(path)", path)


def watch_headlines(page: Any) -> Callable[[], list[str]]:
    """Returns every headline shown from now on."""
    page.evaluate(
        """() => {
            const element = document.querySelector('.openvino-headline');
            globalThis.headlines = [];
            new MutationObserver(() => globalThis.headlines.push(element.textContent))
                .observe(element, { childList: true, characterData: true, subtree: true });
        }"""
    )
    return lambda: page.evaluate("globalThis.headlines")


def status_requests(page: Any) -> list[float]:
    """When the page requests the status from now on; the list grows."""
    times: list[float] = []
    page.on("request", lambda request: times.append(time.monotonic()) if request.url.endswith("/openvino/status") else None)
    return times
