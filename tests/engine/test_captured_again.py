"""A network that is captured again says what differed first from the last call of this kind, with both values."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ov_backend import Settings
from tests.helpers.small import engine_for

FACTOR = 2.0


def _shared_variable() -> tuple[Callable[[], float], Callable[[float], None]]:
    held = 3.0

    def get() -> float:
        return held

    def put(value: float) -> None:
        nonlocal held
        held = value

    return get, put


_get, _put = _shared_variable()


class Attention(torch.nn.Module):
    """[B, 4] -> [B, 4]; what it computes depends on one thing of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale, self.values, self.table, self.array = 1.0, [1.0, 2.0], {"gain": 1.0}, np.array([1, 2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.scale * FACTOR * _get() * self.values[0] * self.table["gain"] * self.array[0]
        return y + (1 if self.training else 0) + (2 if torch.is_grad_enabled() else 0)


class Net(torch.nn.Module):
    """[B, 4] and a number -> [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, name: str = "no") -> torch.Tensor:
        return self.attention(x) * len(name)


def _other_forward(self: Attention, x: torch.Tensor) -> torch.Tensor:
    return self.linear(x) * 5


_CHANGES: dict[str, tuple[Callable[[Net, pytest.MonkeyPatch], object], str]] = {
    "attribute": (lambda net, _: setattr(net.attention, "scale", 0.5), r"attention\.scale 1\.0 -> 0\.5"),
    "another type": (lambda net, _: setattr(net.attention, "scale", 1), r"attention\.scale float 1\.0 -> int 1"),
    "global": (lambda _, patch: patch.setitem(globals(), "FACTOR", 4.0), r"FACTOR 2\.0 -> 4\.0"),
    "closure cell": (lambda *_: _put(5.0), r".*get's held 3\.0 -> 5\.0"),
    "item of a list": (lambda net, _: net.attention.values.__setitem__(0, 7.0), r"attention\.values\[0\] 1\.0 -> 7\.0"),
    "length of a list": (lambda net, _: net.attention.values.append(7.0), r"attention\.values 2 items -> 3 items"),
    "item of a dict": (lambda net, _: net.attention.table.update(gain=7.0), r"attention\.table\['gain'\] 1\.0 -> 7\.0"),
    "content of an array": (lambda net, _: net.attention.array.__setitem__(0, 9), r"attention\.array .*[0-9a-f]{8} -> .*"),
    "hook": (
        lambda net, _: net.attention.linear.register_forward_hook(lambda module, args, result: result * 2),
        r"attention\.linear\._forward_hooks\[0\] is new",
    ),
    "mode": (lambda net, _: net.attention.train(), r"attention\.training False -> True"),
    "code": (
        lambda _, patch: patch.setattr(Attention, "forward", _other_forward),
        r"Attention\.forward \d+ -> \d+ not executed",
    ),
    "gradients": (lambda *_: torch.set_grad_enabled(True), r"what it asks of its inputs: gradients=False -> gradients=True"),
}


@pytest.mark.parametrize("kind", _CHANGES)
def test_the_first_difference_is_named(
    kind: str, strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    change, words = _CHANGES[kind]
    net, x = Net(), torch.randn(2, 4)
    network = engine_for(strict(model_caching=False), net)
    network(x)
    network(torch.randn(3, 4))
    assert not network.statistics.captured_again, "other shapes are another kind of call"
    try:
        change(net, monkeypatch)
        with caplog.at_level(logging.INFO, "ov_backend"):
            got = network(x)
        torch.testing.assert_close(got, net(x))
    finally:
        _put(3.0)
    ((why, times),) = network.stats()["captured_again"].items()
    assert times == 1
    assert re.fullmatch(words, why), why
    assert f"net was captured again: {why}." in caplog.messages


def test_what_differs_is_told_from_the_last_call(strict: Callable[..., Settings]) -> None:
    """And not from the last trace: a state that is known needs none."""
    net, x = Net(), torch.randn(2, 4)
    network = engine_for(strict(model_caching=False), net)
    for scale, mode in ((1.0, False), (1.0, True), (1.0, False), (0.5, False)):
        net.attention.scale = scale
        net.attention.train(mode)
        torch.testing.assert_close(network(x), net(x))
    assert list(network.statistics.captured_again) == ["attention.training False -> True", "attention.scale 1.0 -> 0.5"]


def test_an_argument_is_named(strict: Callable[..., Settings]) -> None:
    net, x = Net(), torch.randn(2, 4)
    network = engine_for(strict(model_caching=False), net)
    for name in ("no", "yes", "no"):
        torch.testing.assert_close(network(x, name), net(x, name))
    assert list(network.statistics.captured_again) == ["name no -> yes"]


class AsLatentDiffusions(torch.nn.Module):
    """[B, 4] -> [B, 4]; as ``ldm``'s attention, it asks whether the context's replacement is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None) -> torch.Tensor:
        replacement = x + 1
        context = context if context is not None else replacement() if inspect.isfunction(replacement) else replacement
        return self.linear(x) * context


def test_an_attribute_that_no_code_names_is_no_reason(strict: Callable[..., Settings]) -> None:
    net = AsLatentDiffusions()
    network, x = engine_for(strict(), net), torch.randn(2, 4)
    network(x)
    net.cond_mark = torch.ones(2, 1)  # as ControlNet leaves it on the WebUI's UNet
    torch.testing.assert_close(network(x), net(x))
    assert network.statistics.captures == 1
