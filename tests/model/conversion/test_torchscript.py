"""Conversion by way of TorchScript, and the operators that are composed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ov_backend
from ov_backend.model.conversion.torchscript import compose
from tests.helpers.graphs import assert_close, names, run_eagerly, traced
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks


@pytest.fixture(autouse=True)
def _not_converted_directly(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert "converted directly instead" not in caplog.text


def compile_ts(model: object, **options: object) -> Compile:
    options = {"precision": "f32", "fallback": "raise", **options}
    return torch.compile(model, backend="openvino_ts", dynamic=False, options=options)


def test_openvino_ts_runs_a_network() -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.SiLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4)
    )
    x = torch.randn(2, 3, 8, 8)
    g = compile_ts(net)
    for _ in range(2):
        agree(g(x), net(x))
    assert calls() == 2
    assert not fallbacks()


def test_openvino_ts_keeps_inputs_and_results_apart() -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return c.exp(), a - b, b - a, (a - b) * 2 + c.exp()

    inputs = [torch.randn(3) for _ in range(3)]
    agree(compile_ts(f)(*inputs), f(*inputs))
    assert calls() == 1


def test_openvino_ts_copies_into_what_the_forward_makes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2, 3).copy_(x) * 2 + torch.ones(2, 3, dtype=torch.int32).copy_(x)

    x = torch.randn(3) * 4
    agree(compile_ts(f)(x), f(x))
    assert calls() == 1


def test_openvino_ts_indices() -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.LayerNorm(4))
    x = torch.tensor([[1, 2, 9]])
    agree(compile_ts(net)(x), net(x))
    assert calls() == 1


def test_openvino_ts_agrees_with_openvino_fx(compiled: Compile) -> None:
    net = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    fx = compiled(net)(x, x, x)
    torch._dynamo.reset()
    agree(list(compile_ts(net)(x, x, x)), list(fx))


def test_torchscript_is_the_second_converter(compiled: Compile) -> None:
    """The FX converter has no ``scatter_reduce``, and PyTorch does not decompose it."""

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 6).scatter_reduce(0, i, x, "amax") * 2

    x, i = torch.randn(5, 6), torch.randint(0, 4, (5, 6))
    agree(compiled(f)(x, i), f(x, i))
    assert calls() == 1
    (network,) = ov_backend.stats().values()
    assert not network["in_pytorch"]


def test_converter_is_validated() -> None:
    with pytest.raises(Exception, match="converter is 'onnx'; it must be one of fx, ts"):
        torch.compile(lambda x: x + 1, backend="openvino_fx", options={"converter": "onnx"})(torch.randn(2))


aten = torch.ops.aten

#: A function, and the operator that it becomes.
COMPOSED: dict[str, tuple[Callable[..., Any], list[torch.Tensor], str]] = {
    "softmax": (lambda x: torch.softmax(x, -1), [torch.randn(3, 4)], "aten.softmax.int"),
    "log_softmax": (lambda x: torch.log_softmax(x, 0), [torch.randn(3, 4)], "aten.log_softmax.int"),
    "_unsafe_view": (lambda x: aten._unsafe_view(x, [4, 3]), [torch.randn(3, 4)], "aten.view.default"),
    "layer_norm": (lambda x, w: F.layer_norm(x, [4], w), [torch.randn(3, 4), torch.randn(4)], "aten.layer_norm.default"),
    "group_norm": (lambda x: F.group_norm(x, 2), [torch.randn(2, 4, 3)], "aten.group_norm.default"),
    "batch_norm": (
        lambda x, mean, var: aten._native_batch_norm_legit_no_training(x, None, None, mean, var, 0.1, 1e-5)[0],
        [torch.randn(2, 4, 3), torch.randn(4), torch.rand(4)],
        "aten.batch_norm.default",
    ),
    "max_pool2d": (lambda x: aten.max_pool2d_with_indices(x, [2, 2])[0], [torch.randn(1, 2, 6, 6)], "aten.max_pool2d.default"),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_an_operator_of_a_kernel_is_composed(name: str) -> None:
    function, inputs, operator = COMPOSED[name]
    gm = traced(lambda *inputs: function(*inputs) * 2, *inputs)
    assert operator not in names(gm)
    composed = compose(gm)
    assert names(composed) == [operator, "aten.mul.Tensor"]
    assert_close(run_eagerly(composed, *inputs), [function(*inputs) * 2])
    assert all(node.meta.get("val") is not None for node in composed.graph.nodes if node.op == "call_function")


def test_an_operator_of_which_more_is_read_stays() -> None:
    x = torch.randn(1, 2, 6, 6)
    gm = compose(traced(lambda x: aten.max_pool2d_with_indices(x, [2, 2]), x))
    assert names(gm) == ["aten.max_pool2d_with_indices.default"]
    assert_close(run_eagerly(gm, x), list(aten.max_pool2d_with_indices(x, [2, 2])))


def test_other_operators_stay() -> None:
    assert names(compose(traced(lambda x: x.relu() + 1, torch.randn(2)))) == ["aten.relu.default", "aten.add.Tensor"]
