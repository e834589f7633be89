"""What a graph returns: nested results, one tensor twice, inputs, copies and views of them."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.torch_compile import Compile, agree

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8]


def test_none_and_nested_results(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> dict[str, object]:
        return {"a": (x + 1, None), "b": [x * 2, {"c": x.sum(), "d": 3}], "e": None}

    x = torch.randn(3)
    agree(compiled(f)(x), f(x))


def test_one_tensor_returned_twice(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, x * 2, y

    a, _, b = compiled(f)(torch.randn(3))
    assert a is b


def test_a_result_that_is_an_input(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x * y, y

    x, y = torch.randn(3), torch.randn(3)
    a, b, c = compiled(f)(x, y)
    assert a is x
    assert c is y
    agree(b, x * y)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
def test_a_result_that_is_a_copy_of_an_input(compiled: Compile, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.clone(), x | y if dtype is torch.bool else x + y, y.contiguous().clone()

    g = compiled(f)
    for _ in range(2):
        x, y = (torch.randint(0, 9, (3, 5)).to(dtype) for _ in range(2))
        before = x.clone()
        result = g(x, y)
        agree(result, f(x, y))
        result[0].zero_()
        assert torch.equal(x, before)


def test_a_result_that_is_a_view_of_an_input(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[1:].t(), x * 2

    x = torch.randn(4, 3)
    view, _ = compiled(f)(x)
    view.zero_()
    assert float(x[1:].abs().sum()) == 0.0


def test_a_view_of_a_weight_asks_for_gradients_as_in_pytorch(compiled: Compile) -> None:
    layer = torch.nn.Linear(4, 4)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return layer.weight.t(), layer(x)

    x = torch.ones(3, 4)
    with torch.no_grad():
        expected, actual = f(x), compiled(f, fallback="pytorch")(x)
    agree(actual, expected)
    assert [each.requires_grad for each in actual] == [each.requires_grad for each in expected]


def test_results_that_are_views_of_each_other(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + 1
        return y, y[0]

    y, row = compiled(f)(torch.randn(4, 3))
    row.fill_(9)
    assert bool((y[0] == 9).all())


def test_results_are_told_by_name_not_by_place(compiled: Compile) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return c.exp(), a - b, b - a, (a - b) * 2 + c.exp(), a

    inputs = [torch.randn(3) for _ in range(3)]
    agree(compiled(f)(*inputs), f(*inputs))


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch 2.1's Dynamo makes no graph of most of them")
@pytest.mark.parametrize("derivative", ["grad", "vjp", "jacrev", "hessian"])
@pytest.mark.parametrize("trained", [True, False])
def test_derivatives_that_a_function_takes_of_itself(compiled: Compile, derivative: str, trained: bool) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).requires_grad_(trained)

    def f(x: torch.Tensor) -> torch.Tensor:
        if derivative == "vjp":
            return torch.func.vjp(net, x)[1](torch.ones(2))[0]
        return getattr(torch.func, derivative)(lambda y: net(y).sum())(x)  # type: ignore[no-any-return]

    x = torch.randn(3)
    with torch.enable_grad():
        agree(compiled(f)(x), f(x))


def test_an_input_that_is_only_marked_as_negative(compiled: Compile) -> None:
    for x in (torch.complex(torch.ones(1), 2 * torch.ones(1)).conj().imag, torch._neg_view(torch.arange(3.0))):
        assert x.is_neg()
        agree(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)
        agree(compiled(lambda y, x=x: x * y)(torch.full((1,), 3.0)), x * 3)
