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


@pytest.mark.parametrize("width", [1400, 1000])
def test_the_boxes_below_the_hints_are_level(at: Callable[..., Page], width: int) -> None:
    page = at()
    page.page.set_viewport_size({"width": width, "height": 1000})
    bottom = "e => Math.round((e.closest('.wrap') ?? e).getBoundingClientRect().bottom)"
    boxes = [page.page.locator(f"{PANEL}_{field} input").first for field in ("device", "precision")]
    assert len({box.evaluate(bottom) for box in boxes}) == 1
