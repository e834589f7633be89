"""``openvino_ts`` converts every subgraph through TorchScript; ``openvino_fx`` does so with what has no direct conversion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ov_backend
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
