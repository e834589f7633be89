"""What a forward asks that is answered otherwise in a trace: there modes are active, and tensors are fake tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor
from torch._subclasses import FakeTensor as Renamed
from torch.overrides import _get_current_function_mode_stack, handle_torch_function, has_torch_function
from torch.overrides import has_torch_function_unary as asks_by_another_name
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ov_backend import Settings
from tests.helpers.readers import assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


class Asking(torch.nn.Module):
    """x twice, or three times if ``ask`` finds something."""

    def __init__(self, ask: Callable[[torch.Tensor, torch.nn.Linear], object]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.ask = ask
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (3 if self.ask(x, self.linear) else 2)


def twice(x: torch.Tensor) -> torch.Tensor:
    """As PyTorch's own functions in Python are."""
    if has_torch_function((x,)):
        result: torch.Tensor = handle_torch_function(twice, (x,), x)
        return result + 1
    return 2 * x


ASKED: dict[str, tuple[Callable[[torch.Tensor, torch.nn.Linear], object], str]] = {
    "overrides of an input": (lambda x, layer: has_torch_function((x,)), "has_torch_function"),
    "overrides of a weight": (lambda x, layer: torch.overrides.has_torch_function((layer.weight,)), "has_torch_function"),
    "by another name": (lambda x, layer: asks_by_another_name(x), "has_torch_function_unary"),
    "variadic": (lambda x, layer: torch.overrides.has_torch_function_variadic(x, x), "has_torch_function_variadic"),
    "in C": (lambda x, layer: torch._C._has_torch_function((x,)), "has_torch_function"),
    "a function of its own": (lambda x, layer: twice(x).dim() > 2, "has_torch_function"),
    "fake tensor": (lambda x, layer: isinstance(x, FakeTensor), "FakeTensor"),
    "renamed fake tensor": (lambda x, layer: isinstance(x, Renamed), "Renamed"),
    "modes of functions": (lambda x, layer: len(_get_current_function_mode_stack()), "_get_current_function_mode_stack"),
    "modes of operators": (lambda x, layer: len(_get_current_dispatch_mode_stack()), "_get_current_dispatch_mode_stack"),
    "keys": (lambda x, layer: torch._C._dispatch_keys(x).has(torch._C.DispatchKey.Python), "_dispatch_keys"),
    "table": (lambda x, layer: len(x.__dict__), "__dict__ of a tensor"),
    "table by vars": (lambda x, layer: len(vars(x)), "__dict__ of a tensor"),
    "same memory": (lambda x, layer: not x.is_set_to(x.view(3, 4)), "is_set_to"),
    "tracing": (lambda x, layer: torch.fx._symbolic_trace.is_fx_tracing(), "is_fx_tracing"),
    "threads": (lambda x, layer: threading.active_count() > 100, "threading.active_count()"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_trace_answers_otherwise_stays_in_pytorch(strict: Strict, name: str) -> None:
    ask, word = ASKED[name]
    module = Asking(ask)
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(2):
        assert_eager(network, module)
    assert network.statistics.calls == 0
    assert word in network.statistics.last_reason


def norms(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own Python code asks for overrides in all of these."""
    products: torch.Tensor = torch.einsum("ij,kj->ik", x, x)
    return torch.nn.functional.normalize(x).sum() + torch.norm(x) + products.sum() + (1 - x).sum()


HARMLESS: dict[str, Callable[[torch.Tensor, torch.nn.Linear], Any]] = {
    "functions of torch": lambda x, layer: bool(norms(x).dim()),
    "the table of a module": lambda x, layer: len(layer.__dict__) > 100 or len(vars(layer)) > 100,
    "the table of a class": lambda x, layer: "nothing" in type(layer).__dict__,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_question_of_the_program_is_answered_by_openvino(strict: Strict, name: str) -> None:
    module = Asking(HARMLESS[name])
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1
