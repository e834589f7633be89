"""Frames of which Dynamo makes no graph: recurrent networks are followed, and others are counted or raise."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import ov_backend
from tests.helpers.torch_compile import agree, calls, fallbacks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch._dynamo.callback") is None, reason="this torch does not say when Dynamo compiles a frame"
)
X = torch.linspace(-1, 1, 24).reshape(3, 2, 4)
LAYERS: dict[str, Any] = {
    "LSTM": lambda: torch.nn.LSTM(4, 3),
    "LSTM, two layers, two directions": lambda: torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True),
    "LSTM without biases": lambda: torch.nn.LSTM(4, 3, bias=False, batch_first=True),
    "LSTM with projections": lambda: torch.nn.LSTM(4, 3, proj_size=2),
    "GRU": lambda: torch.nn.GRU(4, 3, num_layers=2, bidirectional=True),
    "RNN": lambda: torch.nn.RNN(4, 3, batch_first=True),
    "RNN with relu": lambda: torch.nn.RNN(4, 3, nonlinearity="relu", bidirectional=True),
}


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(torch.nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.sin())


@pytest.fixture(autouse=True)
def _reset() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_networks_run(name: str) -> None:
    if not hasattr(torch._dynamo.config, "allow_rnn"):
        pytest.skip("this Dynamo cannot follow them")
    torch.manual_seed(0)
    net = LAYERS[name]().eval()
    with torch.no_grad():
        compiled = torch.compile(net, backend="openvino_fx", options={"fallback": "raise", "precision": "f32"})
        agree(compiled(X), net(X))
    assert calls() == 1
    assert not any(network["in_pytorch"] for network in ov_backend.stats().values())


@pytest.mark.parametrize("aot_autograd", [False, True])
def test_recurrent_networks_are_trained(aot_autograd: bool) -> None:
    if not hasattr(torch._dynamo.config, "allow_rnn"):
        pytest.skip("this Dynamo cannot follow them")
    torch.manual_seed(0)
    net, gradients = torch.nn.LSTM(4, 3, num_layers=2), []
    options = {"fallback": "raise", "precision": "f32", "aot_autograd": aot_autograd}
    with torch.enable_grad():
        for run in (torch.compile(net, backend="openvino_fx", options=options), net):
            gradients.append(torch.autograd.grad(run(X)[0].square().sum(), list(net.parameters())))
    agree(*gradients)
    assert calls() == 1 + aot_autograd


def test_dynamo_follows_them_for_this_backend_only() -> None:
    ov_backend.prepare_torch()  # as a command does, after the import
    net, graphs = torch.nn.LSTM(4, 3).eval(), []

    def other(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        graphs.append(gm)
        return gm

    with torch.no_grad():
        torch.compile(net, backend="openvino_fx")(X)
        assert not getattr(torch._dynamo.config, "allow_rnn", False)
        torch._dynamo.reset()
        torch.compile(net, backend=other)(X)
    assert not graphs


def test_a_function_without_a_graph_is_counted_once_with_the_reason() -> None:
    ov_backend.prepare_torch()
    compiled = torch.compile(Scripted().eval(), backend="openvino_fx")
    with torch.no_grad():
        for _ in range(3):
            compiled(X)
    ((name, network),) = ov_backend.stats().items()
    assert name.startswith("forward at ")
    assert "test_frames.py" in name
    assert (network["calls"], network["answered_by"]) == (0, "eager")
    ((reason, count),) = fallbacks().items()
    assert reason.startswith("Dynamo makes no graph of it: ")
    assert count == 1


def test_with_fallback_raise_a_program_without_a_graph_raises() -> None:
    other, compiled = (
        torch.compile(program, backend="openvino_fx", options={"fallback": "raise"}) for program in (torch.sin, Scripted().eval())
    )
    other(X)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(X)


def test_with_fallback_raise_a_function_without_a_graph_raises_where_there_are_graphs_too() -> None:
    rest = Scripted().eval()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        torch._dynamo.graph_break()
        return rest(y)

    with torch.no_grad(), pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(program, backend="openvino_fx", options={"fallback": "raise", "precision": "f32"})(X)
    report = ov_backend.explain(program, X)
    assert report.graphs
    assert report.percent < 100
    assert "at most" in report.text()
    assert "in PyTorch as a whole: Dynamo makes no graph of forward at" in report.text()


def test_with_fallback_raise_a_graph_break_does_not_raise() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        torch._dynamo.graph_break()
        return y.sin()

    with torch.no_grad():
        compiled = torch.compile(program, backend="openvino_fx", options={"fallback": "raise", "precision": "f32"})
        agree(compiled(X), program(X))
    assert calls() == 2
    assert not fallbacks()


class Disabled(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def broken_first(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x.sin()


@pytest.mark.parametrize(("program", "name"), [(torch.cov, "cov"), (Disabled(), "forward at "), (broken_first, "graph ")])
def test_a_function_that_breaks_at_once_has_an_entry_unless_a_graph_follows(program: Any, name: str) -> None:
    ov_backend.prepare_torch()
    with torch.no_grad():
        torch.compile(program, backend="openvino_fx")(X[0])
    ((entry, network),) = ov_backend.stats().items()
    assert entry.startswith(name)
    assert network["calls"] == name.startswith("graph")
    assert all(reason.startswith("Dynamo makes no graph of it: ") for reason in network["fallbacks"])


def _longer(net: torch.nn.Module) -> Any:
    return lambda x, word: net(x) * len(word)


def test_calls_beyond_the_limit_of_graphs_are_told(caplog: pytest.LogCaptureFixture) -> None:
    net, words = torch.nn.Linear(4, 4).eval(), ["a" * length for length in range(1, 5)]
    with torch._dynamo.config.patch(recompile_limit=2), torch.no_grad():
        function = torch.compile(_longer(net), backend="openvino_fx", options={"precision": "f32"})
        for word in words + words:
            agree(function(X, word), _longer(net)(X, word))
    assert calls() == 4
    (reason,) = fallbacks()
    assert "recompile_limit allows (2)" in reason
    assert [record.getMessage() for record in caplog.records if reason in record.getMessage()]


def test_with_fallback_raise_calls_beyond_the_limit_of_graphs_raise() -> None:
    net = torch.nn.Linear(4, 4).eval()
    with torch._dynamo.config.patch(recompile_limit=1), torch.no_grad():
        function = torch.compile(_longer(net), backend="openvino_fx", options={"fallback": "raise"})
        agree(function(X, "a"), net(X), 2e-2)
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit, match=r"recompile_limit allows \(1\)"):
            function(X, "aa")
        other = torch.compile(_longer(net), backend="eager")
        assert [torch.equal(other(X, word), net(X) * len(word)) for word in ("a", "aa", "aaa")] == [True] * 3
