"""What a graph is fed with and what it does: every dtype and kind of tensor, views and writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.helpers.torch_compile import Compile, agree, calls, fallbacks

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_dtypes(compiled: Compile, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if dtype is torch.bool:
            return x & y, x | ~y, torch.where(x, 1.0, 2.0)
        return x + y * 2, torch.maximum(x, y), x > y, (x * y).sum(0, dtype=dtype)

    x, y = (torch.randint(0, 9, (3, 5)).to(dtype) for _ in range(2))
    agree(compiled(f)(x, y), f(x, y), 1e-2 if dtype is torch.bfloat16 else 2e-3)
    assert calls() == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_dtypes_through_a_network(compiled: Compile, dtype: torch.dtype) -> None:
    head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.SiLU(), head)
    x = torch.randn(2, 3, 8, 8)
    expected = net(x)
    agree(compiled(net.to(dtype))(x.to(dtype)).float(), expected, 1e-3 if dtype is torch.float32 else 3e-2)
    assert calls() == 1


def test_float64_stays_in_pytorch_exactly(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.double() + 1e-12, x.sin()

    x = torch.randn(4)
    a, b = compiled(f)(x)
    assert torch.equal(a, f(x)[0])
    agree(b, f(x)[1])
    assert calls() == 1


def softmax_of_differences(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 - x.mean()).softmax(-1)


def writes_to_intermediates(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.mul_(3).relu_()
    y[..., 0] = 7
    return F.relu(y - 2, inplace=True)


def of_sizes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, x.sum(), y.exp()


X = torch.randn(5, 6)
CHANNELS_LAST = torch.nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
#: Functions, or modules, and their inputs; all of each runs in OpenVINO, or in parts.
ANSWERED: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    **{f"sizes {shape}": (of_sizes, (torch.randn(shape), torch.randn(3))) for shape in ((), (1,), (0, 4), (2, 0, 3))},
    "transposed": (softmax_of_differences, (X.t(),)),
    "strided": (softmax_of_differences, (X[:, ::2],)),
    "offset": (softmax_of_differences, (X[1:, 1:],)),
    "expanded": (softmax_of_differences, (X[:1].expand(5, 6),)),
    "overlapping": (softmax_of_differences, (X.as_strided((3, 3), (1, 1)),)),
    "odd": (softmax_of_differences, (X.flip(0).t()[::2],)),
    "channels last": (CHANNELS_LAST, (torch.randn(2, 4, 9, 7).to(memory_format=torch.channels_last),)),
    "writes to intermediates": (writes_to_intermediates, (torch.randn(4, 3),)),
    "an operator without a conversion": (lambda x: torch.linalg.inv(x @ x.t() + torch.eye(5)).exp() @ x, (X / 4,)),
    "a decomposition that writes": (lambda x, y: torch.diagonal_scatter(x * 2, y) + 1, (torch.randn(4, 4), torch.randn(4))),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_is_answered(compiled: Compile, name: str) -> None:
    function, inputs = ANSWERED[name]
    agree(compiled(function)(*inputs), function(*inputs))
    assert calls() == 1


def test_inputs_that_are_the_same_tensor(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 - y

    x = torch.randn(3)
    g = compiled(f)
    agree(g(x, x), f(x, x))
    agree(g(x, x.clone() + 1), f(x, x + 1))


def test_inputs_that_share_memory_and_are_written_to(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y + 1

    base, other = torch.randn(8), torch.zeros(8)
    other.copy_(base)
    expected = f(base[:6], base[2:])
    agree(compiled(f)(other[:6], other[2:]), expected)
    agree(other, base)


def test_writes_to_an_input(compiled: Compile) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        x[0] = 5
        x.index_fill_(0, i, -1.0)
        return x * 2

    x, i = torch.randn(4, 3), torch.tensor([1, 3])
    y = x.clone()
    g = compiled(f)
    for _ in range(3):
        agree(g(y, i), f(x, i))
        agree(y, x)
    assert calls() == 3
    assert not fallbacks()


def test_writes_to_a_view_of_an_input(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[:, 1:].relu_()
        return x.sum()

    x = torch.randn(4, 3)
    y = x.clone()
    agree(compiled(f)(y), f(x))
    agree(y, x)


def test_batch_norm_in_training_updates_its_buffers(compiled: Compile) -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).train()

    expected, actual = make(), make()
    g = compiled(actual)
    for seed in range(4):
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
        agree(g(x), expected(x))
    agree(dict(actual.named_buffers()), dict(expected.named_buffers()))
    assert int(actual[1].num_batches_tracked) == 4
    assert calls() >= 4
    if _dynamo_sees_eval(make(), x):
        actual.eval()
        agree(g(x), expected.eval()(x))


def _dynamo_sees_eval(module: torch.nn.Module, x: torch.Tensor) -> bool:
    """Whether a graph of ``train()`` is left after ``eval()``: on Python 3.13.0, torch 2.9 goes on with it for every backend."""
    g = torch.compile(module, backend="eager")
    g(x)
    module.eval()
    return torch.allclose(g(x), module(x), atol=1e-4)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("scale", torch.full((2,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.scale + self.count


def test_mutated_buffers(compiled: Compile) -> None:
    expected, actual = Counter(), Counter()
    g = compiled(actual)
    for _ in range(4):
        agree(g(torch.ones(2)), expected(torch.ones(2)))
    agree(actual.count, expected.count)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch 2.1's Dynamo itself does not see it")
def test_a_replaced_buffer_is_seen(compiled: Compile) -> None:
    module = Counter()
    g = compiled(module)
    for value in (3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        module.scale = torch.full((2,), value)
        module.count.zero_()
        agree(g(torch.ones(2)), torch.full((2,), value + 1))


def test_weights_changed_in_place_are_seen_and_end_as_inputs(compiled: Compile) -> None:
    net = torch.nn.Linear(4, 4)
    g = compiled(net)
    x = torch.randn(2, 4)
    for _ in range(8):
        net.weight.data.add_(0.5)
        agree(g(x), net(x))
    assert sum(network_compiles()) <= 6


def network_compiles() -> list[int]:
    import ov_backend

    return [network["compiles"] for network in ov_backend.stats().values()]


def test_integers_beyond_32_bits(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x * x, x > 2**40, x.cumsum(0), x.float().sin()

    small, large = torch.arange(5), torch.tensor([2**40, 2**33 + 5, -(2**35), 1, 2])
    g = compiled(f)
    for x in (small, large, small):
        agree(g(x), f(x))
    assert calls() == 3


def test_random_operators_draw_pytorchs_numbers(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x * 2, 0.5, training=True) + torch.rand_like(x)).exp()

    x = torch.randn(50)
    torch.manual_seed(7)
    expected = f(x)
    torch.manual_seed(7)
    agree(compiled(f)(x), expected)
    assert calls() == 1


def test_inputs_are_left_alone(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.relu() * 2

    x = torch.randn(9)
    before = x.clone()
    compiled(f)(x)
    assert torch.equal(x, before)


def test_inference_mode(compiled: Compile) -> None:
    net = torch.nn.Linear(4, 4)
    g = compiled(net)
    with torch.inference_mode():
        x = torch.randn(2, 4)
        agree(g(x), net(x))
    assert calls() == 1


@pytest.mark.parametrize("product", [torch.inner, torch.dot, lambda a, b: (a.view(1, -1) @ b.view(-1, 1)).view([])])
def test_a_product_of_vectors_is_a_scalar(compiled: Compile, product: Any) -> None:
    """On torch 2.1 the process ended where OpenVINO compiled the reshape of such a product."""
    a, b = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(compiled(product)(a, b), product(a, b))
