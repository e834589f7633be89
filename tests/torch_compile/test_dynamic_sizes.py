"""Which sizes a graph with dynamic dimensions answers by default, and what Python computes of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ov_backend
from tests.helpers.alone import alone
from tests.helpers.torch_compile import Compile, agree, calls, corrections, fallbacks, total

needs_python_numbers = pytest.mark.skipif(
    torch.__version__ < "2.4", reason="powers of sizes are decimal numbers in earlier versions, and get static graphs"
)


def compiles() -> int:
    return total("compiles")


def check(function: Callable[..., Any], rows: range, g: Callable[..., Any]) -> None:
    for n in rows:
        x = torch.randn(n, 6)
        agree(g(x), function(x))


# -- which sizes -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [None, True])
def test_by_default_the_third_size_of_a_function_is_answered_by_a_graph_for_all(compiled: Compile, dynamic: bool | None) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU()).eval()
    g = compiled(net, dynamic=dynamic)
    for number, n in enumerate((4, 5, 6, 7, 40, 11)):
        check(net, range(n, n + 1), g)
        assert compiles() == min(number + 1, 3)
    assert not fallbacks()
    assert not corrections()


def test_sizes_that_come_back_keep_their_static_graphs(compiled: Compile) -> None:
    net = torch.nn.Linear(6, 8)
    g = compiled(net, dynamic=True)
    for n in (4, 5, 6, 4, 5, 4):
        check(net, range(n, n + 1), g)
    answered = {name.rpartition(" ")[2]: each["calls"] for name, each in ov_backend.stats().items()}
    assert answered["dynamic"] == 1
    assert (compiles(), calls()) == (3, 6)


@pytest.mark.parametrize("option, expected", [(True, 1), (False, 5)])
def test_the_option_says_at_once_or_never(compiled: Compile, option: bool, expected: int) -> None:
    net = torch.nn.Linear(6, 8)
    check(net, range(4, 9), compiled(net, dynamic=True, dynamic_shapes=option))
    assert compiles() == expected
    assert not corrections()


def test_a_size_whose_calls_take_long_gets_a_static_graph(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ov_backend.torch_compile.dynamic_shapes._PAYS", 0)
    net = torch.nn.Linear(6, 8)
    g = compiled(net, dynamic=True)
    for n in (4, 5, 6, 6, 6):
        check(net, range(n, n + 1), g)
    assert (compiles(), calls()) == (4, 5)


def test_what_cannot_be_dynamic_says_so_from_the_third_size_on(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x @ x.t() + torch.eye(x.shape[0])) @ x

    g = compiled(f, dynamic=True)
    check(f, range(3, 5), g)
    assert not corrections()
    check(f, range(5, 8), g)
    ((what, count),) = corrections().items()
    assert "linalg" in what
    assert count == 3


def test_a_size_that_is_refused_leaves_the_graph_to_the_others(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[3:].mean(0)  # of nothing, for three rows, which OpenVINO does not compute

    g = compiled(f, dynamic=True, dynamic_shapes=True, fallback="pytorch")
    check(f, range(6, 8), g)
    check(f, range(3, 4), g)
    before = compiles()
    check(f, range(8, 14), g)
    assert compiles() == before
    assert sum(corrections().values()) == 1


def test_a_growing_cache_compiles_three_graphs(compiled: Compile) -> None:
    """As a language model writes: the keys and values of all words before are inputs, and grow."""

    def step(word: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        keys, values = torch.cat([keys, word], 2), torch.cat([values, word], 2)
        return F.scaled_dot_product_attention(word, keys, values), keys, values

    g = compiled(step, dynamic=None)
    keys = values = torch.randn(1, 2, 7, 4)
    for _ in range(9):
        word = torch.randn(1, 2, 1, 4)
        expected = step(word, keys, values)
        agree(g(word, keys, values), expected)
        _, keys, values = expected
    assert (compiles(), calls()) == (3, 9), corrections()


class Attention(torch.nn.Module):
    """With rotary angles, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(99, 32)
        self.q, self.k, self.v, self.out = (torch.nn.Linear(32, 32, bias=False) for _ in range(4))
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1, 0.01, 0.001]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length, x = ids.shape[1], self.words(ids)
        places = torch.arange(length)[None, None].float()
        angles = (self.frequencies[None, :, None].expand(1, -1, 1) @ places).transpose(1, 2).repeat(1, 1, 2)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        q, k, v = (layer(x).view(1, length, -1, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(1, length, -1))


def call_again(length: int) -> float:
    """The largest error of 20 calls of one size."""
    torch.manual_seed(0)
    net, ids = Attention().eval(), torch.randint(0, 99, (1, length))
    options = {"precision": "f32", "dynamic_shapes": True, "fallback": "raise", "model_caching": False}
    with torch.no_grad():
        g = torch.compile(net, backend="openvino_fx", dynamic=True, options=options)
        return max(float((g(ids) - net(ids)).abs().max()) for _ in range(20))


def test_memory_is_not_given_back_between_calls_of_one_size() -> None:
    """OpenVINO would write to it; the process then ends, so this is another process."""
    assert alone(call_again, 32) < 1e-4


# -- what is computed of sizes ---------------------------------------------------------------------------------------------------


def branch(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 6 else x - 1


NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "power": lambda x: x * 2 ** x.shape[0],
    "square": lambda x: x * x.shape[0] ** 2,
    "root": lambda x: x / math.sqrt(x.shape[0]),
    "remainder": lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 8)),
    "quotient": lambda x: x[: x.shape[0] // 2] + x.shape[0] // 3,
    "negative quotient": lambda x: x * (-x.shape[0] // 2),
    "rounded up": lambda x: x[: math.ceil(x.shape[0] / 3)] * 2,
    "cut off": lambda x: x[: int(x.shape[0] * 0.7)] * 2,
    "rounded": lambda x: x + round(x.shape[0] / 3),
    "least": lambda x: x[: min(x.shape[0], 5)] * max(x.shape[0] - 7, 2),
    "logarithm": lambda x: x * 2 ** math.ceil(math.log2(x.shape[0])),
    "bits": lambda x: x * (x.shape[0] & 3) + (x.shape[0] >> 1),
    "compared with positions": lambda x: x.masked_fill(torch.arange(x.shape[0])[:, None] > x.shape[0] // 2, 0.0),
    "filled": lambda x: torch.full((x.shape[0],), x.shape[0]),
    "results": lambda x: (x + 1, 2 ** x.shape[0], x.shape[0] > 5, x.shape[0] // 2, -x.shape[0] % 4, math.ceil(x.shape[0] / 3)),
    "branch": branch,
    "instance norm": lambda x: F.instance_norm(x[None]),
}


@needs_python_numbers
@pytest.mark.parametrize("name", list(NUMBERS))
def test_numbers_are_computed_as_python_computes_them(compiled: Compile, name: str) -> None:
    function = NUMBERS[name]
    g = compiled(function, dynamic=True, dynamic_shapes=True)
    check(function, range(4, 13), g)
    assert compiles() <= 4
    assert calls() == 9
    assert not fallbacks()
    assert not corrections()


def test_whole_numbers_among_the_arguments(compiled: Compile) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[:, : n % 5 + 1] * n + n // 2

    g = compiled(f, dynamic=None)
    for n in (5, 6, 7, 8, 23, 101):
        x = torch.randn(3, 9)
        agree(g(x, n), f(x, n))
    assert compiles() == 3
    for n in (2, 1, 0, -4):
        x = torch.randn(3, 9)
        agree(g(x, n), f(x, n))


def test_a_number_that_is_returned_may_be_computed_from_one_that_is_no_size(compiled: Compile) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y, total = x * 2, x.shape[0] + n
        torch._dynamo.graph_break()
        return y * total

    g = compiled(f, dynamic=True, dynamic_shapes=True)
    for n in (5, 9, 0, 1, 0):
        x = torch.randn(3 + n, 9)
        agree(g(x, n), f(x, n))
    assert not corrections()
    assert not fallbacks()


_net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU()).eval()
FLOATS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "arithmetic": lambda x, t: (_net(x) * t, t - x, x / t, t**2 - x * (t / 3)),
    "powers": lambda x, t: (_net(x).abs() ** t, t**x),
    "integers": lambda x, t: (_net(x), (x > 0).int() * t),
    "parameters": lambda x, t: (F.leaky_relu(_net(x), t), x.clamp(-t, t), torch.lerp(x, x * x, t), torch.add(x, x, alpha=t)),
    "tensors": lambda x, t: _net(x) * torch.tensor(t) + torch.full((8,), t),
    "comparisons": lambda x, t: torch.where(x > t, x, t),
    "decisions": lambda x, t: _net(x) * t if t > 100 else _net(x) + t,
    "roots of what may be negative": lambda x, t: _net(x) * (9 - t) ** 0.5,
    "angles": lambda x, t: (x * math.cos(t), _net(x) * math.sin(t)),
    "whole parts": lambda x, t: _net(x) * int(t * 10),
}


@needs_python_numbers
@pytest.mark.parametrize("name", list(FLOATS))
def test_a_float_that_changes_needs_no_graph_of_its_own(compiled: Compile, name: str) -> None:
    function = FLOATS[name]
    g = compiled(function, dynamic=None)
    values = [0.3 + 0.17 * i for i in range(7)]
    for t in values:
        x = torch.randn(4, 6)
        agree(g(x, t), function(x, t))
    assert compiles() <= 3
    assert calls() == len(values)
    assert not fallbacks()


@needs_python_numbers
def test_floats_among_the_results_are_floats(compiled: Compile) -> None:
    def step(x: torch.Tensor, t: float) -> tuple[torch.Tensor, float, dict[str, float]]:
        return _net(x) * t, t + 0.25, {"half": t / 2}

    g = compiled(step, dynamic=None)
    t = 0.5
    for _ in range(6):
        x = torch.randn(4, 6)
        (y, *floats), (expected, *others) = g(x, t), step(x, t)
        agree(y, expected)
        assert floats == others
        t = floats[0]
    assert (compiles(), calls()) == (3, 6)


@needs_python_numbers
def test_a_float_keeps_its_sign_and_what_is_no_number(compiled: Compile) -> None:
    def f(x: torch.Tensor, t: float) -> torch.Tensor:
        return x.abs() / (t * torch.ones(6))

    g = compiled(f, dynamic=None)
    for t in (0.5, 0.25, 0.75, 0.0, -0.0, 0.0, math.inf, -math.inf, math.nan, 1e-30):
        x = torch.randn(4, 6)
        torch.testing.assert_close(g(x, t), f(x, t), equal_nan=True)


def test_a_failure_of_the_symbolic_trace_leads_to_static_graphs(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("no such number")

    monkeypatch.setattr("ov_backend.trace.partitioning.dynamic_shapes.check", fail)
    net = torch.nn.Linear(6, 8)
    check(net, range(4, 8), compiled(net, dynamic=True, dynamic_shapes=True))
    ((what, count),) = corrections().items()
    assert "ZeroDivisionError: no such number" in what
    assert (count, calls()) == (4, 4)


def test_the_errors_of_the_program_are_its_own(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 7:
            raise ValueError("seven")
        return x + 1

    g = compiled(f, dynamic=None)
    check(f, range(3, 6), g)
    with pytest.raises(ValueError, match="seven"):
        g(torch.ones(7, 6))


# -- what nobody reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"dynamic_shapes": True}, {"dynamic_shapes": False}], ids=str)
def test_numbers_that_nobody_reads_are_drawn(compiled: Compile, options: dict[str, Any]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        return x * 2

    g = compiled(f, dynamic=True, **options)
    for n in range(3, 7):
        torch.manual_seed(0)
        g(torch.ones(n, 6))
        drawn = torch.rand(1)
        torch.manual_seed(0)
        torch.rand(3)
        assert torch.equal(drawn, torch.rand(1))


def test_an_assertion_that_nobody_reads_raises(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all())
        return x * 2

    g = compiled(f, dynamic=True, dynamic_shapes=True, fallback="pytorch")
    for n in range(3, 6):
        agree(g(torch.ones(n, 6)), torch.full((n, 6), 2.0))
    with pytest.raises(RuntimeError):
        g(-torch.ones(4, 6))
