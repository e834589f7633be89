"""What the keys of graphs tell apart, in one process and in the next: values, places, options, dtypes, devices and sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ov_backend
from tests.helpers.alone import alone
from tests.helpers.extent import some
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks, total


def sums(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (a - b) * 2 + c.exp(), b - a


#: Functions that differ in an argument, in the order of their inputs, or in which input goes where.
FUNCTIONS: list[Callable[..., object]] = [
    sums,
    lambda a, b, c: a * 2,
    lambda a, b, c: a * 3,
    lambda a, b, c: a - b,
    lambda a, b, c: b - a,
    lambda a, b, c: a.sum(0),
    lambda a, b, c: a.sum(1),
]
#: ``a - b`` and ``b - a`` are one graph: Dynamo passes the inputs in the order of their first use; that of torch 2.1 does not.
GRAPHS = len(FUNCTIONS) - (0 if torch.__version__.startswith("2.1.") else 1)


@torch.no_grad()
def run_with_a_store(folder: Path) -> int:
    """Compare every function with eager PyTorch's result; the number of graphs in the store afterwards."""
    torch.manual_seed(0)
    inputs = [torch.randn(3, 3) for _ in range(3)]
    options = {"precision": "f32", "fallback": "raise", "model_caching": True, "cache_dir": str(folder)}
    for function in FUNCTIONS:
        torch._dynamo.reset()
        agree(torch.compile(function, backend="openvino_fx", options=options)(*inputs), function(*inputs))
    return len(list(folder.rglob("*.ovgraph")))


def test_arguments_and_places_of_inputs_are_part_of_the_key_cold_and_warm(tmp_path: Path) -> None:
    """The second process has another hash seed; had it missed a graph, it would have stored one more."""
    assert run_with_a_store(tmp_path) == GRAPHS
    assert alone(run_with_a_store, tmp_path) == GRAPHS


def test_results_belong_to_the_caller(compiled: Compile) -> None:
    g = compiled(lambda x: (x * 2, x.sum()))
    first = g(torch.ones(4))
    copies = [t.clone() for t in first]
    g(torch.full((4,), 7.0))
    agree(list(first), copies)


def test_a_warm_run_has_no_fallback(compiled: Compile, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    for _ in range(2):
        agree(compiled(net, model_caching=True, cache_dir=str(tmp_path))(x), net(x))
        assert calls() == 1
        assert not fallbacks()
        torch._dynamo.reset()
        ov_backend.reset()


def test_two_sets_of_options_interleaved(compiled: Compile) -> None:
    net, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    one = compiled(net, disabled_ops=["aten.addmm"], fallback="pytorch")
    two = compiled(other, config={"INFERENCE_NUM_THREADS": 1})
    x = torch.randn(2, 4)
    for _ in range(3):
        agree(one(x), net(x))
        agree(two(x), other(x))
    stats = list(ov_backend.stats().values())
    assert sorted(network["calls"] for network in stats) in ([0, 3], [3, 3])


@pytest.mark.parametrize("device", some(["CPU", "HETERO:CPU"], ["CPU", "AUTO", "AUTO:CPU", "HETERO:CPU"]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_float_dtype_on_every_spelling_of_the_device(compiled: Compile, dtype: torch.dtype, device: str) -> None:
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    expected = net(x)  # in f32: torch 2.1's CPU has no f16 products
    result = compiled(net.to(dtype), device=device)(x.to(dtype))
    assert result.dtype is dtype
    agree(result.float(), expected, 2e-2)
    assert calls() == 1
    assert not fallbacks()


def test_sizes_back_and_forth_compile_once_each(compiled: Compile) -> None:
    net = torch.nn.Conv2d(3, 4, 3)
    g = compiled(net)
    for size in (8, 10, 8, 10, 8):
        x = torch.randn(1, 3, size, size)
        agree(g(x), net(x))
    assert total("compiles") == 2


@pytest.mark.parametrize("dynamic", some([None], [None, True]), ids=["automatic", "dynamic"])
def test_all_of_twenty_sizes_run_in_openvino(compiled: Compile, dynamic: bool | None) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.SiLU())
    g = compiled(net, dynamic=dynamic)
    for size in range(8, 28):
        x = torch.randn(1, 3, size, size + 2)
        agree(g(x), net(x))
    assert calls() == 20
    assert not fallbacks()
