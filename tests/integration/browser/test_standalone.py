"""Generating in the standalone page: stages, pictures, interrupting, restoring, reloading, two tabs, hostile names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, PngImagePlugin

from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from tests.helpers.extent import only_in_full
from tests.integration.browser.conftest import NASTY, Server
from tests.integration.browser.page import PANEL, Page, watch_headlines


def pictures(server: Server) -> list[Path]:
    return sorted(server.out.glob("*.png"), key=lambda path: path.stat().st_mtime_ns)


def test_a_user_chooses_a_device_and_gets_a_picture(at: Callable[..., Page], server: Server, record_property: Any) -> None:
    page = at()
    assert page.text("headline") == "Nothing is running"
    page.choose("device", "AUTO")
    page.choose("precision", "f32")
    headlines_seen = watch_headlines(page.page)
    ages: list[float] = []
    labels: set[str] = set()

    def note(response: Any) -> None:
        if response.url.endswith("/openvino/status"):
            stage = response.json()["stage"]
            if stage and stage["label"] not in labels:
                labels.add(stage["label"])
                ages.append(stage["seconds"])

    page.page.on("response", note)
    page.set(prompt="a cat, and <b>a dog</b>", steps=24, width=64, height=64, seed=5).generate()
    assert page.finish().startswith("Done in")
    headlines = " | ".join(headlines_seen())
    assert "UNet 64x64" in headlines
    assert re.search("Tracing|Converting", headlines)
    assert "Compiling" in headlines
    record_property("age of the stages when the page learned of them, seconds", sorted(ages))
    assert sorted(ages)[len(ages) // 2] <= 1.0
    page.page.wait_for_selector("#gallery img")
    with Image.open(pictures(server)[-1]) as picture:
        assert picture.size == (64, 64)
        parameters, choices = Parameters.from_text(picture.info["parameters"])
    assert (parameters.prompt, parameters.seed, parameters.steps) == ("a cat, and <b>a dog</b>", 5, 24)
    assert choices == Choices(device="AUTO", precision="f32")
    assert "per step on average" in page.text("timing")
    page.open_more()
    page.wait_for("coverage", "UNet: 100 % in OpenVINO")
    page.page.click(f"{PANEL}_networks summary")
    row = page.page.locator(f"{PANEL}_networks tr", has_text="UNet").first.inner_text()
    assert row.split("\t")[:5] == ["UNet", "64x64", "2", "CPU", "f32"]
    page.set(steps=24, seed=6).generate()  # nothing is prepared now, so the UNet's share is large enough to be shown
    page.wait_for("shares", "UNet")


def test_names_are_shown_as_text(at: Callable[..., Page]) -> None:
    page = at()
    page.set(prompt=NASTY, steps=1, width=64, height=64).generate()
    page.finish()
    page.wait_for_message("Steps: 1")
    assert page.message.count(NASTY) == 2, "the prompt and the checkpoint's name"
    assert page.page.evaluate("globalThis.broken") is None
    assert page.page.locator("#message img").count() == 0


def test_an_interrupt_during_a_compile_is_answered_at_once(at: Callable[..., Page], server: Server, record_property: Any) -> None:
    page = at()
    before = len(pictures(server))
    page.set(steps=20, width=136, height=72).generate()
    page.wait_for("headline", "^(Tracing|Converting|Compiling) UNet")
    start = time.monotonic()
    page.page.click("#interrupt")
    page.wait_for_message("Interrupted")
    record_property("seconds from Interrupt to its answer during a compile", round(time.monotonic() - start, 3))
    assert len(pictures(server)) == before
    page.wait_for("headline", "^(Interrupted|Tracing|Converting|Compiling)")
    page.set(steps=2).generate()  # the abandoned compile is used
    page.wait_for_message("Size: 136x72")
    assert len(pictures(server)) == before + 1


@only_in_full
def test_an_interrupt_between_steps_is_answered_at_once_and_keeps_the_picture(at: Callable[..., Page], server: Server) -> None:
    page = at()
    page.set(steps=1, width=64, height=64).generate()
    page.finish()
    before = len(pictures(server))
    page.set(steps=900, seed=99).generate()
    page.wait_for("headline", r"step \d+ of 900")
    page.press("interrupt")
    page.wait_for_message("Interrupted")
    page.wait_for("headline", "^Interrupted after")
    page.page.wait_for_function("document.querySelector('#gallery img')?.src.includes('-99-')")
    assert len(pictures(server)) == before + 1


def test_the_page_answers_generate_at_once_and_previews_the_picture(at: Callable[..., Page]) -> None:
    page = at()
    page.set(prompt="", steps=200, width=64, height=64)
    page.page.focus("#prompt textarea")
    page.page.keyboard.type("a cat")
    page.number = page.run["number"] + 1
    page.page.keyboard.press("Control+Enter")
    page.page.wait_for_selector("#generate:disabled")
    page.page.wait_for_selector(".openvino-live img[src^='data:image/png']")
    page.wait_for("headline", r"step \d+ of 200$")
    page.wait_for("timing", r"about \d+ s left$")
    page.page.wait_for_function(r"/^\d+ %, about \d+ s left · Stable Diffusion on OpenVINO$/.test(document.title)")
    page.page.click("#interrupt")
    page.wait_for_message("a cat")
    page.page.wait_for_selector("#generate:enabled")
    page.page.wait_for_selector(".openvino-live", state="detached")
    page.page.wait_for_function("document.title === 'Stable Diffusion on OpenVINO'")


def test_something_happens_before_the_server_answers(at: Callable[..., Page]) -> None:
    page = at()
    held: list[Any] = []
    holding = True
    page.page.route("**/queue/join*", lambda route: held.append(route) if holding else route.continue_())
    page.page.click("#generate")
    page.page.wait_for_selector(".openvino-live")
    assert page.page.text_content(".openvino-live p") == "Beginning"
    holding = False  # the request may come later than what the page shows
    for route in held:
        route.continue_()
    page.page.wait_for_selector("#generate:disabled")


def test_the_size_is_swapped_and_proposed_and_the_seed_is_reused(at: Callable[..., Page]) -> None:
    page = at()
    size = lambda: [page.page.input_value(f"#{name} input") for name in ("width", "height")]  # noqa: E731

    def wait_for_size(*expected: str) -> None:
        sides = "['width', 'height'].map(name => document.querySelector(`#${name} input`).value).join()"
        page.page.wait_for_function(f"expected => {sides} === expected", arg=",".join(expected))

    assert size() == ["256", "256"]
    page.page.click("#size_256x384")
    wait_for_size("256", "384")
    page.page.click("#swap")
    wait_for_size("384", "256")
    page.set(steps=1, width=64, height=64, seed=4321).generate()
    page.finish()
    page.page.click("#random_seed")
    page.page.wait_for_function("document.querySelector('#seed input').value === '-1'")
    page.page.click("#reuse_seed")
    page.page.wait_for_function("document.querySelector('#seed input').value === '4321'")


@only_in_full
def test_a_page_reloaded_in_mid_run_shows_it_and_its_picture(at: Callable[..., Page]) -> None:
    page = at()
    page.set(prompt="reloaded", steps=300, width=64, height=64, seed=77).generate()
    page.wait_for("headline", r"step \d+ of 300")
    page.page.reload()
    reloaded = Page(page.page)
    reloaded.wait_for("headline", r"step \d+ of 300")
    reloaded.wait_for("headline", "Done in")
    reloaded.page.wait_for_function("document.querySelector('#gallery img')?.src.includes('-77-')")


def test_the_parameters_of_a_picture_restore_the_page(at: Callable[..., Page], server: Server, tmp_path: Path) -> None:
    choices = Choices(precision="f32", vae=False, memory_mb=900, config_json='{"PERFORMANCE_HINT": "LATENCY"}')
    page = at()
    page.choose("precision", "f32")
    page.open_more()
    page.page.uncheck(f"{PANEL}_vae input")
    page.page.fill(f"{PANEL}_memory_mb input", "900")
    page.page.fill(f"{PANEL}_config_json textarea", choices.config_json)
    page.set(prompt="two, lines\nand: more", negative_prompt="no", steps=2, guidance=3.5, width=64, height=64, seed=11).generate()
    page.finish()
    saved = pictures(server)[-1]
    other = at()
    other.restore(saved)
    other.page.get_by_text("Settings read from the picture.").wait_for()
    other.page.wait_for_selector(f"{PANEL}_vae input")  # what is not default is shown
    value = lambda name: other.page.input_value(f"#{name} :is(input, textarea)")  # noqa: E731
    assert [value(name) for name in ("prompt", "negative_prompt", "steps", "guidance", "seed", "width", "height")] == [
        "two, lines\nand: more", "no", "2", "3.5", "11", "64", "64",
    ]  # fmt: skip
    assert value("openvino_txt2img_precision") == "f32"
    assert not other.page.is_checked(f"{PANEL}_vae input")
    assert value("openvino_txt2img_memory_mb") == "900"
    other.generate()
    other.finish()
    with Image.open(saved) as first, Image.open(pictures(server)[-1]) as second:
        assert Parameters.from_text(second.info["parameters"]) == Parameters.from_text(first.info["parameters"])
        assert Parameters.from_text(first.info["parameters"])[1] == choices
        assert first.tobytes() == second.tobytes()
    dropped = at()
    dropped.set(negative_prompt="cleared", batch_count=3)
    bare = tmp_path / "bare.png"
    info = PngImagePlugin.PngInfo()
    info.add_text("parameters", "a bare one\nSteps: 5, Seed: 8, Size: 72x64")
    Image.new("RGB", (8, 8)).save(bare, pnginfo=info)
    dropped.drop(bare, "#prompt textarea")
    dropped.page.wait_for_function("document.querySelector('#prompt textarea').value === 'a bare one'")
    dropped.page.wait_for_function("document.querySelector('#seed input').value === '8'")  # fields change one after the other
    found = [dropped.page.input_value(f"#{name} :is(input, textarea)") for name in ("negative_prompt", "seed", "batch_count")]
    assert found == ["", "8", "1"]
    without = tmp_path / "without.png"
    Image.new("RGB", (8, 8)).save(without)
    third = at()
    third.restore(without)
    third.page.get_by_text("no picture that carries parameters").wait_for()
    third.page.wait_for_timeout(1000)  # for what should not come
    assert third.page.get_by_text("output values").count() == 0, "Gradio's own error"


@only_in_full
def test_a_picture_to_start_from_is_encoded(at: Callable[..., Page], server: Server, tmp_path: Path) -> None:
    start = tmp_path / "start.png"
    Image.linear_gradient("L").resize((512, 256)).convert("RGB").save(start)
    page = at()
    page.start_from(start)
    page.page.wait_for_function("document.querySelector('#width input').value === '360'")  # the picture is twice as wide as high
    page.set(steps=4, width=64, height=64, seed=3).generate()
    page.finish()
    page.wait_for_message("Denoising strength: 0.6")
    assert page.api()["networks"]["vae_encode"]["calls"] > 0


def test_what_is_drawn_on_a_picture_is_made_anew(at: Callable[..., Page], server: Server, tmp_path: Path) -> None:
    start = tmp_path / "start.png"
    Image.linear_gradient("L").convert("RGB").save(start)
    page = at()
    page.start_from(start)
    page.page.wait_for_selector("#start [aria-label='Brush Size']")  # the brush is ready
    canvas = page.page.locator("#start canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x + 60, y, steps=10)
    page.page.mouse.up()
    page.page.wait_for_timeout(500)  # until the field has the mask
    page.set(steps=4, width=256, height=256, seed=3, prompt="drawn").generate()
    page.finish()
    page.wait_for_message("Mask blur: 4")
    with Image.open(pictures(server)[-1]) as picture:
        made = picture.convert("L").resize((256, 256))
    changed = ImageChops.difference(made, Image.linear_gradient("L")).point(lambda value: 255 * (value > 8))
    assert changed.getbbox(), "nothing is made anew"
    assert changed.crop((0, 0, 40, 256)).getbbox() is None, "what was not drawn on has changed"


@only_in_full
def test_two_tabs_each_get_their_own_picture(at: Callable[..., Page], server: Server) -> None:
    first, second = at(), at()
    first.set(prompt="first", steps=150, width=64, height=64, seed=1).generate()
    second.wait_for("headline", r"Making 64x64|UNet 64x64|encoder|step")
    second.set(prompt="second", steps=2, width=64, height=64, seed=2).generate()
    first.wait_for_message("first")
    second.wait_for_message("second")
    assert "Seed: 1" in first.message
    assert "Seed: 2" in second.message


@only_in_full
def test_the_interrupt_of_a_tab_that_waits_leaves_the_other_tab_s_picture(at: Callable[..., Page]) -> None:
    first, second = at(), at()
    assert first.page.is_disabled("#interrupt")
    first.set(prompt="first", steps=300, width=64, height=64, seed=1).generate()
    second.wait_for("headline", r"step \d+ of 300")
    second.set(prompt="second", steps=2, width=64, height=64, seed=2).generate()
    second.page.wait_for_selector("text=Waiting for another page's picture")
    second.page.click("#interrupt:enabled")
    second.wait_for_message("Interrupted.")
    assert second.page.is_disabled("#interrupt")
    first.wait_for_message("Seed: 1")
    assert "Interrupted" not in first.message
    assert first.page.is_disabled("#interrupt")


def test_the_pictures_made_here_are_shown_again_and_used_again(at: Callable[..., Page]) -> None:
    page = at()
    for seed in (901, 902):
        page.set(prompt=f"seed {seed}", steps=2, width=64, height=72, seed=seed).generate()
        page.finish()
        page.wait_for_message(f"Seed: {seed}")
    page.wait_for_message("Saved as ")
    page.page.wait_for_function("document.querySelectorAll('#history img').length === 2")
    page.page.reload()
    page = Page(page.page)
    page.page.locator("#history button").nth(1).click()  # the newest is the first
    page.wait_for_message("Seed: 901")
    page.page.wait_for_function("document.querySelector('#gallery img')?.src.includes('-901-')")
    page.set(prompt="other", seed=7, steps=9)
    page.page.click("#use")
    page.page.wait_for_function("document.querySelector('#seed input').value === '901'")
    assert page.page.input_value("#prompt textarea") == "seed 901"
    page.page.click("#start_from_this")
    page.page.wait_for_selector("#started input:checked", state="attached")
    page.page.wait_for_timeout(3000)  # until Gradio's field has loaded the picture, which it takes for an upload
    assert [page.page.input_value(f"#{side} input") for side in ("width", "height")] == ["64", "72"]
    other = at()
    other.page.wait_for_timeout(1000)  # for pictures that should not come
    assert other.page.locator("#history img, #gallery img").count() == 0


def test_the_settings_are_there_again_after_a_reload(at: Callable[..., Page]) -> None:
    page = at()
    page.choose("precision", "f32")
    page.set(prompt="kept", negative_prompt="no", steps=7, guidance=3.5, seed=12, width=128)
    page.page.reload()
    page = Page(page.page)
    page.page.wait_for_function("document.querySelector('#prompt textarea').value === 'kept'")
    fields = ("negative_prompt", "steps", "guidance", "seed", "width", "height")
    assert [page.page.input_value(f"#{name} :is(input, textarea)") for name in fields] == ["no", "7", "3.5", "12", "128", "256"]
    page.unfold()
    assert page.page.input_value(f"{PANEL}_precision input") == "f32"


def test_no_button_of_the_page_leads_to_another_site(at: Callable[..., Page]) -> None:
    page = at()
    page.set(steps=1, width=64, height=64).generate()
    page.finish()
    page.page.click("#gallery button.thumbnail-item")
    page.page.wait_for_selector("#gallery button[aria-label='Download'], #gallery [title='Download']")
    assert page.page.locator("[aria-label='Share'], [title='Share']").count() == 0


def test_bad_input_is_answered_with_one_sentence(at: Callable[..., Page]) -> None:
    page = at()
    page.open_more()
    page.page.fill(f"{PANEL}_config_json textarea", "<script>")
    page.page.press(f"{PANEL}_config_json textarea", "Tab")
    page.page.wait_for_function(f"document.querySelector('{PANEL}_problem').textContent.includes('must be a JSON object')")
    page.set(steps=3, width=65, height=64).generate()
    page.wait_for_message("not a multiple of 8")
