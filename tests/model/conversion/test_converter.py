"""A graph becomes a weightless model, or the operators that have no conversion are named."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

from ov_backend.core.errors import ConversionError, NothingToCompute
from ov_backend.core.fx_utils import graph_module
from ov_backend.core.tensors import TensorSpec
from ov_backend.model.conversion.converter import UnsupportedNodes, WeightlessModel, convert, parameter_name
from ov_backend.model.conversion.frontend import _IndexedNodes, fx_decoder, pytorch_frontend, summary
from ov_backend.model.conversion.refusals import refused_in_graph, refused_one_by_one
from ov_backend.model.runtime.compiled_graph import bind_and_compile
from tests.helpers.graphs import SETTINGS, assert_close, flat, input_names, node_of, run_openvino, traced

aten = torch.ops.aten


def converted(gm: GraphModule, through_torchscript: bool = False) -> WeightlessModel:
    return convert(gm, [], input_names(gm), through_torchscript=through_torchscript)


WAYS = pytest.mark.parametrize("through_torchscript", [False, True], ids=["directly", "through TorchScript"])


@WAYS
def test_weights_are_parameters_and_bound_by_name(through_torchscript: bool) -> None:
    def f(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias).relu()

    weight, bias, x = torch.randn(4, 3), torch.randn(4), torch.randn(2, 3)
    gm = traced(f, weight, bias, x)
    graph = convert(gm, ["w", "b"], ["x"], {"anything": 1}, through_torchscript)
    assert sorted(map(parameter_name, graph.model.get_parameters())) == ["input_0", "slot_0", "slot_1"]
    assert graph.slots == (TensorSpec("w", (4, 3), "float32"), TensorSpec("b", (4,), "float32"))
    assert graph.inputs == (TensorSpec("x", (2, 3), "float32"),)
    assert graph.outputs == (TensorSpec("output_0", (2, 4), "float32"),)
    assert graph.extra == {"anything": 1}
    for scale in (1, 2):  # one model serves any weights
        weights = {"w": weight * scale, "b": bias * scale}
        assert_close(bind_and_compile(graph, weights, SETTINGS)([x]), [f(weights["w"], weights["b"], x)])


@WAYS
def test_results_keep_their_order(through_torchscript: bool) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return c.exp(), a - b, b - a, (a - b) * 2 + c.exp()

    inputs = [torch.randn(3) for _ in range(3)]
    graph = converted(traced(f, *inputs), through_torchscript)
    assert_close(bind_and_compile(graph, {}, SETTINGS)(inputs), list(f(*inputs)))


def test_a_result_returned_twice_is_computed_once() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, x * 2, y

    graph = converted(traced(f, torch.randn(3)))
    assert len(graph.outputs) == len(graph.model.get_results()) == 2
    assert graph.returns == (("output", 0), ("output", 1), ("output", 0))


def test_returned_inputs_and_weights_are_not_computed() -> None:
    def f(weight: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x + weight, weight

    weight, x = torch.randn(3), torch.randn(3)
    graph = convert(traced(f, weight, x), ["w"], ["x"])
    assert graph.returns == (("input", 0), ("output", 0), ("slot", 0))
    first, second, _ = bind_and_compile(graph, {"w": weight}, SETTINGS)([x])
    assert first is x
    assert_close([second], [x + weight])


def test_a_graph_that_only_returns_its_inputs_computes_nothing() -> None:
    with pytest.raises(NothingToCompute):
        converted(traced(lambda x, y: (y, x), torch.randn(2), torch.randn(2)))


def test_an_input_that_is_not_read_is_accepted() -> None:
    x, y = torch.randn(2), torch.randn(3)
    assert_close(run_openvino(traced(lambda x, y: y.tanh(), x, y), x, y), [y.tanh()])


def test_every_placeholder_needs_a_name() -> None:
    gm = traced(lambda x, y: x + y, torch.randn(2), torch.randn(2))
    with pytest.raises(ConversionError, match="takes 2 values; 0 weights and 1 inputs have names"):
        convert(gm, [], ["x"])


def test_an_alias_of_an_input_is_copied() -> None:
    """A result that is a parameter has a conversion between them, be it to the same dtype: see _cast_outputs."""
    gm = traced(lambda x: aten.alias(x), torch.randn(2))
    graph = converted(gm)
    (result,) = graph.model.get_results()
    assert result.input(0).get_source_output().get_node().get_type_name() == "Convert"
    compiled = bind_and_compile(graph, {}, SETTINGS)
    for x in (torch.randn(2), torch.randn(2)):
        assert_close(compiled([x]), [x])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool], ids=str)
def test_inputs_and_results_keep_their_dtypes(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0, 3]]).to(dtype)
    gm = traced(lambda x: (torch.cat([x, x]), x == x), x)
    assert_close(run_openvino(gm, x), [torch.cat([x, x]), x == x])


def test_positions_are_int64_as_in_pytorch() -> None:
    x = torch.randn(3, 4)
    gm = traced(lambda x: (*torch.topk(x, 2), x.argmax(1)), x)
    assert [spec.dtype for spec in converted(gm).outputs] == ["float32", "int64", "int64"]
    assert_close(run_openvino(gm, x), [*torch.topk(x, 2), x.argmax(1)])


def test_refused_operators_are_named_by_the_nodes_of_the_graph() -> None:
    gm = traced(lambda x: torch.linalg.inv_ex(x + 1)[0] * 2, torch.eye(3))
    with pytest.raises(UnsupportedNodes, match=r"aten\.linalg_inv_ex\.default") as raised:
        converted(gm)
    assert raised.value.nodes == {node_of(gm, "aten.linalg_inv_ex").name: "aten.linalg_inv_ex.default"}


def test_an_operator_converted_to_another_shape_is_refused() -> None:
    """OpenVINO's kthvalue keeps the dimension, without a word."""
    gm = traced(lambda x: x.kthvalue(2)[0] + 1, torch.randn(3, 4))
    with pytest.raises(UnsupportedNodes) as raised:
        converted(gm)
    assert raised.value.nodes == {node_of(gm, "aten.kthvalue").name: "aten.kthvalue.default"}


def test_sizes_that_are_symbolic_stay_open() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) @ x.transpose(0, 1)

    graph = converted(traced(f, torch.randn(3, 5), symbolic=True))
    assert graph.inputs[0].shape == (-1, -1)
    assert graph.outputs[0].shape == (-1, -1)
    compiled = bind_and_compile(graph, {}, SETTINGS)
    for shape in ((3, 5), (7, 2)):
        x = torch.randn(shape)
        assert_close(compiled([x]), flat(f(x)))


@WAYS
def test_results_that_are_clones_of_one_another(through_torchscript: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, y.clone(), y.clone().clone(), y.cos().clone(), x.clone()

    x = torch.randn(2, 3)
    gm = traced(f, x)
    results = bind_and_compile(converted(gm, through_torchscript), {}, SETTINGS)([x])
    assert_close(results, list(f(x)))
    assert len({result.data_ptr() for result in [*results, x]}) == 6


@WAYS
@pytest.mark.parametrize("places", [(0, 1), (1, 2), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_several_indices_count_from_the_end(through_torchscript: bool, places: tuple[int, ...], dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
        return aten.index.Tensor(x, [indices[places.index(dim)] if dim in places else None for dim in range(max(places) + 1)])

    x = torch.arange(24.0).view(2, 3, 4)
    indices = [torch.tensor([[0, -1], [-size, size - 1]], dtype=dtype) for size in (x.shape[dim] for dim in places)]
    gm = traced(f, x, *indices)
    before = [node.name for node in gm.graph.nodes]
    assert_close(bind_and_compile(converted(gm, through_torchscript), {}, SETTINGS)([x, *indices]), [f(x, *indices)])
    assert [node.name for node in gm.graph.nodes] == before


def test_indices_that_are_constants() -> None:
    x = torch.arange(24.0).view(2, 3, 4)
    gm = traced(lambda x: x[[0, -1], [-3, -2]], x)
    assert_close(bind_and_compile(converted(gm), {}, SETTINGS)([x]), [x[[0, -1], [-3, -2]]])


def refused(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv_ex(x.relu())[0] + 1


def test_a_whole_graph_names_its_refused_operator() -> None:
    gm = traced(refused, torch.eye(3))
    assert refused_in_graph(gm) == {node_of(gm, "aten.linalg_inv_ex").name: "aten.linalg_inv_ex.default"}


def test_each_operator_alone() -> None:
    gm = traced(refused, torch.eye(3))
    assert refused_one_by_one(gm) == {node_of(gm, "aten.linalg_inv_ex").name: "aten.linalg_inv_ex.default"}


def test_an_operator_of_another_shape_is_refused_alone_only() -> None:
    gm = traced(lambda x: x.kthvalue(2)[0].relu(), torch.randn(3, 4))
    assert refused_in_graph(gm) == {}
    assert refused_one_by_one(gm) == {node_of(gm, "aten.kthvalue").name: "aten.kthvalue.default"}


@pytest.mark.parametrize("index", [0, 1])
def test_of_several_results_those_that_are_read_count(index: int) -> None:
    gm = traced(lambda x: torch.topk(x, 2)[index] + 1, torch.randn(3, 4))
    assert refused_one_by_one(gm) == {}


def test_a_graph_that_converts_has_no_refusals() -> None:
    gm = traced(lambda x, i: torch.nn.functional.layer_norm(x[i] @ x.t(), [4]).relu(), torch.randn(4, 4), torch.tensor([1, 2]))
    assert refused_in_graph(gm) == {}
    assert refused_one_by_one(gm) == {}


def test_the_frontend_is_loaded_once() -> None:
    assert pytorch_frontend() is pytorch_frontend()


def test_the_decoder_names_the_inputs_as_the_graph_does() -> None:
    gm = traced(lambda x, y: x + y, torch.randn(2), torch.randn(2))
    for node, name in zip(list(gm.graph.nodes)[:2], ("input_0", "input_1")):
        node.target = name
    lazy = graph_module(gm, gm.graph)  # its forward has no code yet, and so no such arguments
    decoder = fx_decoder(lazy)
    assert [decoder.get_input_signature_name(i) for i in range(2)] == ["input_0", "input_1"]


def test_nodes_are_found_as_in_a_list() -> None:
    nodes = list(traced(lambda x: (x + 1).relu(), torch.randn(2)).graph.nodes)
    indexed = _IndexedNodes(nodes)
    assert [indexed.index(node) for node in nodes] == list(range(len(nodes)))
    assert indexed == nodes
    other = next(iter(traced(lambda x: x + 1, torch.randn(2)).graph.nodes))
    with pytest.raises(ValueError, match="not among the nodes"):
        indexed.index(other)


@pytest.mark.parametrize(
    "message,expected",
    [
        ("Check failed at line 3\nSummary:\n-- No conversion rule\n   for aten::foo", "-- No conversion rule for aten::foo"),
        ("no  such\n headline", "no such headline"),
        ("Summary: " + "x" * 400, "x" * 300),
    ],
)
def test_the_summary_of_an_error_is_one_short_line(message: str, expected: str) -> None:
    assert summary(RuntimeError(message)) == expected
