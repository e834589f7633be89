"""What a forward asks its inputs, beyond shapes and values, is answered as PyTorch would answer it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from tests.helpers.readers import assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 16).reshape(4, 4)


class Asking(torch.nn.Module):
    """Computes by what it asks of its input."""

    def __init__(self, ask: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4).requires_grad_(False)
        self.ask = ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (2 if self.ask(x) else 3)


class Pair(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * (2 if x is y else 3) + y


def scaled() -> torch.Tensor:
    """An input with an attribute of its own."""
    x = X.clone()
    x.scale = 1  # type: ignore[attr-defined]
    return x


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(4, 4)


@pytest.mark.parametrize("ask", [lambda x: x.is_contiguous(), lambda x: x.stride(0) == 4, lambda x: not x.requires_grad])
def test_how_an_input_lies_in_memory_counts_where_code_asks(strict: Strict, ask: Callable[[torch.Tensor], bool]) -> None:
    module = Asking(ask)
    network = engine_for(strict(), module)
    with torch.no_grad():
        for each in (X, X.t(), X.clone().requires_grad_(), X):
            assert_eager(network, module, each)


CASES: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "storage_offset": (lambda x: x.storage_offset(), torch.cat([X, X])[4:]),
    "an attribute": (lambda x: hasattr(x, "scale"), scaled()),
    "_version": (lambda x: x._version, X.clone().add_(1)),
    "data_ptr": (lambda x: x.data_ptr() % 2 == 0, X),
    "is_inference": (lambda x: x.is_inference(), in_inference_mode()),
    "_is_view": (lambda x: x._is_view(), torch.cat([X, X])[:4]),
    "its class": (lambda x: isinstance(x, torch.nn.Parameter), torch.nn.Parameter(X, requires_grad=False)),
}


class Doubling(torch.Tensor):
    """A tensor of a class of its own, which computes otherwise."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.nn.functional.linear else result


def test_an_input_of_a_class_of_its_own_stays_in_pytorch(strict: Strict) -> None:
    module = Asking(lambda x: True)
    network = engine_for(strict(fallback="pytorch"), module)
    for x in (X, X.as_subclass(Doubling), X):
        answer = network(x)
        assert type(answer) is type(x)
        torch.testing.assert_close(answer, module(x))
    assert network.statistics.calls == 2


KIND, FACTORS, ONES = torch.Tensor, {torch.Tensor: 1}, torch.ones(4)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: type(x).__name__ == "Tensor",
        lambda x: x.__class__.__name__ == "Tensor",
        lambda x: type(x) is KIND,
        lambda x: FACTORS.get(type(x)),
        lambda x: FACTORS.get(type(x + 1)),
        lambda x: next(FACTORS.get(kind) for kind in map(type, [x])),
    ],
)
def test_the_class_of_a_tensor_stays_in_pytorch(strict: Strict, ask: Callable[[torch.Tensor], Any]) -> None:
    module = Asking(ask)
    network = engine_for(strict(fallback="pytorch"), module)
    torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 0


@pytest.mark.parametrize("ask", [lambda x: type(ONES) is KIND, lambda x: isinstance(x, KIND)])
def test_the_class_of_something_else_is_answered(strict: Strict, ask: Callable[[torch.Tensor], Any]) -> None:
    module = Asking(ask)
    assert_eager(engine_for(strict(), module), module, X)


@pytest.mark.parametrize("name", CASES)
def test_what_a_trace_cannot_see_of_an_input_stays_in_pytorch(strict: Strict, name: str) -> None:
    ask, x = CASES[name]
    module = Asking(ask)
    network = engine_for(strict(fallback="pytorch"), module)
    for each in (X, x):
        torch.testing.assert_close(network(each), module(each))
    assert network.statistics.fallbacks.total() >= 1


def test_whether_two_inputs_are_one_object_counts(strict: Strict) -> None:
    network = engine_for(strict(), Pair())
    for x, y in [(X, X), (X, X.clone()), (X, X)]:
        torch.testing.assert_close(network(x, y), Pair()(x, y))
    assert network.statistics.calls == 3


def test_whether_gradients_are_on_counts(strict: Strict) -> None:
    module = Asking(lambda x: torch.is_grad_enabled())
    network = engine_for(strict(), module)

    for on in (True, False, True):
        with torch.set_grad_enabled(on):
            assert_eager(network, module, X)
    assert network.statistics.captures == 2


def test_the_inference_mode_stays_in_pytorch_where_code_asks(strict: Strict) -> None:
    module = Asking(lambda x: torch.is_inference_mode_enabled())
    network = engine_for(strict(fallback="pytorch"), module)
    with torch.inference_mode():
        torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 0


def test_a_weight_that_is_an_input_too_stays_in_pytorch(strict: Strict) -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(X.clone(), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if x is self.weight else 3)

    module = Weighted()
    network = engine_for(strict(fallback="pytorch"), module)
    for x in (X, module.weight):
        torch.testing.assert_close(network(x), module(x))
    assert network.statistics.fallbacks.total() == 1


def test_an_input_that_is_a_buffer_of_the_network_stays_in_pytorch(strict: Strict) -> None:
    class WithNull(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("null", X.clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if x is self.null else 3)

    module = WithNull()
    network = engine_for(strict(fallback="pytorch"), module)
    torch.testing.assert_close(network(module.null), module(module.null))
    assert network.statistics.calls == 0


def test_a_write_that_reaches_an_input_of_some_strides_only_stays_in_pytorch(strict: Strict) -> None:
    class Writing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.contiguous()
            y += 1
            return x * 2 + y

    network, module = engine_for(strict(fallback="pytorch"), Writing()), Writing()
    for each in (X.t(), X, X.t()):
        ours, pytorch_s = each.clone(memory_format=torch.preserve_format), each.clone(memory_format=torch.preserve_format)
        torch.testing.assert_close(network(ours), module(pytorch_s))
        torch.testing.assert_close(ours, pytorch_s)


def test_a_forward_that_changes_its_arguments_stays_in_pytorch(strict: Strict) -> None:
    class Noting(torch.nn.Module):
        def forward(self, x: torch.Tensor, out: dict[str, torch.Tensor]) -> torch.Tensor:
            out["h"] = x + 1
            return x * 2

    network = engine_for(strict(fallback="pytorch"), Noting())
    for _ in range(2):
        out: dict[str, torch.Tensor] = {}
        torch.testing.assert_close(network(X, out), X * 2)
        torch.testing.assert_close(out["h"], X + 1)


def test_the_order_of_an_argument_s_items_counts(strict: Strict) -> None:
    class Folding(torch.nn.Module):
        def forward(self, x: torch.Tensor, **changes: float) -> torch.Tensor:
            for name, value in changes.items():
                x = x * value if name == "scale" else x + value
            return x

    network = engine_for(strict(), Folding())
    torch.testing.assert_close(network(X, scale=2.0, shift=3.0), X * 2 + 3)
    torch.testing.assert_close(network(X, shift=3.0, scale=2.0), (X + 3) * 2)


def test_derivatives_that_are_computed_forward_stay_in_pytorch(strict: Strict) -> None:
    from torch.autograd import forward_ad

    module = Asking(lambda x: True)
    network = engine_for(strict(fallback="pytorch"), module)
    with forward_ad.dual_level():
        answer = network(forward_ad.make_dual(X, torch.ones_like(X)))
        tangent = forward_ad.unpack_dual(answer).tangent
    torch.testing.assert_close(tangent, (torch.ones(4, 4) @ module.linear.weight.t()) * 2)
