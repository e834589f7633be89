"""``explain`` says what a real run does: the same graphs, the same operators in PyTorch, and no share where nothing runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend.torch_compile.report.coverage import Report
from tests.torch_compile.test_frames import Scripted

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    x.add_(1)
    return (y * x).sin()


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return torch.linalg.inv(y @ y.t() + torch.eye(3)).cos()


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    with Path(__file__).open():
        return x.sin() @ x.t()


@torch.compiler.disable
def disabled(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm, self.last = torch.nn.Linear(4, 4), torch.nn.LSTM(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(self.first(x))[0])


PROGRAMS: dict[str, Callable[..., Any]] = {
    "everything runs": lambda x: torch.softmax(x @ x.t(), -1),
    "it returns its input": lambda x: x,
    "it returns a view": lambda x: x.t(),
    "a view beside a result": lambda x: (x.sin(), x.t()),
    "an operator without a conversion": lambda x: torch.linalg.inv(x @ x.t() + torch.eye(3)) * 2,
    "random numbers": lambda x: x * torch.rand_like(x),
    "nothing but random numbers": lambda x: torch.rand_like(x),
    "float64 in a part": lambda x: (x.double().sin().float() @ x.t()).cos(),
    "float64 everywhere": lambda x: torch.sin(x.double()),
    "complex in a part": lambda x: torch.fft.fft(x).abs().sin(),
    "it writes to its input": in_place,
    "a graph break": breaks,
    "a context that Dynamo does not know": in_a_loop,
    "a disabled function": lambda x: disabled(x),
    "a scripted module": Scripted().eval(),
    "a recurrent network": Tagger().eval(),
    "values decide the shape": lambda x: torch.nonzero(x).sum() * 2,
    "an empty tensor": lambda x: x[:0].sin(),
    "a choice by a value": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)) * 2,
}


def explained(program: Callable[..., Any]) -> Report:
    return ov_backend.explain(program, X.clone(), options={"fallback": "pytorch"})


@pytest.fixture(params=PROGRAMS, name="program")
def _program(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return PROGRAMS[request.param]


def test_a_report_says_what_a_run_does(program: Callable[..., Any]) -> None:
    if not hasattr(torch, "cond") and program is PROGRAMS["a choice by a value"]:
        pytest.skip("this torch has no torch.cond")
    report = explained(program)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program, backend="openvino_fx", dynamic=False, options={"fallback": "pytorch"})(X.clone())
    stats = ov_backend.stats()
    answered = {name: each for name, each in stats.items() if each["calls"]}
    assert (report.percent > 0) == bool(answered)
    undivided = [name for name in answered if not any(other.startswith(f"{name} part ") for other in answered)]
    assert sum(graph.percent > 0 for graph in report.graphs) == len(undivided)
    counts = Counter({unsupported.operator: unsupported.count for graph in report.graphs for unsupported in graph.unsupported})
    assert counts == sum((Counter(each["in_pytorch"]) for each in answered.values()), Counter())
    for graph in report.graphs:
        assert graph.percent or graph.reason or graph.unsupported


@pytest.mark.parametrize("name", ["a disabled function", "it returns its input"])
def test_where_nothing_is_captured_the_share_is_0_and_the_report_says_so(name: str) -> None:
    report = explained(PROGRAMS[name])
    assert report.percent == 0
    assert report.graphs or "Dynamo makes no graph of it" in report.text()


def test_the_model_runs_once_for_a_report() -> None:
    seen = []

    @torch.compiler.disable
    def note() -> None:
        seen.append(1)

    def program(x: torch.Tensor) -> torch.Tensor:
        note()
        return x.sin()

    explained(program)
    assert seen == [1]
