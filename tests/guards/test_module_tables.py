"""Tables that PyTorch keeps on every module for gradients and saved states count where a forward reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.guards.describe import QUIET_TABLES
from ov_backend.guards.traced_code import TracedCode
from ov_backend.guards.walk import Walk
from tests.helpers.readers import X, assert_eager, assert_followed
from tests.helpers.small import engine_for
from tests.helpers.walks import no_walks

Strict = Callable[..., Settings]


class Child(torch.nn.Module):
    """Has a buffer and a layer; the classes derived from it read something of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("t", torch.ones(4))
        self.linear = torch.nn.Linear(4, 4)


class Saving(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(self.state_dict())


class SavingTheLayer(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear.state_dict()["bias"]


class SavingUnbound(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(torch.nn.Module.state_dict(self))


def tripled(module: Any, state: dict[str, torch.Tensor], prefix: str, metadata: Any) -> None:
    state[f"{prefix}bias"] = state[f"{prefix}bias"] * 3


def emptied(module: Any, state: dict[str, torch.Tensor], prefix: str, metadata: Any) -> dict[str, torch.Tensor]:
    return {"bias": state[f"{prefix}bias"] * 0}


def after_saving(module: torch.nn.Module, hook: Callable[..., Any]) -> Any:
    """Register a hook; PyTorch 2.1 has no public way."""
    return getattr(module, "register_state_dict_post_hook", module._register_state_dict_hook)(hook)


STATES: list[tuple[type[Child], Callable[[Any], Any]]] = [
    (Saving, lambda m: m.register_buffer("t", torch.ones(4), persistent=False)),
    (Saving, lambda m: m._non_persistent_buffers_set.add("t")),
    (SavingUnbound, lambda m: m._non_persistent_buffers_set.add("t")),
    (SavingTheLayer, lambda m: after_saving(m.linear, tripled)),
    (SavingTheLayer, lambda m: m.linear._register_state_dict_hook(emptied)),
]


@pytest.mark.parametrize(("kind", "change"), STATES)
def test_what_goes_into_a_state_dict_counts(strict: Strict, kind: type[Child], change: Callable[[Any], Any]) -> None:
    assert_followed(strict, kind(), change)


def test_a_hook_of_a_state_dict_that_is_removed_counts(strict: Strict) -> None:
    module = SavingTheLayer()
    handle = after_saving(module.linear, tripled)
    assert_followed(strict, module, lambda m: handle.remove())


def test_what_a_hook_of_a_state_dict_reads_counts(strict: Strict) -> None:
    class Scaling(SavingTheLayer):
        scale = 3.0

    module = Scaling()

    def scaled(of: Any, state: dict[str, torch.Tensor], prefix: str, metadata: Any) -> None:
        state["bias"] = state["bias"] * module.scale

    after_saving(module.linear, scaled)
    assert_followed(strict, module, lambda m: setattr(m, "scale", 5.0))


class Backward(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + len(self._backward_hooks) + 2 * len(self._backward_pre_hooks))


class OfStates(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + len(self._state_dict_hooks) + 2 * len(self._state_dict_pre_hooks))


class OfLoading(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + len(self._load_state_dict_post_hooks) + 2 * len(self._load_state_dict_pre_hooks))


class ByText(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + len(getattr(self, "_backward_hooks")))  # noqa: B009


class OfTheLayer(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + len(self.linear._backward_hooks))


class OfTheSet(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if "t" in self._non_persistent_buffers_set else 3)


class Full(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (2 if self._is_full_backward_hook else 3)


class ByComputedName(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + sum(len(getattr(self, f"_{kind}_hooks")) for kind in ("backward", "state_dict")))


class ByEachAttribute(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + sum(len(table) for table in vars(self).values() if isinstance(table, dict)))


class ByItsTable(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + sum(bool(value) for name, value in self.__dict__.items() if name.endswith("hook")))


def nothing(*args: Any) -> None:
    """A hook."""


def calls(method: str, of: str = "") -> Callable[[Any], Any]:
    """Registers a hook that does nothing."""
    return lambda m: getattr(m.get_submodule(of), method)(nothing)


HOOKS: list[tuple[type[Child], Callable[[Any], Any]]] = [
    (Backward, calls("register_full_backward_hook")),
    (Backward, calls("register_full_backward_pre_hook")),
    (Backward, lambda m: setattr(m, "_backward_hooks", {1: nothing})),
    (OfStates, lambda m: after_saving(m, nothing)),
    (OfStates, calls("register_state_dict_pre_hook")),
    (OfLoading, calls("register_load_state_dict_post_hook")),
    (OfLoading, lambda m: m._load_state_dict_pre_hooks.update({1: nothing})),
    (ByText, calls("register_full_backward_hook")),
    (OfTheLayer, calls("register_full_backward_hook", "linear")),
    (OfTheSet, lambda m: m._non_persistent_buffers_set.add("t")),
    (Full, calls("register_full_backward_hook")),
    (ByComputedName, calls("register_full_backward_hook")),
    (ByComputedName, lambda m: after_saving(m, nothing)),
    (ByEachAttribute, calls("register_full_backward_hook")),
    (ByEachAttribute, calls("register_load_state_dict_post_hook")),
    (ByItsTable, calls("register_full_backward_hook")),
]


@pytest.mark.parametrize(("kind", "change"), HOOKS)
def test_hooks_that_a_forward_reads_count(strict: Strict, kind: type[Child], change: Callable[[Any], Any]) -> None:
    assert_followed(strict, kind(), change)


def test_a_set_that_a_forward_changes_is_put_back_after_the_trace(strict: Strict) -> None:
    class Adding(Child):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self._non_persistent_buffers_set.add(str(len(self._non_persistent_buffers_set)))
            return x * len(self._non_persistent_buffers_set)

    module, reference = Adding(), Adding()
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(3):
        torch.testing.assert_close(network(X), reference(X))
    assert network.statistics.fallbacks.total() == 3


class Plain(Child):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * len(self._buffers)


def test_where_no_code_reads_them_they_cost_nothing_and_change_nothing(strict: Strict) -> None:
    module = Plain().requires_grad_(False)
    traced = TracedCode.of({Plain.forward.__code__: Plain.__module__})
    walk = Walk(module, [module.forward], traced=traced)
    assert not any(table is vars(module).get(name) for table in walk.watch.tables for name in QUIET_TABLES)
    assert not walk.watch.quiet
    network = engine_for(strict(), module)
    assert_eager(network, module)
    module.linear.register_full_backward_hook(nothing)
    module._non_persistent_buffers_set.add("t")
    with no_walks():
        assert_eager(network, module)
