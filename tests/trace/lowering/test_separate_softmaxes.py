"""A softmax between two views that undo each other is right for everyone who reads it, or what it reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.trace.lowering.passes.separate_softmaxes import separate_softmaxes
from tests.helpers.graphs import assert_close, names, run_eagerly, run_openvino, traced

Function = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A linear layer as it is traced: rows, a product, and a view back."""
    return torch.ops.aten._unsafe_view.default(x.view(-1, x.shape[-1]) @ weight, [*x.shape[:-1], weight.shape[-1]])


def probabilities(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = product(x, a).softmax(-1)
    return product(y, b), y[1].sum(), y.mean(1).square().sum()


def logits(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = product(x, a)
    return product(y.softmax(-1), b), y[1].sum(), torch.maximum(y, y.softmax(-1))


def two_views(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = product(x, a).softmax(-1)
    return product(y, b), y.view(2, -1).sum(1), y[0].sum()


@pytest.fixture
def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 5, 8), torch.randn(8, 6), torch.randn(6, 3)]


@pytest.mark.parametrize("function", [probabilities, logits, two_views])
def test_every_reader_gets_its_own(function: Function, inputs: list[torch.Tensor]) -> None:
    gm = separate_softmaxes(traced(function, *inputs))
    gm.recompile()
    expected = list(function(*inputs))
    assert_close(run_eagerly(gm, *inputs), expected)
    assert_close(run_openvino(gm, *inputs), expected)


def test_a_softmax_with_one_reader_stays(inputs: list[torch.Tensor]) -> None:
    gm = traced(lambda x, a, b: product(product(x, a).softmax(-1), b), *inputs)
    before = names(gm)
    assert names(separate_softmaxes(gm)) == before
    assert before.count("aten._softmax.default") == 1


class Router(torch.nn.Module):
    """Chooses among experts, and says how evenly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.mix = torch.nn.Linear(8, 6, bias=False), torch.nn.Linear(6, 8, bias=False)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = torch.softmax(self.gate(x), -1)
        return self.mix(shares), shares[1].sum(0)


def test_a_module_that_returns_what_it_mixes_by(strict: Callable[..., Settings], inputs: list[torch.Tensor]) -> None:
    module = Router()
    network = Engine(strict(precision="f32")).network("router", module)
    assert_close(list(network(inputs[0])), list(module(inputs[0])))
