"""The states of the panel, how each is reached in either host, and how a page looks in it: wide and narrow, light and dark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.integration.browser.conftest import AXE, SHOTS
from tests.integration.browser.page import PANEL, Page

#: Width of the window and colours; make test looks at two of the four, which have both of each.
LOOKS = [(1400, "light"), (400, "dark"), (400, "light"), (1400, "dark")][: 4 if "SCREENSHOTS" in os.environ else 2]


class Panel(Protocol):
    """What both hosts' pages can do."""

    page: Any
    #: The most steps of a generation.
    most_steps: int

    def begin(self, width: int, height: int, steps: int) -> None:
        """Press Generate with these values."""

    def wait_for(self, part: str, pattern: str) -> str:
        """The text of a part of the panel, once it matches."""

    def press(self, action: str) -> None:
        """Press a button of the panel."""

    def fill(self, part: str, text: str) -> None:
        """Write into a field of the panel, and leave it."""

    def open_more(self) -> None:
        """Open the panel's accordion."""


class Held:
    """Holds the status at the first answer that ``when`` accepts, so that a state that passes can be looked at."""

    def __init__(self, page: Any, when: Callable[[Any], bool], **changes: Any) -> None:
        self.when, self.changes, self.snapshot = when, changes, None
        page.route("**/openvino/status", self._answer)

    def _answer(self, route: Any) -> None:
        if self.snapshot is None:
            response = route.fetch()
            snapshot = response.json()
            if not self.when(snapshot):
                route.fulfill(response=response)
                return
            self.snapshot = {**snapshot, **self.changes}
        route.fulfill(json=self.snapshot)


def idle(panel: Panel) -> None:
    """As a new process answers."""
    Held(panel.page, lambda _: True, state="idle", run=None, job=None, stage=None, networks={}, compiled=[], messages=[])
    panel.wait_for("headline", "^Nothing is running$")


def preparing(panel: Panel) -> None:
    """A network is compiled for a generation."""
    Held(panel.page, lambda status: bool(status["stage"]))
    panel.begin(152, 88, panel.most_steps)
    panel.wait_for("headline", "^(Reading|Tracing|Converting|Compiling)")


def running(panel: Panel) -> None:
    """Some steps are done."""
    Held(panel.page, lambda status: bool(status["run"] and status["run"]["active"] and status["run"]["step"] > 3))
    panel.begin(64, 64, panel.most_steps)
    panel.wait_for("headline", r"step \d+ of")


def done(panel: Panel) -> None:
    """A picture is there; the accordion is open."""
    panel.begin(64, 64, 4)
    panel.wait_for("headline", "^Done in")
    panel.open_more()
    panel.page.click(f"{PANEL}_networks summary")


def ready(panel: Panel) -> None:
    """A size is prepared."""
    panel.fill("sizes", "64x64")
    panel.press("precompile")
    panel.wait_for("headline", "^Ready for 64x64$")


def refused(panel: Panel) -> None:
    """A size and a property make no sense."""
    panel.open_more()
    panel.fill("config_json", '{"CACHE_DIR": "/tmp"}')
    panel.wait_for("problem", "CACHE_DIR")
    panel.fill("sizes", "big")
    panel.press("precompile")
    panel.wait_for("alert", "is no size")


def fallback(panel: Panel) -> None:
    """OpenVINO refuses a property of another device, so PyTorch makes the picture."""
    panel.open_more()
    panel.fill("config_json", '{"NPU_TURBO": true}')
    panel.begin(64, 64, 2)
    panel.wait_for("fallbacks", "ran in PyTorch")
    panel.wait_for("headline", "^Done in")


def interrupted(panel: Panel) -> None:
    """Some steps were done when the user ended it."""
    panel.begin(64, 64, panel.most_steps)
    panel.wait_for("headline", r"step \d+ of")
    panel.press("interrupt")
    panel.wait_for("headline", "^Interrupted after")


def compared(panel: Panel) -> None:
    """The last picture by PyTorch and by OpenVINO."""
    panel.begin(64, 64, 2)
    panel.wait_for("headline", "^Done in")
    panel.press("compare")
    panel.wait_for("headline", "times as fast|equally fast")
    panel.wait_for("result", "PSNR|equal")


def failed(panel: Panel) -> None:
    """The standalone page was asked for a size that cannot be made."""
    panel.page.fill("#width input", "65")
    panel.page.click("#generate")
    panel.page.wait_for_selector("#message [data-openvino-outcome=failure]")


def gone(panel: Panel) -> None:
    """Nobody answers."""
    panel.page.route("**/openvino/status", lambda route: route.abort())
    panel.wait_for("alert", "The server has ended")


def history(panel: Panel) -> None:
    """The standalone page has made several pictures, and an older one is shown."""
    panel.page.fill("#batch_count input", "3")
    panel.begin(64, 64, 2)
    panel.page.wait_for_function("document.querySelectorAll('#history img').length >= 3")
    panel.wait_for("headline", "^Done in")
    panel.page.locator("#history button.thumbnail-item, #history button:has(img)").last.click()
    panel.page.wait_for_selector("#use", state="visible")


def starting(panel: Panel) -> None:
    """The standalone page's accordion "Start from a picture" is open."""
    panel.page.click("#start_from button")
    panel.page.wait_for_selector("#start canvas", state="visible")


def enlarging(panel: Panel) -> None:
    """The standalone page has a hires fix by the last of its upscalers."""
    panel.page.fill("#hires input", "2")
    panel.page.click("#upscaler input")
    panel.page.get_by_role("option").last.click()


def masked(panel: Panel) -> None:
    """A part of a picture to start from is painted over."""
    panel.begin(64, 64, 2)
    panel.wait_for("headline", "^Done in")
    panel.page.click("#start_from_this")
    panel.page.wait_for_selector("#start canvas", state="visible")
    panel.page.wait_for_timeout(3000)  # Gradio's field draws the picture later
    box = panel.page.locator("#start canvas").first.bounding_box()
    panel.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    panel.page.mouse.down()
    panel.page.mouse.move(box["x"] + box["width"] / 2 + 40, box["y"] + box["height"] / 2 + 30, steps=8)
    panel.page.mouse.up()


def waiting(panel: Panel) -> None:
    """Another page's picture is made before this one's, and is not shown."""
    tab = panel.page.context.new_page()
    tab.goto(panel.page.url)
    Page(tab).begin(64, 64, panel.most_steps)
    panel.wait_for("headline", r"step \d+ of")
    panel.begin(64, 64, 2)
    panel.page.wait_for_selector("#live :text('Waiting for another')")
    Held(panel.page, lambda _: True)


#: Every state by its name.
STATES: Mapping[str, Callable[[Any], None]] = {
    each.__name__: each for each in (idle, preparing, running, done, ready, refused, fallback, interrupted, compared)
}
#: Those of the standalone page, which has more than the panel.
STANDALONE_STATES: Mapping[str, Callable[[Any], None]] = {
    **STATES,
    **{each.__name__: each for each in (starting, masked, enlarging, failed, gone, history, waiting)},
}


def look(page: Any, name: str, within: str = "html") -> list[str]:
    """Show a page in every width and colour, and keep a screenshot of each.

    Returns serious and critical violations of accessibility that axe-core finds ``within`` a part of the page, and what is wider
    than the window, a sentence each.
    """
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.add_script_tag(path=AXE)
    problems = []
    for width, colours in LOOKS:
        page.emulate_media(color_scheme=colours)
        page.evaluate("dark => document.body.classList.toggle('dark', dark)", colours == "dark")  # Gradio 3 looks only once
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(250)  # until colours have faded
        page.screenshot(path=SHOTS / f"{name}-{width}-{colours}.png", full_page=True)
        found = [*violations(page, within), *wider(page, within)]
        problems += [f"{name}, {width} pixels, {colours}: {problem}" for problem in found]
    return problems


def violations(page: Any, within: str = "html") -> list[str]:
    """Serious and critical problems of accessibility that axe-core finds; its script has to be in the page."""
    result = page.evaluate("within => axe.run(within, {resultTypes: ['violations']})", within)
    assert len(result["passes"]) > 5, "axe-core has looked at nothing"
    return [
        f"{each['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


#: Of input fields, the values that do not fit: without a sign of it, or below the arrow of a list.
CUT = """es => es.filter(e => {
    const style = getComputedStyle(e), arrow = e.nextElementSibling?.matches('.icon-wrap') && e.nextElementSibling;
    const end = e.getBoundingClientRect().right - parseFloat(style.paddingRight);
    const covered = arrow && arrow.getBoundingClientRect().left < end;
    return e.scrollWidth > e.clientWidth + 1 && (covered || style.textOverflow !== 'ellipsis');
}).map(e => e.value)"""


def wider(page: Any, within: str = "html") -> list[str]:
    """What of the page and of the panel is wider than its place, and values that are cut off without a sign of it."""
    fits = page.locator(within).first.evaluate("e => e.getBoundingClientRect().right <= innerWidth + 1")
    overflowing = "es => es.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    texts = page.locator(".openvino-panel :is(label, .block)").evaluate_all(overflowing)
    values = page.locator(".openvino-panel .form input").evaluate_all(CUT)
    wide = [*(f"too wide: {text[:80]}" for text in texts), *(f"cut off: {value}" for value in values)]
    return [*([] if fits else ["it is wider than the window"]), *wide]
