"""Networks are prepared before the WebUI calls them, if they were called before; pictures are the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ov_backend.engine.ahead.history import match
from ov_backend.engine.engine import Engine
from ov_backend.ui import readiness
from tests.hosts.webui.conftest import ALL, TITLE, arguments, engine_stats, largest_difference, ran, ran_text


@pytest.fixture
def ahead(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Prepares, with the setting on; what is being prepared ends before the test does."""
    from ov_backend.hosts.webui.session import session
    from ov_backend.hosts.webui.webui_host import controller
    from ov_backend.memory.low_memory import LowMemory

    monkeypatch.setattr(LowMemory, "is_wanted", lambda *_: False)  # this machine may be short of memory
    session.clear()
    host.shared.opts.openvino_prepare_ahead = True
    monkeypatch.setattr(controller.readiness, "_shown", None)  # no page has shown anything yet
    yield controller
    host.shared.opts.openvino_prepare_ahead = False
    controller.readiness.wait()
    if session.engine is not None:
        session.engine.resources.ahead.wait(60)


def picture(host: SimpleNamespace, prompt: str = "a cat", **fields: Any) -> Any:
    """A generation under the WebUI's lock, as its page and its API make them."""
    from modules import call_queue

    with call_queue.queue_lock:
        return host.processing.generate(TITLE, arguments(), prompt=prompt, **fields)


def load(host: SimpleNamespace, name: str) -> None:
    """Load a checkpoint as the settings do."""
    from modules import call_queue

    with call_queue.queue_lock:
        host.shared.opts.sd_model_checkpoint = name
        host.sd_models.reload_model_weights(name)


def compiles() -> dict[str, int]:
    return {name: stats["compiles"] for name, stats in engine_stats().items() if stats["compiles"]}


def ready_text() -> list[str]:
    from ov_backend.hosts.webui.session import session

    job = session.status.snapshot()["job"]
    return job["result"]["sizes"] if job is not None and job["state"] == "done" else []


def evict() -> None:
    """Evict what is compiled. The graphs stay: that of this UNet is not in the store, for pytest rewrites its code."""
    from ov_backend.hosts.webui.session import session

    assert session.engine is not None
    session.engine.compiled.evict(lambda key, entry: True)


def begun_ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many networks each batch has begun to prepare, from now on."""
    counts: list[int] = []
    prepare = Engine.prepare_ahead
    monkeypatch.setattr(Engine, "prepare_ahead", lambda *args: counts.append(prepare(*args)) or counts[-1])
    return counts


def test_a_generation_like_an_earlier_one_is_prepared_at_its_beginning(
    host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = picture(host, width=48)
    evict()
    counts = begun_ahead(monkeypatch)
    again = picture(host, width=48)
    assert counts == [2], "the UNet and the VAE's decoder"
    assert ran(again) == ran_text(*ALL)
    assert largest_difference(first, again) == 0
    assert engine_stats()["unet"]["compiles"] == engine_stats()["vae_decode"]["compiles"] == 2, "once each time"


@pytest.mark.parametrize("refiner", ["b", "heads"], ids=["weights of the same object", "another object"])
def test_with_a_refiner_the_vae_is_prepared_once_the_refiner_is_in_use(
    host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch, refiner: str
) -> None:
    from modules import shared

    fields: dict[str, Any] = {"width": 48, "steps": 4, "refiner_checkpoint": refiner}
    first = picture(host, **fields)
    evict()
    engine, decoders = ahead.host.engine, list[str]()
    prepare = engine.prepare_ahead

    def noting(calls: Any, networks: Any) -> int:
        decoders.extend(shared.sd_model.sd_checkpoint_info.name for each, _ in match(calls, networks) if each.name[:3] == "vae")
        return int(prepare(calls, networks))

    monkeypatch.setattr(engine, "prepare_ahead", noting)
    again = picture(host, **fields)
    assert decoders == [refiner]
    assert largest_difference(first, again) == 0


def test_a_size_never_seen_is_left_to_the_calls(host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = begun_ahead(monkeypatch)
    picture(host, width=72)
    assert counts == [0]


def test_a_lora_that_is_set_is_in_what_is_prepared(host: SimpleNamespace, ahead: Any) -> None:
    first = picture(host, "a cat <lora:first:1>")
    evict()
    host.processing.generate(prompt="a cat")  # takes it out
    again = picture(host, "a cat <lora:first:1>")
    assert largest_difference(first, again) == 0
    assert engine_stats()["unet"]["compiles"] == 2


def test_it_may_be_switched_off(host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host.shared.opts.openvino_prepare_ahead = False
    counts = begun_ahead(monkeypatch)
    picture(host)
    assert counts == []


def test_after_a_checkpoint_is_loaded_its_networks_are_ready(host: SimpleNamespace, ahead: Any) -> None:
    picture(host)
    ahead.readiness.wait()
    load(host, "b")
    ahead.readiness.wait()
    assert ready_text() == ["32x32"]
    before = compiles()
    picture(host, override_settings={"sd_model_checkpoint": "b"})
    assert compiles() == before


def test_the_result_of_a_generation_that_loads_a_checkpoint_stays_in_the_panel(host: SimpleNamespace, ahead: Any) -> None:
    """Forge loads its first one so, and each that is chosen; other WebUIs do for a refiner and the API."""
    for name in ("b", "a"):
        picture(host, override_settings={"sd_model_checkpoint": name})
        ahead.readiness.wait()
        assert ready_text() == []


def test_a_prompt_that_was_used_again_leaves_its_encoder_remembered(host: SimpleNamespace, ahead: Any) -> None:
    for _ in range(2):
        picture(host)  # the WebUI keeps the encoded prompt for the second
    ahead.readiness.wait()
    load(host, "b")
    ahead.readiness.wait()
    assert ready_text() == ["32x32"]
    before = compiles()
    picture(host, prompt="a dog", override_settings={"sd_model_checkpoint": "b"})
    assert compiles() == before


def test_nothing_is_ready_where_a_network_could_not_be_prepared(
    host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.engine.network import Network

    picture(host)
    ahead.readiness.wait()
    prepare = Network.prepare_ahead
    monkeypatch.setattr(Network, "prepare_ahead", lambda self, call: self.name != "vae_decode" and prepare(self, call))
    load(host, "b")
    ahead.readiness.wait()
    assert ready_text() == []


def test_nothing_is_prepared_for_a_kind_of_model_that_was_never_used(host: SimpleNamespace, ahead: Any) -> None:
    from ov_backend.hosts.webui.session import session

    load(host, "inpaint")
    ahead.readiness.wait()
    assert session.engine is None
    assert ready_text() == []


def test_a_generation_that_runs_is_not_disturbed(host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules import call_queue

    picture(host)
    monkeypatch.setattr(readiness, "_PATIENCE_S", 0.3)
    with call_queue.queue_lock:
        host.sd_models.reload_model_weights("b")
        ahead.readiness.wait()
    assert ready_text() == []


def test_a_start_that_died_meanwhile_switches_it_off_until_the_user_says_otherwise(host: SimpleNamespace, ahead: Any) -> None:
    from ov_backend.hosts.webui.session import session

    picture(host)
    ahead.readiness.wait()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (ahead.host.store().folder / f"{gone.pid}.preparing").touch()
    load(host, "b")
    ahead.readiness.wait()
    assert ready_text() == []
    assert any("off and on" in message for message in session.status.snapshot()["messages"])
    host.shared.opts.data_labels["openvino_prepare_ahead"].onchange()
    load(host, "a")
    load(host, "b")
    ahead.readiness.wait()
    assert ready_text() == ["32x32"]
    assert not list(ahead.host.store().folder.glob("*.preparing"))


def test_a_checkpoint_changed_while_it_is_prepared_is_the_one_that_answers(host: SimpleNamespace, ahead: Any) -> None:
    expected = {name: host.processing.generate(prompt="a cat", override_settings={"sd_model_checkpoint": name}) for name in "ab"}
    for name in "abab":
        load(host, "b" if name == "a" else "a")  # begins to prepare the other one
        on = picture(host, override_settings={"sd_model_checkpoint": name})
        assert largest_difference(expected[name], on) <= 1


def test_after_a_checkpoint_is_loaded_the_size_that_the_page_shows_is_ready(host: SimpleNamespace, ahead: Any) -> None:
    from ov_backend.ui.likely import RequestedShape

    picture(host, width=48)
    picture(host)
    ahead.readiness.size_changed(RequestedShape(48, 32, 1, False))
    ahead.readiness.wait()
    load(host, "b")
    ahead.readiness.wait()
    assert ready_text() == ["48x32"]
    ahead.readiness.size_changed(RequestedShape(88, 32, 1, False))  # which was never made
    ahead.readiness.wait()
    load(host, "a")
    ahead.readiness.wait()
    assert ready_text() == ["32x32"]


def test_an_interrupted_generation_drops_what_waits(host: SimpleNamespace, ahead: Any) -> None:
    from ov_backend.hosts.webui.session import session
    from tests.hosts.webui.conftest import before_every_step

    picture(host, width=40)
    evict()
    with before_every_step(lambda _: host.shared.state.interrupt()):
        picture(host, width=40)
    assert session.engine is not None
    assert session.engine.resources.run is None
    assert session.engine.resources.ahead.wait(60)
    after = picture(host, width=40)
    assert ran(after) == ran_text(*ALL)


def test_a_size_that_was_made_before_is_ready_once_the_page_shows_it(
    host: SimpleNamespace, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui.session import session
    from ov_backend.hosts.webui.webui_host import controller
    from ov_backend.ui.likely import RequestedShape

    picture(host, width=48)
    picture(host)
    assert session.engine is not None
    session.engine.resources.ahead.wait(60)
    evict()
    counts, known = begun_ahead(monkeypatch), RequestedShape(48, 32, 1, False)

    def shown(asked: RequestedShape) -> list[int]:
        controller.readiness.size_changed(asked)
        ahead.readiness.wait()
        return counts

    assert shown(known._replace(width=88)) == shown(known._replace(from_picture=True)) == [], "none of these was ever made"
    host.shared.opts.openvino_prepare_ahead = False
    assert shown(known) == []
    host.shared.opts.openvino_prepare_ahead = True
    assert len(shown(known)) == 1
    assert counts[0] >= 2, "the UNet and the VAE's decoder; the WebUI may have kept the encoded prompt"
    assert ready_text() == ["48x32"]
    assert not list(ahead.host.store().folder.glob("*.preparing"))
    prepared = compiles()
    picture(host, width=48)
    assert compiles() == prepared
