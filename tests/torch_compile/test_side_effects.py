"""What a graph does besides computing is found without computing or writing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ov_backend.core.errors import CaptureError
from ov_backend.torch_compile.side_effects import SideEffects, analyze

PURE = SideEffects(written=(), aliases=False, random=False, differentiable=(False,))


def effects(function: Callable[..., Any], *args: Any, gradients: bool = False) -> SideEffects:
    return analyze(function, args, gradients)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 3))


def test_a_graph_that_only_computes() -> None:
    assert effects(lambda a, b: (a @ b.t()).relu(), x(), x()) == PURE


WRITES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "in place": (lambda a, b: a.add_(b) * 2, (0,)),
    "to the second input": (lambda a, b: b.mul_(2) + a, (1,)),
    "to both": (lambda a, b: a.add_(1) + b.sub_(1), (0, 1)),
    "through a view": (lambda a, b: a[0].zero_().sum() + b, (0,)),
    "by copy_": (lambda a, b: a.copy_(b) + 1, (0,)),
    "by out=": (lambda a, b: torch.add(a, b, out=b) + 1, (1,)),
    "by indexing": (lambda a, b: (a.index_put_((torch.tensor([0]),), b[:1]), b + 1)[1], (0,)),
    "by a foreach operator": (lambda a, b: (torch._foreach_add_([a, b], 1), a + b)[1], (0, 1)),
    "to an intermediate result only": (lambda a, b: (a + b).add_(1), ()),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_inputs(name: str) -> None:
    function, written = WRITES[name]
    a, b = x(), x()
    before = a.clone(), b.clone()
    assert effects(function, a, b).written == written
    assert torch.equal(a, before[0]), "nothing is written while it is analyzed"
    assert torch.equal(b, before[1])


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_to_its_statistics_in_training(training: bool) -> None:
    """The operator's schema does not say so."""

    def f(a: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.native_batch_norm.default(a, None, None, mean, var, training, 0.1, 1e-5)[0]

    assert effects(f, x(4, 3), torch.zeros(3), torch.ones(3)).written == ((1, 2) if training else ())


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_as_networks_call_it(training: bool) -> None:
    def f(a: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(a, mean, var, training=training)

    assert effects(f, x(4, 3), torch.zeros(3), torch.ones(3)).written == ((1, 2) if training else ())


ALIASES: dict[str, tuple[Callable[..., Any], bool]] = {
    "a view of an input": (lambda a: a.t(), True),
    "a view of another result": (lambda a: (lambda y: (y, y[0]))(a.exp()), True),
    "two views of one result": (lambda a: (lambda y: (y[0], y[1]))(a.exp()), True),
    "a detached input": (lambda a: a.detach(), True),
    "an input as it is": (lambda a: (a, a + 1), False),
    "a result twice": (lambda a: (lambda y: (y, y))(a.exp()), False),
    "a view of what is not returned": (lambda a: a.exp().t(), False),
    "a copy": (lambda a: a.clone(), False),
}


@pytest.mark.parametrize("name", ALIASES)
def test_views_among_the_results(name: str) -> None:
    function, aliases = ALIASES[name]
    assert effects(function, x()).aliases is aliases


RANDOM: dict[str, tuple[Callable[..., Any], bool]] = {
    "rand_like": (lambda a: torch.rand_like(a) + a, True),
    "randn": (lambda a: torch.randn(2, 3) + a, True),
    "bernoulli": (lambda a: torch.bernoulli(a.sigmoid()), True),
    "in place": (lambda a: (a + 1).normal_(), True),
    "dropout": (lambda a: F.dropout(a, 0.5, training=True), True),
    "dropout in inference": (lambda a: F.dropout(a, 0.5, training=False) + 1, False),
    "arithmetic": (lambda a: a * 3 + 1, False),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers(name: str) -> None:
    function, random = RANDOM[name]
    a, state = x(), torch.get_rng_state()
    assert effects(function, a).random is random
    assert torch.equal(torch.get_rng_state(), state), "none is drawn while it is analyzed"


def test_gradients_flow_through_some_of_the_results() -> None:
    weight = torch.nn.Parameter(x())

    def f(a: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a * w, a + 1, (a * w).argmax(), (a * w).detach() + 1

    assert effects(f, x(), weight, gradients=True).differentiable == (True, False, False, False)
    assert effects(f, x(), weight, gradients=False).differentiable == (False,) * 4


def test_inputs_that_are_no_tensors() -> None:
    assert effects(lambda a, n: a * n, x(), 3) == PURE


def test_inference_tensors_are_analyzed_like_any_other() -> None:
    with torch.inference_mode():
        a = x()
    assert effects(lambda a: a.add_(1), a).written == (0,)


def test_nested_results() -> None:
    assert effects(lambda a: [a + 1, (a * 2, None)], x()).differentiable == (False, False)


@pytest.mark.parametrize(
    "function",
    [lambda a: a * 2 if a.sum() > 0 else a, lambda a: a * a.sum().item(), lambda a: a[a > 0] + 1],
    ids=["a branch", "a number", "a shape"],
)
def test_what_depends_on_values_cannot_be_analyzed(function: Callable[..., Any]) -> None:
    with pytest.raises(CaptureError, match="it cannot be traced") as raised:
        effects(function, x())
    assert "\n" not in str(raised.value)
