"""Which operators stay in PyTorch, and the graph that is split accordingly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, Node

from ov_backend.core import fx_utils
from ov_backend.trace.partitioning.partitioner import (
    PREFIX,
    VIEW,
    Split,
    aliased_outputs,
    coverage,
    part_of,
    reason,
    run_after,
    split,
    unsupported,
)
from tests.helpers.graphs import SETTINGS, assert_close, flat, names, node_of, run_eagerly, run_openvino, traced

aten = torch.ops.aten


def reasons(function: Callable[..., Any], *inputs: Any, **settings: Any) -> dict[str, str]:
    gm = traced(function, *inputs)
    return {str(node.target): why for node, why in unsupported(gm, SETTINGS.replace(**settings)).items()}


def without(gm: GraphModule, *operators: str) -> dict[Node, str]:
    """These operators, as ones that stay in PyTorch."""
    return {node: "named by the test" for node in fx_utils.operators(gm) if str(node.target) in operators}


def split_at(gm: GraphModule, *operators: str, smallest: float = 1) -> Split:
    return split(gm, without(gm, *operators), smallest)


def submodules(result: Split) -> list[list[str]]:
    return [names(result.outer.get_submodule(part)) for part in result.parts]


def test_a_disabled_operator_that_pytorch_does_not_have_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    misspelt = ("aten.rellu", "aten.relu.Tensr", "aten.conv2", "aten.name", "aten.name.default", "aten.__doc__.x")
    for _ in range(2):
        disabled = ("aten.add", "aten.add.Tensor", "own.relu", *misspelt)
        assert reasons(lambda x: x.relu(), torch.randn(2), disabled_ops=disabled) == {}
    told = [record.getMessage().split(",")[0] for record in caplog.records]
    assert sorted(told) == sorted(f"disabled_ops holds {name}" for name in misspelt)


SUPPORTED: dict[str, tuple[Callable[[torch.Tensor], Any], dict[str, Any]]] = {
    "all": (lambda x: (x[None] @ x[:, None]).relu() + 1, {}),
    "float64 that may be truncated": (lambda x: x.double() + 1, {"truncate_long_and_double": True}),
}
REASONS: dict[str, tuple[Callable[[torch.Tensor], Any], dict[str, Any], str]] = {
    "disabled": (lambda x: x.relu() + 1, {"disabled_ops": ("aten.relu.default",)}, "disabled by the option disabled_ops"),
    "all overloads disabled": (lambda x: x.relu() + 1, {"disabled_ops": ("aten.relu",)}, "disabled by the option disabled_ops"),
    "float64": (lambda x: x.double() + 1, {}, "float64"),
    "complex": (lambda x: torch.fft.fft(x).real + 1, {}, "complex64"),
    "empty": (lambda x: x[:0] + 1, {}, "empty"),
    "rand": (lambda x: torch.rand_like(x) + x, {}, "random"),
    "bernoulli": (lambda x: torch.bernoulli(x.sigmoid()) + x, {}, "random"),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_everything_that_is_supported_has_no_reason(name: str) -> None:
    function, settings = SUPPORTED[name]
    assert reasons(function, torch.randn(4), **settings) == {}


@pytest.mark.parametrize("name", REASONS)
def test_what_is_not_has_a_reason(name: str) -> None:
    function, settings, text = REASONS[name]
    assert any(text in why for why in reasons(function, torch.randn(4), **settings).values())


def test_an_operator_of_another_library() -> None:
    gm = traced(lambda x: x + 1, torch.randn(2))
    node = node_of(gm, "aten.add")
    node.target = abs
    assert reason(node, SETTINGS) == "not an ATen operator"


@pytest.mark.parametrize("p,text", [(0.5, "draws random numbers"), (0.0, "")])
def test_dropout_draws_only_with_a_probability(p: float, text: str) -> None:
    gm = traced(lambda x: aten.native_dropout(x, p, True)[0], torch.randn(4))
    assert reason(node_of(gm, "aten.native_dropout"), SETTINGS).startswith(text)


def test_views_that_share_memory_with_another_result_or_an_input() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.exp()
        return x.view(-1), y, y.t(), x.tanh().view(-1)

    gm = traced(f, torch.randn(2, 3))
    aliased = aliased_outputs(gm)
    assert sorted(str(node.target) for node in aliased) == ["aten.t.default", "aten.view.default"]
    x_view = next(node for node in fx_utils.operators(gm) if str(node.target) == "aten.view.default")
    assert x_view in aliased, "the view of an input, not that of an intermediate result"
    assert set(unsupported(gm, SETTINGS).values()) == {VIEW}


def test_aliased_results_are_views_as_in_pytorch_after_the_split() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y, y.t()

    x = torch.randn(2, 3)
    gm = traced(f, x)
    outer = split(gm, unsupported(gm, SETTINGS)).outer
    y, transposed = run_eagerly(outer, x)
    y.zero_()
    assert not transposed.any()


def test_coverage_counts_and_explains() -> None:
    gm = traced(lambda x: x.logsumexp(-1) + x.logsumexp(0) + 1, torch.randn(3, 3))
    summary = coverage(gm, unsupported(gm, SETTINGS))
    assert summary.total == 4
    assert summary.in_pytorch == {"aten.logsumexp.default": 2}
    assert "infinity" in summary.reasons["aten.logsumexp.default"]
    assert summary.percent == 50
    assert coverage(traced(lambda x: x, torch.randn(2)), {}).percent == 100


def chain(x: torch.Tensor) -> torch.Tensor:
    """Operators on both sides of a tanh."""
    return ((x + 1).relu().tanh() * 2).sigmoid() - 3


def test_split_moves_supported_operators_into_submodules() -> None:
    x = torch.randn(4)
    result = split_at(traced(chain, x), "aten.tanh.default")
    assert sorted(submodules(result)) == [
        ["aten.add.Tensor", "aten.relu.default"],
        ["aten.mul.Tensor", "aten.sigmoid.default", "aten.sub.Tensor"],
    ]
    assert names(result.outer) == ["aten.tanh.default"]
    assert all(part.startswith(PREFIX) for part in result.parts)
    assert_close(run_eagerly(result.outer, x), [chain(x)])


@pytest.mark.parametrize(
    ("smallest", "moved", "too_small"),
    [(3, [["aten.mul.Tensor", "aten.sigmoid.default", "aten.sub.Tensor"]], 2), (math.inf, [], 5)],
)
def test_partitions_smaller_than_the_least_size_stay_in_pytorch(smallest: float, moved: list[list[str]], too_small: int) -> None:
    x = torch.randn(4)
    result = split_at(traced(chain, x), "aten.tanh.default", smallest=smallest)
    assert submodules(result) == moved
    assert len(result.too_small) == too_small
    assert_close(run_eagerly(result.outer, x), [chain(x)])


def test_constants_alone_are_no_partition() -> None:
    table = torch.randn(4)
    x = torch.randn(4)
    result = split_at(traced(lambda x: (x + table).tanh(), x), "aten.add.Tensor", "aten.tanh.default")
    assert result.parts == ()
    assert_close(run_eagerly(result.outer, x), [(x + table).tanh()])


def test_results_of_an_operator_in_pytorch_stay_with_it() -> None:
    x = torch.randn(4, 4)
    result = split_at(traced(lambda x: sum(flat(torch.topk(x + 1, 2))), x), "aten.topk.default")
    nodes = [node for part in result.parts for node in result.outer.get_submodule(part).graph.nodes]
    assert not any(fx_utils.is_getitem(node) for node in nodes)
    assert sum(fx_utils.is_getitem(node) for node in result.outer.graph.nodes) == 2
    assert_close(run_eagerly(result.outer, x), [sum(flat(torch.topk(x + 1, 2)))])


def draws(x: torch.Tensor) -> torch.Tensor:
    """Two draws that depend on inputs of different depth: a partitioner may run the second before the first."""
    first = torch.rand_like(((x + 1).relu() * 2).sigmoid())
    second = torch.rand_like(x)
    return first - second * 3


def test_random_operators_draw_in_the_order_of_the_graph() -> None:
    x = torch.randn(5)
    gm = traced(draws, x)
    order = [node.name for node in gm.graph.nodes if "rand" in str(node.target)]
    result = split(gm, unsupported(gm, SETTINGS))
    assert [node.name for node in result.outer.graph.nodes if "rand" in str(node.target)] == order
    torch.manual_seed(3)
    results = run_eagerly(result.outer, x)
    torch.manual_seed(3)
    assert_close(results, [draws(x)])


def test_nothing_of_the_order_of_draws_is_left_in_the_graph() -> None:
    gm = traced(draws, torch.randn(5))
    result = split(gm, unsupported(gm, SETTINGS))
    modules = [result.outer, *(result.outer.get_submodule(part) for part in result.parts)]
    assert not any(node.target is run_after for module in modules for node in module.graph.nodes)
    result.outer.graph.lint()


def calls(result: Split) -> list[Node]:
    return [node for node in result.outer.graph.nodes if node.op == "call_module"]


def test_a_part_has_its_weights_first_and_runs_in_openvino() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) @ weight * y

    tensors = [torch.randn(3, 3) for _ in range(3)]
    gm = traced(f, *tensors)
    result = split_at(gm)
    x, weight, y = fx_utils.placeholders(result.outer)
    part = part_of(result.outer, calls(result)[0], {weight: "the weight"})
    assert part.slots == ("the weight",)
    assert len(part.inputs) == 2
    placeholders = fx_utils.placeholders(part.gm)
    assert [node.name for node in placeholders[1:]] == list(part.inputs)
    assert all(isinstance(node.meta["val"], torch.Tensor) for node in placeholders)
    assert [node.name for node in calls(result)[0].args if node is not weight] == [x.name, y.name]
    assert_close(run_openvino(part.gm, tensors[1], tensors[0], tensors[2]), [f(*tensors)])


def test_a_part_without_weights_and_with_several_results() -> None:
    x = torch.randn(4)
    result = split_at(traced(lambda x: ((x + 1).tanh(), (x * 2).tanh()), x), "aten.tanh.default")
    part = part_of(result.outer, calls(result)[0], {})
    assert part.slots == ()
    assert_close(run_openvino(part.gm, x), run_eagerly(part.gm, x))
