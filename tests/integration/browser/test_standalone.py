"""The panel in a real page: stages, pictures, interrupting, the cache, reloading, two tabs, keyboard, other people's names."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters
from tests.integration.browser.conftest import NASTY, ROOT, SHOTS, Server

Open = Callable[..., Any]
PANEL = "#openvino_txt2img"


class Page:
    """The standalone page as somebody uses it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_selector(f"{PANEL}_view")
        page.wait_for_function("document.querySelector('.openvino-view').dataset.openvinoState")

    def set(self, **fields: Any) -> Page:
        for name, value in fields.items():
            self.page.fill(f"#{name} :is(input, textarea)", str(value))
        return self

    def choose(self, field: str, option: str) -> None:
        self.page.click(f"{PANEL}_{field} input")
        self.page.get_by_role("option", name=re.compile(f"^{re.escape(option)}")).first.click()

    def generate(self) -> None:
        self.number = self.run["number"] + 1
        self.page.click("#generate")

    @property
    def run(self) -> dict[str, Any]:
        return self.api()["run"] or {"number": 0, "active": False}

    def text(self, part: str) -> str:
        return str(self.page.text_content(f"{PANEL}_{part}")).strip()

    @property
    def said(self) -> str:
        return str(self.page.text_content("#said")).strip()

    def wait_for(self, part: str, pattern: str, seconds: float = 60) -> str:
        """The text of a part of the panel, once it matches."""
        self.page.wait_for_function(
            "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector).textContent)",
            arg=[f"{PANEL}_{part}", pattern],
            timeout=seconds * 1000,
        )
        return self.text(part)

    def finish(self) -> str:
        """Wait for the end of the generation that was begun here, and for what the page says then."""
        deadline = time.monotonic() + 60
        while (run := self.run)["number"] < self.number or run["active"]:
            assert time.monotonic() < deadline, run
            self.page.wait_for_timeout(100)
        return self.wait_for("headline", "^(Done|Ended)")

    def press(self, action: str) -> None:
        self.page.click(f"{PANEL}_{action}:enabled")

    def api(self, path: str = "status") -> Any:
        return self.page.evaluate("(path) => OpenVINOPanel.request(path)", path)


@pytest.fixture
def at(server: Server, open_page: Open) -> Callable[..., Page]:
    return lambda **options: Page(open_page(server.url, **options))


@pytest.fixture(autouse=True)
def _quiet(server: Server) -> Iterator[None]:
    """Whatever a test left running is over before the next one begins."""
    yield
    import httpx

    deadline = time.monotonic() + 60
    while httpx.get(f"{server.url}/openvino/status").json()["state"] != "idle":
        httpx.post(f"{server.url}/openvino/interrupt", json={})
        assert time.monotonic() < deadline
        time.sleep(0.2)


def pictures(server: Server) -> list[Path]:
    return sorted(server.out.glob("*.png"), key=lambda path: path.stat().st_mtime_ns)


def watch_headlines(page: Any) -> Callable[[], list[str]]:
    """Every headline that a person would have seen, from now on."""
    page.evaluate(
        """() => {
            const element = document.querySelector('.openvino-headline');
            globalThis.headlines = [];
            new MutationObserver(() => globalThis.headlines.push(element.textContent))
                .observe(element, { childList: true, characterData: true, subtree: true });
        }"""
    )
    return lambda: page.evaluate("globalThis.headlines")


def test_from_choosing_to_a_picture(at: Callable[..., Page], server: Server, record_property: Any) -> None:
    page = at()
    assert page.text("headline") == "Nothing is running"
    page.choose("device", "AUTO")
    page.choose("precision", "f32")
    seen = watch_headlines(page.page)
    ages: list[float] = []

    def note(response: Any) -> None:
        if response.url.endswith("/openvino/status"):
            stage = response.json()["stage"]
            if stage and stage["label"] not in known:
                known.add(stage["label"])
                ages.append(stage["seconds"])

    known: set[str] = set()
    page.page.on("response", note)
    page.set(prompt="a cat, and <b>a dog</b>", steps=6, width=64, height=64, seed=5).generate()
    assert page.finish().startswith("Done in")
    headlines = " | ".join(seen())
    assert "UNet 64x64" in headlines
    assert re.search("Tracing|Converting", headlines)
    assert "Compiling" in headlines
    record_property("age of the stages when the page learned of them, seconds", sorted(ages))
    assert sorted(ages)[len(ages) // 2] <= 1.0
    page.page.wait_for_selector("#gallery img")
    with Image.open(pictures(server)[-1]) as picture:
        assert picture.size == (64, 64)
        parameters, choices = Parameters.from_text(picture.info["parameters"])
    assert (parameters.prompt, parameters.seed, parameters.steps) == ("a cat, and <b>a dog</b>", 5, 6)
    assert choices == Choices(device="AUTO", precision="f32")
    assert "per step on average" in page.text("timing")
    assert "UNet" in page.text("shares")
    assert "UNet: 100 % in OpenVINO" in page.text("coverage")
    page.page.click(f"{PANEL}_networks summary")
    row = page.page.locator(f"{PANEL}_networks tr", has_text="UNet").first.inner_text()
    assert row.split("\t")[:5] == ["UNet", "64x64", "2", "CPU", "f32"]


def test_names_are_shown_as_text(at: Callable[..., Page]) -> None:
    page = at()
    page.set(prompt=NASTY, steps=1, width=64, height=64).generate()
    page.finish()
    page.page.wait_for_function("document.querySelector('#said').textContent.includes('Steps: 1')")
    assert page.said.count(NASTY) == 2, "the prompt and the checkpoint's name"
    assert page.page.evaluate("globalThis.broken") is None
    assert page.page.locator("#said img").count() == 0


def test_interrupt_during_a_compile(at: Callable[..., Page], server: Server, record_property: Any) -> None:
    page = at()
    before = len(pictures(server))
    page.set(steps=20, width=136, height=72).generate()
    page.wait_for("headline", "^(Tracing|Converting|Compiling) UNet")
    start = time.monotonic()
    page.page.click("#interrupt")
    page.page.wait_for_function("document.querySelector('#said').textContent.includes('Interrupted')")
    took = time.monotonic() - start
    record_property("seconds from Interrupt to its answer during a compile", round(took, 3))
    assert took < 2.0
    assert len(pictures(server)) == before
    page.wait_for("headline", "^(Ended: Interrupted|Tracing|Converting|Compiling)")
    page.set(steps=2).generate()  # what was abandoned still serves
    page.page.wait_for_function("document.querySelector('#said').textContent.includes('Size: 136x72')")
    assert len(pictures(server)) == before + 1


def test_interrupt_between_steps(at: Callable[..., Page]) -> None:
    page = at()
    page.set(steps=1, width=64, height=64).generate()
    page.finish()
    page.set(steps=900).generate()
    page.wait_for("headline", r"step \d+ of 900")
    start = time.monotonic()
    page.press("interrupt")
    page.page.wait_for_function("document.querySelector('#said').textContent.includes('Interrupted')")
    assert time.monotonic() - start < 2.0
    assert page.wait_for("headline", "Ended") == "Ended: Interrupted."


def test_the_cache_is_cleared_after_a_yes(at: Callable[..., Page]) -> None:
    page = at()
    page.set(steps=1, width=64, height=64).generate()
    page.finish()
    page.wait_for("cache", r"[1-9]\d* prepared graphs? on disk")
    asked = []

    def answer(yes: bool) -> Callable[[Any], None]:
        def handle(dialog: Any) -> None:
            asked.append(dialog.message)
            dialog.accept() if yes else dialog.dismiss()

        return handle

    page.page.once("dialog", answer(False))
    page.press("clear")
    assert page.api("cache")["entries"] > 0
    page.page.once("dialog", answer(True))
    page.press("clear")
    page.wait_for("alert", r"\d+ graphs? removed")
    page.wait_for("cache", "^0 prepared graphs")
    assert page.api("cache")["entries"] == 0
    assert all("prepared graph" in message for message in asked)
    assert len(asked) == 2


def test_a_page_reloaded_in_mid_run_shows_it_and_its_picture(at: Callable[..., Page]) -> None:
    page = at()
    page.set(prompt="reloaded", steps=300, width=64, height=64, seed=77).generate()
    page.wait_for("headline", r"step \d+ of 300")
    page.page.reload()
    again = Page(page.page)
    again.wait_for("headline", r"step \d+ of 300")
    again.wait_for("headline", "Done in")
    again.page.wait_for_function("document.querySelector('#gallery img')?.src.includes('-77-')")


def test_a_picture_restores_the_page(at: Callable[..., Page], server: Server, tmp_path: Path) -> None:
    chosen = Choices(precision="f32", vae=False, memory_mb=900, config_json='{"PERFORMANCE_HINT": "LATENCY"}')
    page = at()
    page.choose("precision", "f32")
    page.page.uncheck(f"{PANEL}_vae input")
    page.page.fill(f"{PANEL}_memory_mb input", "900")
    page.page.fill(f"{PANEL}_config_json textarea", chosen.config_json)
    page.set(prompt="two, lines\nand: more", negative_prompt="no", steps=2, guidance=3.5, width=64, height=64, seed=11).generate()
    page.finish()
    made = pictures(server)[-1]
    other = at()
    other.page.click("#restore_from button")
    other.page.set_input_files("#restore input[type=file]", str(made))
    other.page.wait_for_function("document.querySelector('#said').textContent.includes('Settings read')")
    value = lambda name: other.page.input_value(f"#{name} :is(input, textarea)")  # noqa: E731
    assert [value(name) for name in ("prompt", "negative_prompt", "steps", "guidance", "seed", "width", "height")] == [
        "two, lines\nand: more", "no", "2", "3.5", "11", "64", "64",
    ]  # fmt: skip
    assert value("openvino_txt2img_precision") == "f32"
    assert not other.page.is_checked(f"{PANEL}_vae input")
    assert value("openvino_txt2img_memory_mb") == "900"
    other.generate()
    other.finish()
    with Image.open(made) as first, Image.open(pictures(server)[-1]) as second:
        assert Parameters.from_text(second.info["parameters"]) == Parameters.from_text(first.info["parameters"])
        assert Parameters.from_text(first.info["parameters"])[1] == chosen
        assert first.tobytes() == second.tobytes()
    plain = tmp_path / "plain.png"
    Image.new("RGB", (8, 8)).save(plain)
    third = at()
    third.page.click("#restore_from button")
    third.page.set_input_files("#restore input[type=file]", str(plain))
    third.page.wait_for_function("document.querySelector('#said').textContent.includes('carries no parameters')")


def test_starting_from_a_picture(at: Callable[..., Page], server: Server, tmp_path: Path) -> None:
    start = tmp_path / "start.png"
    Image.linear_gradient("L").convert("RGB").save(start)
    page = at()
    page.page.click("#start_from button")
    page.page.set_input_files("#start input[type=file]", str(start))
    page.page.wait_for_selector("#start img")
    page.set(steps=4, width=64, height=64, seed=3).generate()
    page.finish()
    page.page.wait_for_function("document.querySelector('#said').textContent.includes('Denoising strength: 0.6')")
    assert page.api()["networks"]["vae_encode"]["calls"] > 0


def test_two_tabs_at_once(at: Callable[..., Page], server: Server) -> None:
    first, second = at(), at()
    first.set(prompt="first", steps=150, width=64, height=64, seed=1).generate()
    second.wait_for("headline", r"Making 64x64|UNet 64x64|encoder|step")
    second.set(prompt="second", steps=2, width=64, height=64, seed=2).generate()
    for page, words in ((first, "first"), (second, "second")):
        page.page.wait_for_function(f"document.querySelector('#said').textContent.includes('{words}')")
    assert "Seed: 1" in first.said
    assert "Seed: 2" in second.said


def test_precompile_makes_a_size_ready(at: Callable[..., Page]) -> None:
    page = at()
    page.page.fill(f"{PANEL}_sizes", "nonsense")
    page.press("precompile")
    page.wait_for("alert", '"nonsense" is no size')
    page.page.fill(f"{PANEL}_sizes", "80x64")
    page.press("precompile")
    page.wait_for("result", "Ready for 80x64", 90)
    before = page.api()["networks"]["unet"]["compiles"]
    page.set(steps=1, width=80, height=64).generate()
    page.finish()
    assert page.api()["networks"]["unet"]["compiles"] == before


def test_comparing_with_pytorch(at: Callable[..., Page]) -> None:
    page = at()
    page.press("compare")
    said = page.wait_for("result", "times as fast", 120)
    assert re.search(r"PyTorch [\d.]+ m?s, OpenVINO [\d.]+ m?s", said)


def test_bad_input_is_one_sentence(at: Callable[..., Page]) -> None:
    page = at()
    page.page.fill(f"{PANEL}_config_json textarea", "<script>")
    page.page.press(f"{PANEL}_config_json textarea", "Tab")
    page.page.wait_for_function(f"document.querySelector('{PANEL}_problem').textContent.includes('must be a JSON object')")
    page.set(steps=3, width=65, height=64).generate()
    page.page.wait_for_function("document.querySelector('#said').textContent.includes('multiples of 8')")


def test_a_hidden_tab_asks_for_nothing(at: Callable[..., Page]) -> None:
    page = at()
    asked: list[float] = []
    page.page.on("request", lambda request: asked.append(time.monotonic()) if request.url.endswith("/openvino/status") else None)
    page.page.wait_for_timeout(1600)
    assert len(asked) >= 2
    hide = """Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'))"""
    page.page.evaluate(hide % "true")
    page.page.wait_for_timeout(500)
    asked.clear()
    page.page.wait_for_timeout(1200)
    assert asked == []
    page.page.evaluate(hide % "false")
    page.page.wait_for_timeout(500)
    assert asked


def test_a_folded_panel_asks_for_nothing(at: Callable[..., Page]) -> None:
    page = at()
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/openvino/status") else None)
    page.page.click("#openvino > button, #openvino .label-wrap")
    page.page.wait_for_selector(f"{PANEL}_view", state="hidden")
    page.page.wait_for_timeout(500)
    asked.clear()
    page.page.wait_for_timeout(1200)
    assert asked == []


def test_it_works_by_keyboard(at: Callable[..., Page]) -> None:
    page = at()
    page.page.focus(f"{PANEL}_sizes")
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("big")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.id") == "openvino_txt2img_precompile"
    page.page.keyboard.press("Enter")
    page.wait_for("alert", '"big" is no size')


def test_every_control_is_named_and_explained(at: Callable[..., Page]) -> None:
    page = at()
    for field in ("device", "precision", "unet", "vae", "text_encoder", "model_caching", "memory_mb", "config_json"):
        control = page.page.locator(f"{PANEL}_{field} :is(input, textarea)").first
        assert control.evaluate("e => e.labels.length > 0 || e.hasAttribute('aria-label')"), field
        page.page.wait_for_selector(f"{PANEL}_{field}[title]")


def violations(page: Any) -> list[str]:
    """What axe-core finds that keeps people out."""
    page.add_script_tag(path=ROOT / "node_modules" / "axe-core" / "axe.min.js")
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{each['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.skipif(not (ROOT / "node_modules" / "axe-core").is_dir(), reason="axe-core is not installed: npm install")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_is_kept_out(at: Callable[..., Page], scheme: str) -> None:
    page = at(color_scheme=scheme)
    page.set(prompt="a cat", steps=3, width=64, height=64).generate()
    page.finish()
    page.page.wait_for_selector("#gallery img")
    page.page.click(f"{PANEL}_networks summary")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.page.screenshot(path=SHOTS / f"standalone-{scheme}.png", full_page=True)
    assert violations(page.page) == []
    page.page.set_viewport_size({"width": 400, "height": 900})
    page.page.screenshot(path=SHOTS / f"standalone-{scheme}-narrow.png", full_page=True)
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth + 1"), "the page is wider than the window"
    cut = "es => es.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
    assert page.page.locator(".openvino-panel :is(label, .block)").evaluate_all(cut) == []
    assert violations(page.page) == []
