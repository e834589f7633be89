"""What other code has kept of an accelerated forward: what stands below our patch is walked, and nothing of this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.guards.walk import Walk
from tests.helpers.readers import X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


class Doubled(torch.nn.Linear):
    """A layer with a forward of its own."""

    def __init__(self, factor: float) -> None:
        super().__init__(4, 4)
        torch.manual_seed(0)
        torch.nn.init.normal_(self.weight)
        self.factor = factor
        self.eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor


class Calling(torch.nn.Module):
    """Calls what it holds."""

    def __init__(self, *held: Any) -> None:
        super().__init__()
        self.held = list(held)
        self.single = held[0]
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.single(x) + sum(each(x) for each in self.held)


def ours(walk: Walk) -> set[str]:
    """The classes of this package that a walk went through; settings are values as others."""
    return {cls.__qualname__ for cls in walk.watch.classes if cls.__module__.startswith("ov_backend.")} - {"Settings"}


def wrap(module: torch.nn.Module) -> None:
    """As other extensions do it: a closure keeps what stood there."""
    original = module.forward
    module.forward = lambda x: original(x) * 2  # type: ignore[method-assign]


def test_a_closure_around_an_accelerated_forward_leads_to_no_object_of_ours(strict: Strict) -> None:
    module = Doubled(2.0)
    with ov_backend.accelerate({"net": module}, strict()):
        module(X)
        wrap(module)
        held = Walk(module, [module.forward])
    after = Walk(module, [module.forward])
    for walk in (held, after):
        assert not ours(walk)
        assert len(walk._places) < 1000


def test_a_closure_around_our_patch_is_described_as_one_around_the_original(strict: Strict) -> None:
    plain, patched = Doubled(2.0), Doubled(2.0)
    wrap(plain)
    with ov_backend.accelerate({"net": patched}, strict()):
        wrap(patched)
    assert Walk(plain, [plain.forward]).fingerprint == Walk(patched, [patched.forward]).fingerprint


def test_a_wrapped_forward_is_accelerated_again(strict: Strict) -> None:
    module = Doubled(2.0)
    with ov_backend.accelerate({"net": module}, strict()):
        module(X)
        wrap(module)
    expected = module(X)
    with ov_backend.accelerate({"net": module}, strict()) as again:
        torch.testing.assert_close(module(X), expected, rtol=1e-3, atol=1e-5)
        module.factor = 3.0
        torch.testing.assert_close(module(X), expected * 1.5, rtol=1e-3, atol=1e-5)
        assert again.stats()["net"]["calls"] == 2


@pytest.mark.parametrize("place", ["a closure", "an attribute", "a list"])
@pytest.mark.parametrize("restored", [True, False], ids=["restored", "accelerated"])
def test_another_patched_forward_in_its_place_is_noticed(strict: Strict, place: str, restored: bool) -> None:
    one, other = Doubled(2.0), Doubled(3.0)
    accelerated = ov_backend.accelerate({"one": one, "other": other}, strict())
    try:
        if restored:
            kept = one.forward, other.forward
            accelerated.restore()
        else:
            kept = one.forward, other.forward
        held = kept[0]
        network_of = Calling((lambda x: held(x)) if place == "a closure" else kept[0])
        network = engine_for(strict(), network_of)
        assert_eager(network, network_of)
        before = network(X)
        if place == "a closure":
            held = kept[1]
        elif place == "an attribute":
            network_of.single = kept[1]
        else:
            network_of.held[0] = kept[1]
        assert_eager(network, network_of)
        assert not torch.equal(network(X), before)
    finally:
        accelerated.restore()


def test_the_forward_of_the_class_below_our_patch_may_be_exchanged(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Doubled(2.0)
    with ov_backend.accelerate({"child": child}, strict()):
        module = Calling(child.forward)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    monkeypatch.setattr(Doubled, "forward", lambda self, x: torch.nn.Linear.forward(self, x) - 1)
    assert_eager(network, module)


def test_what_accelerate_returned_is_not_walked(strict: Strict) -> None:
    module = Doubled(2.0)
    module.accelerated = ov_backend.accelerate({"net": module}, strict())
    try:
        walk = Walk(module, [Doubled.forward])
        assert not ours(walk)
        torch.testing.assert_close(module(X), Doubled.forward(module, X), rtol=1e-3, atol=1e-5)
        assert module.accelerated.stats()["net"]["calls"] == 1
    finally:
        module.accelerated.restore()


def test_our_settings_are_values_as_others(strict: Strict) -> None:
    class Reading(torch.nn.Module):
        def __init__(self, settings: Settings) -> None:
            super().__init__()
            self.settings = settings

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if self.settings.precision == "f32" else x * 3

    module = Reading(strict())
    network = engine_for(strict(), module)
    assert_eager(network, module)
    module.settings = strict(precision="f16")
    assert_eager(network, module)


def test_functions_of_ours_that_a_class_calls_are_not_walked(strict: Strict) -> None:
    class Own(Doubled):
        def speed_up(self) -> Any:
            return ov_backend.accelerate({"net": self}, strict())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.shape[0] else self.speed_up()

    module = Own(2.0)
    walk = Walk(module, [Own.forward])
    assert not ours(walk)
    assert_eager(engine_for(strict(), module), module)


class Weighed(Doubled):
    """A layer whose factor stands on its forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.forward.weight  # type: ignore[attr-defined]


def test_a_value_on_the_forward_itself(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Weighed(2.0)
    monkeypatch.setattr(Weighed.forward, "weight", 1.0, raising=False)
    with ov_backend.accelerate({"net": module}, strict(fallback="pytorch")):
        for weight in (1.0, 3.0, 1.0):
            monkeypatch.setattr(Weighed.forward, "weight", weight)
            torch.testing.assert_close(module(X), Doubled.forward(module, X) * weight)
