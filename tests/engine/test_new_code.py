"""Code that is put on a network after its first answer, and that collects or counts, does so once for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine import traced_codes
from ov_backend.guards.code import CodeGuard
from tests.helpers.readers import X
from tests.helpers.small import counts, engine_for

Strict = Callable[..., Settings]

FOUND: list[Any] = []
CALLS = 0


class Two(torch.nn.Module):
    """Two layers; one that notes what it is given, where that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.noted: list[Any] = []
        self.scale = 1.0
        self.eval().requires_grad_(False)

    def note(self, y: torch.Tensor) -> None:
        self.noted.append(y)

    def forward(self, x: torch.Tensor, noting: bool = False) -> torch.Tensor:
        y = self.first(x).relu() * self.scale
        if noting:
            self.note(y)
        return self.second(y)


class Collector(torch.nn.Module):
    """Keeps what it is given."""

    def __init__(self, found: list[Any]) -> None:
        super().__init__()
        self.found = found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.found.append(x)
        return x


class Extractor:
    """Keeps results by a method."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.found: list[Any] = []
        module.register_forward_hook(self.hook)

    def hook(self, module: torch.nn.Module, args: Any, result: torch.Tensor) -> None:
        self.found.append(result)


def _hook(module: Two, function: Callable[[torch.Tensor], Any]) -> None:
    def hook(owner: torch.nn.Module, args: Any, result: torch.Tensor) -> None:
        function(result)

    module.first.register_forward_hook(hook)


def in_a_closure(module: Two) -> Any:
    found: list[Any] = []
    module.first.register_forward_hook(lambda owner, args, result: found.append(result))
    return found


def in_a_global_list(module: Two) -> Any:
    FOUND.clear()
    module.first.register_forward_hook(lambda owner, args, result: FOUND.append(result))
    return FOUND


def by_a_method(module: Two) -> Any:
    return Extractor(module.first).found


def before_a_child(module: Two) -> Any:
    found: list[Any] = []
    module.second.register_forward_pre_hook(lambda owner, args: found.append(args[0]))
    return found


def by_a_new_child(module: Two) -> Any:
    found: list[Any] = []
    module.second = torch.nn.Sequential(module.second, Collector(found))  # type: ignore[assignment]
    return found


def by_a_wrapped_forward(module: Two) -> Any:
    found: list[Any] = []
    original = module.first.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = original(x)
        found.append(y)
        return y

    module.first.forward = forward  # type: ignore[method-assign]
    return found


def of_shapes(module: Two) -> Any:
    found: list[Any] = []
    _hook(module, lambda result: found.append(tuple(result.shape)))
    return found


def by_a_counter(module: Two) -> Any:
    found = [0]
    _hook(module, lambda result: found.__setitem__(0, found[0] + 1))
    return found


def by_a_global_counter(module: Two) -> Any:
    global CALLS
    CALLS = 0

    def count(owner: torch.nn.Module, args: Any, result: torch.Tensor) -> None:
        global CALLS
        CALLS += 1
        found[:] = [CALLS]

    found: list[Any] = []
    module.first.register_forward_hook(count)
    return found


def by_a_running_mean(module: Two) -> Any:
    found = {"count": 0, "mean": torch.zeros(4)}

    def hook(owner: torch.nn.Module, args: Any, result: torch.Tensor) -> None:
        found["count"] += 1
        found["mean"] += (result.mean(0) - found["mean"]) / found["count"]

    module.first.register_forward_hook(hook)
    return found


KINDS = (
    *(in_a_closure, in_a_global_list, by_a_method, before_a_child, by_a_new_child, by_a_wrapped_forward, of_shapes),
    *(by_a_counter, by_a_global_counter, by_a_running_mean),
)


def _values(found: Any) -> list[Any]:
    return list(found.values()) if isinstance(found, dict) else list(found)


@pytest.mark.parametrize("put", KINDS, ids=lambda put: str(put.__name__))
def test_what_is_added_after_the_first_answer_collects_once_for_each_call(strict: Strict, put: Callable[[Two], Any]) -> None:
    expected = Two()
    wanted = put(expected)
    for _ in range(3):
        expected(X)
    wanted = _values(wanted)
    module = Two()
    network = engine_for(strict(fallback="pytorch"), module)
    network(X)
    found = put(module)
    for _ in range(3):
        network(X)
    got = _values(found)
    assert [type(each) for each in got] == [type(each) for each in wanted]
    for one, other in zip(got, wanted):
        torch.testing.assert_close(one, other)
    assert network.statistics.fallbacks.total() == 3, "PyTorch answers what collects"
    said = ("changes a list, dict", "in a list or dict", "sets the global CALLS")
    assert any(words in reason for words in said for reason in network.statistics.fallbacks)


def test_a_size_that_is_new_as_well_changes_nothing(strict: Strict) -> None:
    module = Two()
    network = engine_for(strict(fallback="pytorch"), module)
    network(X)
    network(X[:2])
    found = in_a_closure(module)
    network(X[:1])
    network(X)
    assert [(type(each), len(each)) for each in found] == [(torch.Tensor, 1), (torch.Tensor, 3)]


class Branching(Two):
    """Calls a method, which no other code names, for one size or without gradients."""

    def forward(self, x: torch.Tensor, noting: bool = False) -> torch.Tensor:
        if x.shape[0] == 2 or torch.is_grad_enabled():
            self.remember(x)
        return super().forward(x)

    def remember(self, x: torch.Tensor) -> None:
        self.kept.append(x * 2)


@pytest.mark.parametrize("of_size", [True, False])
def test_a_branch_that_a_size_or_a_mode_opens_collects_once(strict: Strict, of_size: bool) -> None:
    module = Branching().requires_grad_(False)
    module.kept = []
    network = engine_for(strict(fallback="pytorch"), module)
    with torch.no_grad():
        network(X)
    with torch.set_grad_enabled(not of_size):
        network(X[:2] if of_size else X)
    assert [type(each) for each in module.kept] == [torch.Tensor]


def test_a_branch_that_an_argument_opens_collects_once(strict: Strict) -> None:
    module = Two()
    network = engine_for(strict(fallback="pytorch"), module)
    network(X)
    network(X, noting=True)
    assert [type(each) for each in module.noted] == [torch.Tensor]


def test_without_the_hook_openvino_answers_again(strict: Strict) -> None:
    module = Two()
    network = engine_for(strict(fallback="pytorch"), module)
    network(X)
    found: list[Any] = []
    handle = module.first.register_forward_hook(lambda owner, args, result: found.append(result))
    for _ in range(12):  # more than the changes of code after which a network stays in PyTorch
        network(X)
    handle.remove()
    calls = network.statistics.calls
    network(X)
    assert (len(found), network.statistics.calls) == (12, calls + 1)
    assert all("collects tensors in a list or dict" in reason for reason in network.statistics.fallbacks)


@pytest.mark.parametrize("tensors", [True, False], ids=["tensors", "numbers"])
def test_what_is_filled_once_is_compiled_at_the_next_call(strict: Strict, tensors: bool) -> None:
    module = Two()
    network = engine_for(strict(fallback="pytorch"), module)
    network(X)
    kept: dict[str, Any] = {}

    def hook(owner: torch.nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        if "factor" not in kept:
            kept["factor"] = torch.full((4,), 2.0) if tensors else 2.0
        return result * kept["factor"]

    module.first.register_forward_hook(hook)
    for _ in range(3):
        torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-5)
    assert network.statistics.fallbacks.total() == 1
    assert network.statistics.calls == 3
    assert type(kept["factor"]) is (torch.Tensor if tensors else float)


def test_everything_in_reach_is_only_walked_where_the_code_differs(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    wide: list[Any] = []

    class Counted(CodeGuard):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            wide.extend([self] if self.traced is None else [])

    monkeypatch.setattr(traced_codes, "CodeGuard", Counted)
    module = Two()
    network = engine_for(strict(), module)
    network(X)
    assert (len(wide), counts(network)) == (1, (1, 1))
    module.first.weight.mul_(2)
    network(X)
    assert (len(wide), network.statistics.captures) == (1, 1), "other weights need no wide walk"
    network(X[:2])
    assert (len(wide), network.statistics.captures) == (2, 2), "another size may open a branch"
    module.scale = 2.0
    torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-5)
    assert (len(wide), network.statistics.captures) == (3, 3)


class Added:
    """What an extension puts into a list that a forward goes through, such as a hypernetwork."""

    def __init__(self) -> None:
        self.by_width = {4: torch.nn.Linear(4, 4).requires_grad_(False)}


ADDED: list[Added] = []


def _with(added: Added, x: torch.Tensor) -> torch.Tensor:
    return added.by_width[x.shape[-1]](x)


class WithAdded(Two):
    def forward(self, x: torch.Tensor, noting: bool = False) -> torch.Tensor:
        for added in ADDED:
            x = _with(added, x)
        return self.second(self.first(x))


def test_weights_of_what_comes_into_a_list_are_found_by_the_code_that_reads_them(
    strict: Strict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.engine.test_new_code.ADDED", [])
    module = WithAdded()
    network = engine_for(strict(), module)
    network(X)
    ADDED.append(Added())
    torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-5)
    ADDED[0].by_width[4].weight.mul_(3)
    torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-5)
    ADDED.clear()
    torch.testing.assert_close(network(X), module(X), rtol=1e-3, atol=1e-5)
    assert (network.statistics.calls, network.statistics.fallbacks.total()) == (4, 0)
