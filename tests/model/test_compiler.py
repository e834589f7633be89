"""The compile of one graph: what is refused is decomposed or stays in PyTorch, and the store is asked before."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ov_backend.core import fx_utils
from ov_backend.core.errors import ConversionError, NothingToCompute
from ov_backend.guards.pytree import flatten
from ov_backend.model.compiler import Compilation, Compiler
from ov_backend.model.conversion.converter import UnsupportedNodes
from ov_backend.store.store import GraphStore
from ov_backend.trace.capture.trace import Captured
from tests.helpers.graphs import SETTINGS, assert_close, flat, input_names, names, traced

aten = torch.ops.aten
X = torch.randn(3, 3) + 3 * torch.eye(3)
#: OpenVINO has no conversion for it, PyTorch has a decomposition.
DECOMPOSABLE = "aten.softshrink.default"
#: OpenVINO has no conversion for it, in no way, and PyTorch has no decomposition.
UNDECOMPOSABLE = "aten.linalg_inv_ex.default"


def decomposable(x: torch.Tensor) -> torch.Tensor:
    return F.softshrink(x) + x.exp()


def undecomposable(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv_ex(x.tanh() + x)[0] * 2 + 1


def captured(function: Callable[..., Any], *inputs: torch.Tensor) -> Captured:
    gm = traced(lambda *inputs: flat(function(*inputs)), *inputs)
    return Captured(gm, (), tuple(input_names(gm)), flatten(flat(function(*inputs)))[1])


def compiled(
    function: Callable[..., Any], *inputs: torch.Tensor, store: GraphStore | None = None, **settings: Any
) -> Compilation:
    """Compile a function; its results are those of PyTorch."""
    changed = SETTINGS.replace(**settings)
    compilation = Compiler(captured(function, *inputs), changed, store).compile()
    results = compilation.program.compile({}, changed)(list(inputs))
    assert_close(results, flat(function(*inputs)))
    return compilation


def test_a_graph_that_converts_is_one_model() -> None:
    program = compiled(lambda x: (x @ x).relu() + 1, X).program
    assert program.outer is None
    assert list(program.models) == [""]
    assert program.coverage.percent == 100


def test_a_refused_operator_is_decomposed() -> None:
    compilation = compiled(decomposable, X)
    assert DECOMPOSABLE in names(captured(decomposable, X).gm)
    assert DECOMPOSABLE not in names(compilation.gm)
    assert compilation.program.outer is None
    assert not compilation.program.coverage.in_pytorch


def test_what_a_decomposition_consists_of_is_decomposed_too() -> None:
    """addmv consists of mv, which is refused as well."""
    compilation = compiled(lambda x: torch.addmv(x[0].exp(), x, x[1]), X)
    assert not {"aten.addmv.default", "aten.mv.default"} & set(names(compilation.gm))
    assert not compilation.program.coverage.in_pytorch


def test_a_refused_operator_without_a_decomposition_stays_in_pytorch() -> None:
    program = compiled(undecomposable, X).program
    assert program.outer is not None
    assert names(program.outer) == [UNDECOMPOSABLE]
    assert len(program.models) == 2
    assert program.coverage.in_pytorch == {UNDECOMPOSABLE: 1}
    assert program.coverage.reasons == {UNDECOMPOSABLE: "OpenVINO has no conversion for it"}


def test_both_in_one_graph() -> None:
    compilation = compiled(lambda x: undecomposable(x) + decomposable(x), X)
    assert DECOMPOSABLE not in names(compilation.gm)
    assert compilation.program.coverage.in_pytorch == {UNDECOMPOSABLE: 1}


def test_an_operator_without_a_direct_conversion_goes_through_torchscript() -> None:
    i = torch.randint(0, 4, (5, 6))

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 6).scatter_reduce(0, i, x, "amax") * 2

    x = torch.randn(5, 6)
    compilation = compiled(f, x)
    assert "aten.scatter_reduce.two" in names(compilation.gm)
    assert compilation.program.outer is None


def test_everything_through_torchscript(caplog: pytest.LogCaptureFixture) -> None:
    assert compiled(lambda x: torch.softmax(x @ x, -1).relu(), X, converter="ts").program.outer is None
    assert "converted directly instead" not in caplog.text


def test_what_torchscript_cannot_convert_is_converted_directly(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        program = compiled(undecomposable, X, converter="ts").program
    assert "converted directly instead" in caplog.text
    assert program.coverage.in_pytorch == {UNDECOMPOSABLE: 1}


def test_operators_of_the_users_choice_are_decomposed_first() -> None:
    compilation = compiled(lambda x: torch.nn.functional.silu(x) + 1, X, decompositions=("aten.silu.default",))
    assert "aten.sigmoid.default" in names(compilation.gm)


@pytest.mark.parametrize(
    "function,settings,message",
    [
        (lambda x: x, {}, "smaller than min_block_size"),
        (lambda x: (x.t(), x[0]), {}, "only returns views"),
        (lambda x: x.exp() + 1, {"min_block_size": 3}, r"smaller than min_block_size \(3\)"),
        (lambda x: x.exp() + 1, {"min_block_size": math.inf}, "smaller than min_block_size"),
        (lambda x: (x.exp() + 1, x.t()), {"min_block_size": 3}, "only returns views"),
    ],
    ids=["an input", "views", "a small graph", "a dry run", "a small block beside a view"],
)
def test_nothing_to_compute(function: Callable[..., Any], settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises(NothingToCompute, match=message):
        compiled(function, X, **settings)


def test_small_blocks_stay_in_pytorch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv_ex(x + 1)[0].exp().tanh().sigmoid() * 2

    program = compiled(f, X, min_block_size=3).program
    assert len(program.models) == 1
    assert program.coverage.in_pytorch == {"aten.add.Tensor": 1, UNDECOMPOSABLE: 1}
    assert program.coverage.reasons["aten.add.Tensor"] == "in a block of fewer than 3 operators"


def test_a_graph_of_which_nothing_converts_is_an_error_that_lists_the_reasons() -> None:
    with pytest.raises(ConversionError, match=r"none of its operators.*aten\.linalg_inv_ex\.default \(OpenVINO has no conv"):
        compiled(lambda x: torch.linalg.inv_ex(x)[0], X)


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    return GraphStore(tmp_path / "graphs")


def entries(store: GraphStore) -> dict[str, int]:
    """The files of the store and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in sorted(store.folder.iterdir()) if path.is_file()}


def test_a_second_compile_takes_the_graph_from_the_store(store: GraphStore) -> None:
    compiled(lambda x: (x @ x).relu() + 1, X, store=store)
    before = entries(store)
    assert len(before) == 1
    compiled(lambda y: (y @ y).relu() + 1, X + 1, store=store)
    assert entries(store).keys() == before.keys()


def test_a_graph_stored_after_refusals_is_found_by_its_first_text(store: GraphStore) -> None:
    """The second compile knows nothing of the refusals: it asks with the text of the graph before them."""
    first = compiled(decomposable, X, store=store)
    assert len(entries(store)) == 1
    second = compiled(decomposable, X, store=store)
    assert DECOMPOSABLE not in names(first.gm)
    assert DECOMPOSABLE in names(second.gm), "the stored graph was found before any decomposition"
    assert second.program.outer is None


def test_the_parts_of_a_split_graph_are_stored_one_by_one(store: GraphStore) -> None:
    compiled(undecomposable, X, store=store)
    before = entries(store)
    assert len(before) == 2
    compiled(undecomposable, X, store=store)
    assert entries(store).keys() == before.keys()
    compiled(lambda x: torch.linalg.inv_ex(x.tanh() + x)[0] * 3, X, store=store)
    assert len(entries(store)) == 3, "the first part is the same, the second is another"


def test_a_damaged_entry_is_removed_and_replaced(store: GraphStore, caplog: pytest.LogCaptureFixture) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    graph = captured(f, X)
    key = Compiler(graph, SETTINGS).key
    store.put(key, {"model.xml": b"<net/>", "model.bin": b"", "graph.json": b"{}"})
    with caplog.at_level(logging.WARNING):
        compiled(f, X, store=store)
    assert caplog.text.count("Ignoring the stored graph") == 1
    caplog.clear()
    compiled(f, X, store=store)
    assert "Ignoring" not in caplog.text


def key_of(function: Callable[..., Any], x: torch.Tensor, **settings: Any) -> str:
    graph, changed = captured(function, x), SETTINGS.replace(**settings)
    return Compiler(graph, changed).key


def test_what_the_key_of_a_text_depends_on() -> None:
    key = key_of(lambda x: x.exp() + 1, X)
    assert key == key_of(lambda y: y.exp() + 1, X * 2)
    others = [
        key_of(lambda x: x.exp() + 2, X),
        key_of(lambda x: x.exp() + 1, X[:2]),
        key_of(lambda x: x.exp() + 1, X, disabled_ops=("aten.relu",)),
        key_of(lambda x: x.exp() + 1, X, converter="ts"),
    ]
    assert len({key, *others}) == 5


def test_a_setting_of_the_device_does_not_change_the_key() -> None:
    assert key_of(lambda x: x.exp(), X) == key_of(lambda x: x.exp(), X, precision="bf16", fallback="pytorch")


def symbolic(function: Callable[..., Any], x: torch.Tensor, tables: list[Mapping[Any, Any]]) -> Captured:
    """A graph with symbolic sizes; the decompositions of every retrace are noted."""

    def retrace(table: Mapping[Any, Any]) -> GraphModule:
        tables.append(table)
        with torch.no_grad():
            return make_fx(function, decomposition_table=dict(table), tracing_mode="symbolic")(x)

    gm = retrace({})
    tables.clear()
    return Captured(gm, (), tuple(f"x{i}" for i in range(len(fx_utils.placeholders(gm)))), {}, retrace=retrace)


def test_a_graph_with_symbolic_sizes_is_retraced_for_a_refused_operator() -> None:
    tables: list[Mapping[Any, Any]] = []
    graph = symbolic(lambda x: [F.threshold(x, 0.5, 2.0) + 1], torch.randn(4, 5), tables)
    compilation = Compiler(graph, SETTINGS).compile()
    (table,) = tables
    assert aten.threshold.default in table
    assert compilation.program.outer is None
    run = compilation.program.compile({}, SETTINGS)
    for shape in ((4, 5), (7, 3)):
        x = torch.randn(shape)
        assert_close(run([x]), [F.threshold(x, 0.5, 2.0) + 1])


def test_a_graph_with_symbolic_sizes_is_not_split() -> None:
    graph = symbolic(lambda x: [torch.linalg.inv_ex(x @ x.t() + 1)[0] * 2], torch.randn(4, 5), [])
    with pytest.raises(UnsupportedNodes, match=r"aten\.linalg_inv_ex\.default"):
        Compiler(graph, SETTINGS).compile()
