"""A graph with something that cannot be traced runs in parts: this runs as in eager, what lies between runs in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ov_backend
from tests.helpers.torch_compile import Compile, agree, fallbacks

CAN_DIFFERENTIATE = hasattr(torch.library, "custom_op")  # since torch 2.4
LIBRARY = torch.library.Library("parts", "DEF")
LIBRARY.define("twice_(Tensor(a!) x) -> Tensor(a!)")


def _add(x: torch.Tensor, v: float) -> None:
    x.add_(v)


if CAN_DIFFERENTIATE:
    torch.library.custom_op("parts::add_", _add, mutates_args=("x",)).register_fake(lambda x, v: None)
else:
    LIBRARY.define("add_(Tensor(a!) x, float v) -> ()")
    LIBRARY.impl("add_", _add, "CompositeExplicitAutograd")
LIBRARY.impl("twice_", lambda x: x.mul_(2), "CompositeExplicitAutograd")

BEFORE, AFTER = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
x = torch.randn(4, 4)


def whole() -> dict[str, Any]:
    """The statistics of the graph that is in parts."""
    (stats,) = (stats for name, stats in ov_backend.stats().items() if " part " not in name)
    return stats


def parts() -> list[int]:
    """The calls that each part has answered in OpenVINO."""
    return [stats["calls"] for name, stats in ov_backend.stats().items() if " part " in name]


def cond(x: torch.Tensor) -> torch.Tensor:
    x = BEFORE(x)
    return AFTER(torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)))


def cond_that_writes(x: torch.Tensor) -> torch.Tensor:
    def write(y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return y * 2

    y = BEFORE(x)
    return AFTER(torch.cond(y.sum() > -1e9, write, lambda y: y.cos(), (y,))) + y


def while_loop(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.tensor(0), BEFORE(x)
    return AFTER(while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 1.5), start)[1])


def flex(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    q = BEFORE(x).view(1, 1, 4, 4)
    return AFTER(flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + (i - j)))


def write(x: torch.Tensor) -> torch.Tensor:
    y = BEFORE(x)
    torch.ops.parts.add_(y, 1.0)
    return AFTER(y)


def write_to_a_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = BEFORE(x)
    view = y[1:3]
    torch.ops.parts.add_(view, 1.0)
    return AFTER(y), view


def write_to_an_input(x: torch.Tensor) -> torch.Tensor:
    y = BEFORE(x)
    torch.ops.parts.add_(x, 1.0)
    return AFTER(y) + x


def write_and_return(x: torch.Tensor) -> torch.Tensor:
    y = BEFORE(x)
    return AFTER(torch.ops.parts.twice_(y)) + y


def write_in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = BEFORE(x)
        torch.ops.parts.add_(x, 1.0)
    return AFTER(x)


def write_among_random_numbers(x: torch.Tensor) -> torch.Tensor:
    y = BEFORE(x) + torch.rand(4)
    torch.ops.parts.add_(y, 1.0)
    return AFTER(y) + torch.rand(4)


def under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = BEFORE(x)
        torch.ops.parts.add_(y, 1.0)
        y = AFTER(y)
        assert y.dtype is torch.bfloat16
    return BEFORE(y.float())


def assertion(x: torch.Tensor) -> torch.Tensor:
    y = BEFORE(x)
    torch._assert_async(y.isfinite().all())
    return AFTER(y)


SINCE = {"cond_that_writes": "2.8", "while_loop": "2.5", "flex": "2.5", "cond": "2.3"}
CASES: list[Callable[..., Any]] = [cond, cond_that_writes, while_loop, flex, write, write_to_a_view, write_to_an_input]
CASES += [write_and_return, write_in_a_loop, write_among_random_numbers, under_autocast, assertion]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_parts_run_in_openvino(case: Callable[..., Any], compiled: Compile) -> None:
    name = case.__name__
    if torch.__version__ < SINCE.get(name, ""):
        pytest.skip(f"since torch {SINCE[name]}")
    results = []
    for function in (case, compiled(case)):
        torch.manual_seed(0)
        given = x.clone()
        with torch.no_grad():
            results.append([function(given), function(given), given])
    agree(results[1], results[0], 1e-2 if case is under_autocast else 1e-5)
    assert len(parts()) >= 2
    assert set(parts()) == {2}
    assert whole()["calls"] == 2
    assert fallbacks() == {}
    assert not torch.is_autocast_enabled()


def test_the_statistics_say_what_stays_in_pytorch_and_why(compiled: Compile) -> None:
    with torch.no_grad():
        compiled(write_in_a_loop)(x)
    stats = whole()
    assert stats["in_pytorch"] == {"parts.add_": 3}
    reason = "in parts, because parts.add_.default is an operator of the program that writes to its arguments"
    assert stats["corrections"] == {reason: 1}


@pytest.mark.skipif(not CAN_DIFFERENTIATE, reason="since torch 2.4")
@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("case", [write_in_a_loop, under_autocast, write_among_random_numbers], ids=lambda case: case.__name__)
def test_gradients_cross_the_cuts(case: Callable[..., Any], aot: bool, compiled: Compile) -> None:
    results = []
    for function in (case, compiled(case, aot_autograd=aot)):
        torch.manual_seed(0)
        given = x.clone().requires_grad_()
        weights = [given, *BEFORE.parameters()]
        with torch.enable_grad():
            results.append(torch.autograd.grad(function(given).square().sum(), weights))
    agree(results[1], results[0], 3e-2 if case is under_autocast else 1e-5)
    assert set(parts()) == {1}


def test_an_assertion_raises_as_in_eager(compiled: Compile) -> None:
    function = compiled(assertion)
    with torch.no_grad():
        function(x)
        with pytest.raises(RuntimeError, match="nonzero"):
            function(x * float("nan"))


def test_a_part_has_a_graph_of_its_own_for_each_size(compiled: Compile) -> None:
    function = compiled(write, dynamic=True, dynamic_shapes=True)
    for rows in (2, 3, 5):
        with torch.no_grad():
            agree(function(x[:1].repeat(rows, 1)), write(x[:1].repeat(rows, 1)))
    assert not fallbacks()


def test_a_graph_without_anything_else_stays_in_pytorch(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.ops.parts.add_(x, 1.0)
        return x

    result = compiled(f, fallback="pytorch")(torch.zeros(2))
    assert torch.equal(result, torch.ones(2))
    assert list(fallbacks()) == ["parts.add_.default is an operator of the program that writes to its arguments"]


def test_what_only_calls_its_body_is_no_cut(compiled: Compile) -> None:
    with torch.no_grad():
        agree(compiled(lambda x: checkpoint(AFTER, BEFORE(x), use_reentrant=False))(x), AFTER(BEFORE(x)))
    assert parts() == []


@pytest.mark.skipif(not hasattr(torch.compiler, "nested_compile_region"), reason="since torch 2.8")
def test_a_region_that_is_compiled_once_is_no_cut(compiled: Compile) -> None:
    region = torch.compiler.nested_compile_region(lambda x: AFTER(x).sin())

    def f(x: torch.Tensor) -> torch.Tensor:
        return region(BEFORE(x)) + region(x)

    with torch.no_grad():
        agree(compiled(f)(x), AFTER(BEFORE(x)).sin() + AFTER(x).sin())
    assert parts() == []
    assert "invoke_subgraph" not in str([stats["in_pytorch"] for stats in ov_backend.stats().values()])


def test_a_transform_of_torch_func_is_not_cut(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = BEFORE(x)
        torch.ops.parts.add_(y, 1.0)
        return AFTER(torch.func.vmap(lambda row: row * row.sum())(y))

    with torch.no_grad():
        agree(compiled(f)(x), f(x))
    assert set(parts()) == {1}
    assert fallbacks() == {}
