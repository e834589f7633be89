"""What the live status says in words: messages, and the reasons for which PyTorch answered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.engine.stats import NetworkStats
from ov_backend.ui.snapshot import Job, network_dict
from ov_backend.ui.status import Status


def test_messages_are_shown_once_and_bounded() -> None:
    status = Status()
    for i in range(50):
        status.add_message(f"message {i}")
        status.add_message(f"message {i}")
    messages = status.snapshot()["messages"]
    assert messages[-1] == "message 49"
    assert len(messages) == len(set(messages)) == 20


def test_messages_are_shown_until_the_next_generation() -> None:
    status = Status()
    messages = lambda: status.snapshot()["messages"]  # noqa: E731
    status.add_message("before the first")
    status.begin("one")
    status.add_message("in the first")
    status.end()
    assert messages() == ["before the first", "in the first"]
    status.add_message("before the second")
    status.begin("two")
    assert messages() == ["before the second"]
    status.end()
    status.add_message("of one that is refused before it begins")
    status.end()
    status.begin("four")
    assert messages() == []


def test_a_fallback_is_shown_with_its_reason(strict: Callable[..., Settings]) -> None:
    engine = Engine(strict(fallback="pytorch"))
    status = Status()
    status.attach(engine)
    net = torch.nn.Conv2d(4, 4, 3, padding=1).eval()
    network = engine.network("vae_decode", net)
    with torch.enable_grad():
        network(torch.randn(1, 4, 8, 8, requires_grad=True))
    fallbacks = status.snapshot()["networks"]["vae_decode"]["fallbacks"]
    assert list(fallbacks.values()) == [1]
    assert "gradients" in next(iter(fallbacks))


def test_a_reason_of_an_earlier_generation_is_told_from_those_of_the_last_one() -> None:
    fallbacks: dict[str, dict[str, int]] = {"unet": {"old": 2}}
    calls = {"unet": 7}
    statistics = {"unet": NetworkStats()}
    engine = SimpleNamespace(
        networks={},
        statistics=lambda: dict(statistics),
        stats=lambda: {name: {"calls": calls.get(name, 0), "fallbacks": dict(counts)} for name, counts in fallbacks.items()},
    )
    status = Status()
    status._engine = engine
    status.begin("64x64", 1)
    fallbacks["unet"].update(old=3, new=1)
    fallbacks["vae"] = {"first": 1}
    calls["unet"] = 9
    assert status._run is not None
    now, before = fallbacks, status._run.before(engine)
    shown = {name: network_dict(name, stats, before.get(name)) for name, stats in engine.stats().items()}
    assert shown["unet"]["fallbacks"] == now["unet"]
    assert shown["unet"]["run_fallbacks"] == {"old": 1, "new": 1}
    assert shown["vae"]["run_fallbacks"] == {"first": 1}
    assert shown["vae"]["run_corrections"] == {}
    assert [shown[name]["run_calls"] for name in ("unet", "vae")] == [2, 0]
    statistics["unet"] = NetworkStats()  # another model has taken the name
    assert "unet" not in status._run.before(engine)


def test_a_network_that_is_gone_has_answered_nothing_since(strict: Callable[..., Settings]) -> None:
    engine, status = Engine(strict()), Status()
    status.attach(engine)
    network = engine.network("Upscaler", torch.nn.Conv2d(4, 4, 3, padding=1).eval())
    with torch.no_grad():
        network(torch.randn(1, 4, 8, 8))
    engine.retire("Upscaler")
    status.begin("64x64", 1)
    told = status.snapshot()["networks"]["Upscaler"]
    assert (told["calls"], told["run_calls"]) == (1, 0)


def test_a_generation_that_is_refused_has_no_shares_and_a_job_forgets_its_messages() -> None:
    status = Status()
    status.begin("64x64", 4)
    status.add_message("This size is odd.")
    status.end("The size cannot be used.")
    assert status.snapshot()["run"]["shares"] == {}
    assert status.snapshot()["messages"] == ["This size is odd."]
    status.begin_job(Job("precompile"))
    assert status.snapshot()["messages"] == []
