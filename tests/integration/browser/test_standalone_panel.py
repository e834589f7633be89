"""The panel in the standalone page: its buttons, polling, keyboard, accessibility."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ov_backend.batch.api import Batch, Options
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.panel import TEXTS
from tests.helpers.extent import only_in_full
from tests.integration.browser.conftest import SHOTS
from tests.integration.browser.page import PANEL, Page, status_requests


@only_in_full
def test_precompile_makes_a_size_ready(at: Callable[..., Page]) -> None:
    page = at()
    page.unfold().page.fill(f"{PANEL}_sizes", "nonsense")
    page.press("precompile")
    page.wait_for("alert", '"nonsense" is no size')
    page.page.fill(f"{PANEL}_sizes", "80x64")
    page.press("precompile")
    page.wait_for("headline", "^Ready for 80x64$", 90)
    assert page.page.get_attribute(f"{PANEL}_view", "data-openvino-outcome") == "success"
    before = page.api()["networks"]["unet"]["compiles"]
    page.set(steps=1, width=80, height=64).generate()
    assert page.finish().startswith("Done"), "what was ready is no news any more"
    assert page.api()["networks"]["unet"]["compiles"] == before


@only_in_full
def test_the_comparison_shows_both_pictures_with_their_seconds(at: Callable[..., Page]) -> None:
    page = at()
    page.set(steps=2, width=64, height=64).generate()
    page.finish()
    page.press("compare")
    page.wait_for("headline", "times as fast|equally fast", 120)
    result = page.text("result")
    assert re.search(r"^The picture: PyTorch .*One step of 64x64: PyTorch [\d.]+ m?s, OpenVINO [\d.]+ m?s\.", result)
    assert re.search(r"PSNR [\d.]+ dB|Both pictures are equal", result)
    page.page.wait_for_function("document.querySelectorAll('#comparison img').length >= 2")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.page.screenshot(path=SHOTS / "standalone-compared.png", full_page=True)
    page.generate()
    page.finish()
    page.page.wait_for_selector("#comparison", state="hidden")


def test_the_settings_are_saved_as_a_job_file_that_the_command_reads(
    at: Callable[..., Page], checkpoint: Path, tmp_path: Path
) -> None:
    page = at()
    page.set(prompt='a cat, "quoted" <b>', negative_prompt="dogs", steps=3, width=64, height=72, seed=7, guidance=5.5)
    page.choose("precision", "f32")
    page.open_more()
    with page.page.expect_download() as download:
        page.press("job")
    assert download.value.suggested_filename == "job.jsonl"
    download.value.save_as(tmp_path / "job.jsonl")
    page.wait_for("notice", "job.jsonl asks for what the page shows")
    (row,) = Batch(tmp_path / "job.jsonl", tmp_path / "out", Options(checkpoint=checkpoint)).job.rows
    expected = Parameters('a cat, "quoted" <b>', "dogs", 3, 5.5, 7, 64, 72, 1, None, "DPM++ 2M")
    assert (row.parameters, row.precision, row.checkpoint) == (expected, "f32", checkpoint)


def test_a_hidden_tab_sends_no_request_while_nothing_runs(at: Callable[..., Page]) -> None:
    page = at()
    requests = status_requests(page.page)

    def wait_for_requests(count: int) -> None:
        requests.clear()
        deadline = time.monotonic() + 30
        while len(requests) < count:
            assert time.monotonic() < deadline, "the page sends no request"
            page.page.wait_for_timeout(50)

    def assert_silent() -> None:
        page.page.wait_for_timeout(400)  # for a request that is on its way
        requests.clear()
        page.page.wait_for_timeout(1200)
        assert requests == []

    wait_for_requests(2)
    hide = """Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'))"""
    page.page.evaluate(hide % "true")
    assert_silent()
    page.page.evaluate(hide % "false")
    wait_for_requests(1)


def test_the_panel_can_be_used_by_keyboard_and_every_control_is_named_and_explained(at: Callable[..., Page]) -> None:
    page = at()
    page.unfold().page.focus(f"{PANEL}_sizes")
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("big")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.id") == "openvino_txt2img_precompile"
    page.page.keyboard.press("Enter")
    page.wait_for("alert", '"big" is no size')
    page.open_more()
    for field, (_, hint) in TEXTS.items():
        control = page.page.locator(f"{PANEL}_{field} :is(input, textarea)").first
        assert control.evaluate("e => e.labels.length > 0 || e.hasAttribute('aria-label')"), field
        assert hint in page.text(field)


def test_the_cache_is_cleared_only_after_a_confirmation(at: Callable[..., Page]) -> None:
    page = at()
    page.set(steps=1, width=64, height=64).generate()
    page.finish()
    page.open_more()
    page.wait_for("cache", r"[1-9]\d* prepared graphs? on disk")
    questions, answers = [], iter((False, True))

    def answer(dialog: Any) -> None:
        questions.append(dialog.message)
        dialog.accept() if next(answers) else dialog.dismiss()

    page.page.on("dialog", answer)
    page.press("clear")
    assert page.api("cache")["entries"] > 0
    page.press("clear")
    page.wait_for("notice", r"\d+ graphs? removed")
    page.wait_for("cache", "^0 prepared graphs")
    assert page.api("cache")["entries"] == 0
    assert all("prepared graph" in question for question in questions)
    assert len(questions) == 2
