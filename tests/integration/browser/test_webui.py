"""The panel in the page of a real WebUI, at WEBUI_URL."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.browser.conftest import AXE, SHOTS
from tests.integration.browser.states import STATES, look

URL = os.environ.get("WEBUI_URL", "").rstrip("/")
TITLE = "Accelerate with OpenVINO"
PANEL = "#openvino_txt2img"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not URL, reason="no WebUI: set WEBUI_URL to the address of one with this extension"),
]


class Page:
    """The WebUI's txt2img tab with the script chosen."""

    most_steps = 150

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_selector("#txt2img_generate", state="visible")
        page.wait_for_selector("#txt2img_prompt textarea")
        page.click("#txt2img_script_container #script_list input")
        page.locator("ul.options li", has_text=TITLE).first.click()
        page.wait_for_selector(f"{PANEL}_view", state="visible")
        page.wait_for_function("document.querySelector('#openvino_txt2img_view').dataset.openvinoState")

    def size(self, width: int, height: int, steps: int) -> None:
        for name, value in (("width", width), ("height", height), ("steps", steps)):
            self.page.fill(f"#txt2img_{name} input[type=number]", str(value))
            self.page.press(f"#txt2img_{name} input[type=number]", "Tab")

    def api(self) -> Any:
        return self.page.evaluate("OpenVINOPanel.request('status')")

    def generate(self) -> None:
        self.number = (self.api()["run"] or {"number": 0})["number"] + 1
        self.page.click("#txt2img_generate")

    def finish(self) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while not (run := self.api()["run"]) or run["number"] < self.number or run["active"]:
            assert time.monotonic() < deadline, run
            self.page.wait_for_timeout(100)
        return run

    def begin(self, width: int, height: int, steps: int) -> None:
        self.size(width, height, steps)
        self.generate()

    def press(self, action: str) -> None:
        self.page.click(f"{PANEL}_{action}:enabled")

    def fill(self, part: str, text: str) -> None:
        """Write into a field of the panel, and leave it."""
        field = self.page.locator(f"{PANEL}_{part}:is(input), {PANEL}_{part} :is(input, textarea)").first
        field.fill(text)
        field.press("Tab")

    def open_more(self) -> None:
        self.page.click(f"{PANEL}_more > .label-wrap")
        self.page.wait_for_selector(f"{PANEL}_details", state="visible")

    def wait_for(self, part: str, pattern: str) -> str:
        selector = part if part.startswith("#") else f"{PANEL}_{part}"
        self.page.wait_for_function(
            "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector)?.textContent)",
            arg=[selector, pattern],
            timeout=120_000,
        )
        return str(self.page.text_content(selector))


@pytest.fixture(autouse=True)
def _without_gradio_errors(open_page: Callable[..., Any], errors: list[str]) -> Iterator[None]:
    """Gradio 3.41.2 raises this error at every generation, also without any extension."""
    yield
    errors[:] = [error for error in errors if error != "Cannot read properties of undefined (reading 'props')"]


@pytest.fixture
def webui(open_page: Callable[..., Any]) -> Callable[..., Page]:
    return lambda **options: Page(open_page(URL, **options))


def test_stages_and_steps_are_shown_until_the_picture_is_there(webui: Callable[..., Page], record_property: Any) -> None:
    page = webui()
    page.page.evaluate(
        """() => {
            globalThis.seen = {panel: [], bar: []};
            const note = (list, text) => { if (text && list.at(-1) !== text) list.push(text); };
            setInterval(() => {
                note(globalThis.seen.panel, document.querySelector('#openvino_txt2img_headline').textContent);
                note(globalThis.seen.bar, document.querySelector('.progressDiv .progress')?.textContent);
            }, 50);
        }"""
    )
    page.size(264, 200, 8)
    page.generate()
    run = page.finish()
    assert (run["steps"], run["error"]) == (8, "")
    page.wait_for(f"{PANEL}_headline", "^Done in")
    seen = page.page.evaluate("globalThis.seen")
    record_property("panel", seen["panel"])
    record_property("progress bar", seen["bar"])
    assert any(re.match(r"(Tracing|Converting|Compiling) UNet 264x200", text) for text in seen["panel"])
    assert any(re.search(r"(Tracing|Converting|Compiling) UNet 264x200 \(\d+ s\)", text) for text in seen["bar"])
    page.page.wait_for_selector("#txt2img_gallery img")
    page.wait_for("#html_info_txt2img", "OpenVINO")
    assert "UNet" in str(page.page.text_content(f"{PANEL}_networks"))


def test_an_interrupt_during_a_compile_ends_the_generation(webui: Callable[..., Page], record_property: Any) -> None:
    page = webui()
    page.size(328, 136, 20)
    page.generate()
    page.wait_for(f"{PANEL}_headline", "^(Tracing|Converting|Compiling) UNet")
    start = time.monotonic()
    page.page.evaluate("document.querySelector('#txt2img_interrupt').click()")
    run = page.finish()
    record_property("seconds from Interrupt to the end of the run", round(time.monotonic() - start, 2))
    assert run["error"] == "Interrupted."
    assert not run["shares"]["unet"], "the compile was waited for, and the compiled UNet called"


def test_the_text_of_a_picture_restores_the_panel(webui: Callable[..., Page]) -> None:
    page = webui()
    text = "a cat\nSteps: 4, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 256x256, Script: Accelerate with OpenVINO, "
    page.page.fill("#txt2img_prompt textarea", text + 'OpenVINO: "ran=UNet; precision=f32; vae=off; memory_mb=700"')
    page.page.click("#paste")
    page.page.wait_for_function("document.querySelector('#openvino_txt2img_precision input')?.value === 'f32'")
    page.page.wait_for_function("!document.querySelector('#openvino_txt2img_vae input').checked")
    assert page.page.input_value(f"{PANEL}_memory_mb input") == "700"


def test_a_size_is_precompiled_and_the_cache_is_cleared(webui: Callable[..., Page]) -> None:
    page = webui()
    page.page.fill(f"{PANEL}_sizes", "192x256")
    page.page.click(f"{PANEL}_precompile:enabled")
    page.wait_for(f"{PANEL}_headline", "^Ready for 192x256$")
    compiles = page.api()["networks"]["unet"]["compiles"]
    page.size(192, 256, 2)
    page.generate()
    page.finish()
    assert page.api()["networks"]["unet"]["compiles"] == compiles
    page.page.click(f"{PANEL}_more > .label-wrap")
    page.page.once("dialog", lambda dialog: dialog.accept())
    page.page.click(f"{PANEL}_clear:enabled")
    page.wait_for(f"{PANEL}_notice", "graphs? removed")


def test_a_comparison_shows_both_pictures_of_the_last_generation(webui: Callable[..., Page], errors: list[str]) -> None:
    page = webui()
    page.size(128, 192, 4)
    page.generate()
    page.finish()
    page.page.click(f"{PANEL}_compare:enabled")
    page.wait_for(f"{PANEL}_headline", "times as fast|equally fast")
    page.wait_for(f"{PANEL}_result", r"(PSNR [\d.]+ dB|equal).*One step of 128x192")
    page.page.wait_for_function(
        "[...document.querySelectorAll('#openvino_txt2img_view img')].filter(e => e.naturalWidth === 128).length === 2"
    )
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.page.locator("#txt2img_script_container").screenshot(path=SHOTS / "webui-compared.png")


def _brightness(colour: str) -> float:
    """Brightness, 0 to 255, of "rgb(r, g, b)"."""
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_panel_is_readable_and_fits_a_narrow_window(open_page: Callable[..., Any], theme: str) -> None:
    page = Page(open_page(f"{URL}/?__theme={theme}"))
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.page.locator("#txt2img_script_container").screenshot(path=SHOTS / f"webui-{theme}.png")
    colours = "e => [getComputedStyle(e).color, getComputedStyle(e).backgroundColor]"
    text, background = page.page.locator(f"{PANEL}_sizes").evaluate(colours)
    assert abs(_brightness(text) - _brightness(background)) > 120, f"{text} on {background}"
    page.page.set_viewport_size({"width": 420, "height": 900})
    page.page.locator("#txt2img_script_container").screenshot(path=SHOTS / f"webui-{theme}-narrow.png")
    fits = page.page.locator(f"{PANEL}_view").evaluate("e => e.getBoundingClientRect().right <= innerWidth + 1")
    assert fits, "the panel is wider than the window"


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install")
@pytest.mark.parametrize("state", STATES)
def test_every_state_of_the_panel_is_accessible_and_fits(webui: Callable[..., Page], state: str) -> None:
    page = webui()
    try:
        STATES[state](page)
        assert look(page.page, f"webui-{state}", f"{PANEL}_panel") == []
    finally:
        page.page.unroute("**/openvino/status")
        if page.api()["state"] != "idle":
            page.page.evaluate("document.querySelector('#txt2img_interrupt').click()")
            page.finish()
