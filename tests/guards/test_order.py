"""The order of hooks, attributes, weights and items counts where code goes through them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.trace.capture.container_state import ContainerState
from tests.helpers.readers import Object, Scaled, X, assert_followed
from tests.helpers.small import engine_for


def first_of_attributes(module: Any) -> float:
    return next(value for name, value in vars(module).items() if name in ("low", "high"))


def first_of_an_object(module: Any) -> float:
    return next(iter(module.o.__dict__.values()))


def first_of_weights(module: Any) -> float:
    return next(p for name, p in module.named_parameters() if name in ("one", "two")).sum()


def first_of_buffers(module: Any) -> float:
    return next(buffer for _, buffer in module.named_buffers()).sum()


def first_of_items(module: Any) -> float:
    return next(iter(module.o.values()))


def again(table: Any, name: str) -> None:
    table[name] = table.pop(name)


def two_parameters() -> dict[str, torch.nn.Parameter]:
    return {"one": torch.nn.Parameter(torch.ones(1), False), "two": torch.nn.Parameter(2 * torch.ones(1), False)}


def two_in_order() -> dict[str, Any]:
    return {"o": collections.OrderedDict(low=2.0, high=3.0)}


def an_object() -> dict[str, Any]:
    o = Object()
    o.other = 3.0  # type: ignore[attr-defined]
    return {"o": o}


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[], dict[str, Any]], Callable[[Any], Any]]] = {
    "attributes": (first_of_attributes, lambda: {"low": 2.0, "high": 3.0}, lambda m: again(vars(m), "low")),
    "an object's attributes": (first_of_an_object, an_object, lambda m: again(vars(m.o), "scale")),
    "parameters": (first_of_weights, two_parameters, lambda m: again(m._parameters, "one")),
    "items": (first_of_items, lambda: {"o": {"low": 2.0, "high": 3.0}}, lambda m: again(m.o, "low")),
    "items of a set": (lambda m: next(iter(m.o)), lambda: {"o": {1, 9}}, lambda m: (m.o.clear(), m.o.update((9, 1)))),
    "items of an ordered dict": (first_of_items, two_in_order, lambda m: m.o.move_to_end("low")),
}


@pytest.mark.parametrize("what", CASES)
def test_the_answer_follows_the_order_of(strict: Callable[..., Settings], what: str) -> None:
    read, attributes, change = CASES[what]
    assert_followed(strict, Scaled(read, **attributes()), change)


def test_the_answer_follows_the_order_of_buffers(strict: Callable[..., Settings]) -> None:
    module = Scaled(first_of_buffers)
    module.register_buffer("one", torch.ones(1))
    module.register_buffer("two", 2 * torch.ones(1))
    assert_followed(strict, module, lambda m: again(m._buffers, "one"))


def test_the_answer_follows_the_order_of_hooks(strict: Callable[..., Settings]) -> None:
    module = Scaled(lambda m: 2.0)
    first = module.linear.register_forward_hook(lambda module, args, result: result + 1)
    module.linear.register_forward_hook(lambda module, args, result: result * 2)
    assert_followed(strict, module, lambda m: m.linear._forward_hooks.move_to_end(first.id))


def test_a_forward_that_changes_an_order_stays_in_pytorch(strict: Callable[..., Settings]) -> None:
    def turn(module: Any) -> float:
        module.o.move_to_end(next(iter(module.o)))
        return next(iter(module.o.values()))

    module = Scaled(turn, **two_in_order())
    network = engine_for(strict(fallback="pytorch"), module)
    answers = [network(X) for _ in range(3)]
    again = Scaled(turn, **two_in_order())
    again.load_state_dict(module.state_dict())
    torch.testing.assert_close(answers, [again(X) for _ in range(3)])


def test_a_forward_that_counts_in_the_function_around_it_stays_in_pytorch(strict: Callable[..., Settings]) -> None:
    def counter() -> Callable[[Any], float]:
        count = 0

        def read(module: Any) -> float:
            nonlocal count
            count += 1
            return float(count)

        return read

    network = engine_for(strict(fallback="pytorch"), Scaled(counter()).requires_grad_(False))
    weights = network.module.linear  # type: ignore[union-attr]
    torch.testing.assert_close([network(X) for _ in range(3)], [weights(X) * number for number in (1, 2, 3)])  # type: ignore[operator]


class Counted(list[float]):
    """Counts in a slot, and so does :class:`Counter`, which is no container."""

    __slots__ = ("count",)


class Counter:
    __slots__ = ("count",)


@pytest.mark.parametrize("make", [Counter, Counted])
def test_a_forward_that_counts_in_a_slot_stays_in_pytorch(strict: Callable[..., Settings], make: Callable[[], Any]) -> None:
    def read(module: Any) -> float:
        module.o.count += 1
        return float(module.o.count)

    counter = make()
    counter.count = 0
    module = Scaled(read, o=counter).requires_grad_(False)
    network = engine_for(strict(fallback="pytorch"), module)
    answers = [network(X) for _ in range(3)]
    assert counter.count == 3
    torch.testing.assert_close(answers, [module.linear(X) * number for number in (1, 2, 3)])


def test_the_order_of_an_ordered_dict_is_restored() -> None:
    table = collections.OrderedDict(low=2.0, high=3.0)
    state = ContainerState(torch.nn.Linear(1, 1), [table])
    table.move_to_end("low")
    assert state.restore([table])
    assert list(table) == ["low", "high"]
