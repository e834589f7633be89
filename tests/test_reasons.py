"""Reasons in statistics: the same text for the same cause, without addresses and without names of this package's own classes."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings, accelerate
from ov_backend.core.errors import first_line, last_line

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Strict = Callable[..., Settings]


class Plain:
    """An object whose text has its address in it."""

    scale = 2.0


PLAIN = Plain()


class Reading(torch.nn.Module):
    """A linear layer scaled by what a function makes of the module."""

    def __init__(self, read: Callable[[Any], Any], **attributes: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.read = read
        vars(self).update(attributes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.read(self)


def raises(module: Any) -> float:
    raise RuntimeError(f"no {Plain()} and no {raises}\nHint: look elsewhere")


def notes(module: Any) -> float:
    module.seen.append(Plain())
    return 2.0


MODULES: dict[str, Callable[[], Reading]] = {
    "an error": lambda: Reading(lambda m: raises(m) if torch._C._get_tracing_state() is None else 2.0),
    "a weak reference": lambda: Reading(lambda m: m.held().scale, held=weakref.ref(Plain)),
    "a lock of a thread": lambda: Reading(lambda m: getattr(m.state, "scale", 2.0), state=threading.local()),
    "an item under an object": lambda: Reading(lambda m: next(m.held[PLAIN]), held={PLAIN: iter((2.0, 3.0, 4.0))}),
    "a value that is asked for": lambda: Reading(lambda m: float(m.linear.weight.sum() > 0)),
    "a list that grows": lambda: Reading(notes, seen=[]),
}


def reasons_of(stats: dict[str, Any]) -> list[str]:
    found = [*stats["fallbacks"], *stats["corrections"], *stats["by_blocks"], *stats["blocks_in_pytorch"], *stats["in_pytorch"]]
    assert found, "a network that is not used has a reason"
    for reason in found:
        assert not re.search(r"0x[0-9a-f]+", reason), reason
        assert "ov_backend." not in reason
        assert "\n" not in reason
    return found


def of_accelerate(make: Callable[[], Reading], settings: Settings) -> list[str]:
    with torch.no_grad(), accelerate({"net": make().eval()}, settings) as accelerated:
        for _ in range(2):
            try:
                accelerated.engine.networks["net"](X)
            except RuntimeError:
                continue
        return reasons_of(accelerated.stats()["net"])


@pytest.mark.parametrize("what", MODULES)
def test_the_same_cause_has_the_same_reason(what: str, strict: Strict) -> None:
    first, second = (of_accelerate(MODULES[what], strict(fallback="pytorch")) for _ in range(2))
    assert first == second
    assert len(first) == 1, "two calls, one reason"


def by_a_custom_operator(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.test_reasons.doubled(x)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "no conversion": lambda x: torch.linalg.inv(x @ x.t() + torch.eye(3)),
    "a scripted function": torch.jit.script(torch.nn.Linear(4, 4)),
    "an operator of the program": by_a_custom_operator,
    "values decide the shape": lambda x: torch.nonzero(x),
}


@pytest.fixture(scope="module", autouse=True)
def _operator() -> Any:
    library = torch.library.Library("test_reasons", "DEF")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
    yield
    library._destroy() if hasattr(library, "_destroy") else None


@pytest.mark.parametrize("what", PROGRAMS)
def test_the_same_program_has_the_same_reasons(what: str) -> None:
    def run() -> list[list[str]]:
        torch._dynamo.reset()
        ov_backend.reset()
        with torch.no_grad():
            torch.compile(lambda x: PROGRAMS[what](x), backend="openvino_fx", options={"fallback": "pytorch"})(X)
        return [reasons_of(each) for each in ov_backend.stats().values() if not each["calls"] or each["in_pytorch"]]

    assert run() == run()


@pytest.mark.parametrize(
    "text,expected",
    [
        ("no <function f at 0x7f12ab>", "no <function f>"),
        ("a <x.Y object at 0x7f12ab> is none", "a <x.Y> is none"),
        ("memory at 0xdeadbeef is gone", "memory is gone"),
        ("code 0x1f", "code an address"),
        ("cannot do it. Hint: do it otherwise", "cannot do it."),
        ("an ov_backend.engine.network.Network is none", "an Network is none"),
        ("<function f at 0x7f>\n  Hint: x", "<function f>"),
        ("", "no message"),
    ],
)
def test_foreign_messages_are_cleaned(text: str, expected: str) -> None:
    assert first_line(text) == expected
    assert "0x" not in last_line(text)
