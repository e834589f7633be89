"""Every state of the panel in the standalone page is accessible, and fits narrow and wide windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.extent import some
from tests.integration.browser.conftest import AXE
from tests.integration.browser.page import PANEL, Page
from tests.integration.browser.states import STANDALONE_STATES, look


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install")
@pytest.mark.parametrize("state", some(["idle", "starting"], STANDALONE_STATES))
def test_every_state_is_accessible_and_fits(at: Callable[..., Page], state: str) -> None:
    page = at()
    page.set(prompt="a cat", seed=5)
    STANDALONE_STATES[state](page)
    assert look(page.page, f"standalone-{state}") == []
    page.page.unroute("**/openvino/status")


@pytest.mark.parametrize("width", [1400, 1280, 650])
def test_the_fields_are_level_whatever_their_hints_and_the_table_fits(at: Callable[..., Page], width: int) -> None:
    page = at()
    page.set(steps=1, width=64, height=64).generate()
    page.finish()
    page.open_more()
    page.page.set_viewport_size({"width": width, "height": 1000})
    page.page.click(f"{PANEL}_networks summary")
    for fields in (("device", "precision"), ("memory_mb", "low_memory")):
        boxes = [page.page.locator(f"{PANEL}_{field} input").first for field in fields]
        top = "e => Math.round((e.closest('.container > .wrap') ?? e).getBoundingClientRect().top)"
        edges = {box.evaluate(top) for box in boxes}
        assert max(edges) - min(edges) <= 1, fields
    labels = [page.page.locator(f"{PANEL}_{field} .has-info").first for field in ("device", "precision")]
    assert len({label.evaluate("e => Math.round(e.getBoundingClientRect().top)") for label in labels}) == 1
    table = page.page.locator(".openvino-scroll")
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), "the last column is cut off"


def test_an_error_stands_below_the_buttons_and_level_with_them(at: Callable[..., Page]) -> None:
    page = at()
    edges = "e => { const box = e.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom].map(Math.round); }"
    status = page.page.locator(f"{PANEL}_view").evaluate(edges)
    STANDALONE_STATES["failed"](page)
    buttons = page.page.locator("#begin").evaluate(edges)
    error = page.page.locator("#message .openvino-note").evaluate(edges)
    assert (error[0], error[2]) == (status[0], status[2]) == (buttons[0], buttons[2])
    assert 0 <= error[1] - buttons[3] < 40
