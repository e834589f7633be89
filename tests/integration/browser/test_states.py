"""Every state of the panel in the standalone page is accessible, and fits narrow and wide windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.extent import some
from tests.integration.browser.conftest import AXE
from tests.integration.browser.page import Page
from tests.integration.browser.states import STATES, look


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: npm install")
@pytest.mark.parametrize("state", some(["idle"], STATES))
def test_every_state_is_accessible_and_fits(at: Callable[..., Page], state: str) -> None:
    page = at()
    page.set(prompt="a cat", seed=5)
    STATES[state](page)
    assert look(page.page, f"standalone-{state}") == []
    page.page.unroute("**/openvino/status")
