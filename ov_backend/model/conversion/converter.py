"""A lowered ATen graph becomes an OpenVINO model whose weights are named parameters.

Parameters and results are identified by name, not by position: every placeholder gets a name of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.fx.node import map_arg

from ov_backend.core import autocast_regions, fx_utils
from ov_backend.core.errors import ConversionError, NothingToCompute, pass_on_signals
from ov_backend.core.fx_utils import graph_module, output_node
from ov_backend.core.tensors import FROM_NAME, TO_NAME, TO_OV, TensorSpec, constant, share
from ov_backend.model.conversion.frontend import fx_decoder, pytorch_frontend, summary
from ov_backend.model.conversion.index_limits import extremes, limits_of
from ov_backend.model.conversion.model import UnsupportedNodes, WeightlessModel, parameter_name, parameter_names, same_shape
from ov_backend.model.conversion.negative_indices import count_from_start
from ov_backend.model.conversion.refusals import refused_in_graph, refused_one_by_one
from ov_backend.model.conversion.torchscript import convert_through_torchscript

__all__ = ["UnsupportedNodes", "WeightlessModel", "convert"]

_CLONE = torch.ops.aten.clone.default


def convert(
    gm: GraphModule,
    slots: Sequence[str],
    inputs: Sequence[str],
    extra: Mapping[str, Any] | None = None,
    through_torchscript: bool = False,
) -> WeightlessModel:
    """Convert a lowered graph whose placeholders are the slots, then the inputs; ``extra`` is stored with the model.

    Raises:
        NothingToCompute: the graph only returns its placeholders.
        UnsupportedNodes: some operators have no conversion; it names them.
        ConversionError: the graph cannot be converted, or the model's parameters or results are not those of the graph.
    """
    placeholders = fx_utils.placeholders(gm)
    if len(placeholders) != len(slots) + len(inputs):
        named = f"{len(slots)} weights and {len(inputs)} inputs"
        raise ConversionError(f"the graph takes {len(placeholders)} values; {named} have names")
    computed, returns = _results(gm, placeholders, len(slots))
    names, limits = parameter_names(len(slots), len(inputs)), limits_of(gm)
    renamed, originals = _with_named_placeholders(gm, names, computed, [node for node, _ in limits.computed])
    specs = [TensorSpec.of(name, node.meta["val"]) for name, node in zip([*slots, *inputs], placeholders)]
    outputs = tuple(TensorSpec.of_result(f"output_{i}", node.meta["val"]) for i, node in enumerate(computed))
    if not outputs:
        raise NothingToCompute("the graph computes nothing")
    if missing := [spec for spec in (*specs, *outputs) if not spec.exists]:
        raise ConversionError(f"{missing[0].name} is of {missing[0].dtype}, which OpenVINO does not have")
    positions = [(f"output_{len(outputs) + i}", node.meta["val"].dtype) for i, (node, _) in enumerate(limits.computed)]
    outputs += tuple(TensorSpec(name, (2,), TO_NAME[dtype]) for name, dtype in positions)
    model = convert_through_torchscript(renamed) if through_torchscript else _convert_directly(renamed, originals)
    model = _order_results(model, renamed)
    _type_parameters(model, names, specs)
    _check_shapes(model, outputs, renamed, originals)
    _cast_outputs(model, outputs)
    first = len(outputs) - len(positions)
    checked = [("slot", i, limit) if i < len(slots) else ("input", i - len(slots), limit) for i, limit in limits.of_placeholders]
    checked += [("output", first + i, limit) for i, (_, limit) in enumerate(limits.computed)]
    weights, given = tuple(specs[: len(slots)]), tuple(specs[len(slots) :])
    return WeightlessModel(model, weights, given, outputs, returns, dict(extra or {}), tuple(checked))


def _results(gm: GraphModule, placeholders: Sequence[Node], slots: int) -> tuple[list[Node], tuple[tuple[str, int], ...]]:
    """The nodes that the model must compute, each once; and for each result of the graph where it comes from."""
    (results,) = output_node(gm).args
    computed: list[Node] = []
    returns: list[tuple[str, int]] = []
    for node in results if isinstance(results, (list, tuple)) else [results]:
        if node in placeholders:  # as in PyTorch the call returns its argument itself, not a copy
            i = placeholders.index(node)
            returns.append(("slot", i) if i < slots else ("input", i - slots))
            continue
        if node not in computed:
            computed.append(node)
        returns.append(("output", computed.index(node)))
    return computed, tuple(returns)


def _with_named_placeholders(
    gm: GraphModule, names: Sequence[str], computed: Sequence[Node], positions: Sequence[Node]
) -> tuple[GraphModule, dict[str, str]]:
    """A copy whose placeholders have these names and whose results are the computed nodes; by name, what each node comes from.

    The least and the largest of each of the positions is a further result.

    A result that is a clone of another one is a reshape of it: the converter would make one value of the two.
    """
    roots = Counter(map(_cloned, computed))
    graph = Graph()
    graph.set_codegen(CodeGen())
    copies: dict[Node, Node] = {}
    originals: dict[str, str] = {}
    remaining = iter(names)
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(next(remaining))
            copies[node].meta = dict(node.meta)
        elif node.target is _CLONE and node in computed and roots[_cloned(node)] > 1:
            copies[node] = graph.call_function(torch.ops.aten.view.default, (copies[node.args[0]], [*node.meta["val"].shape]))
            copies[node].meta = dict(node.meta)
        elif node.op != "output":
            name = autocast_regions.PREFIX * autocast_regions.is_marked(node) + node.name
            args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
            copies[node] = graph.create_node(node.op, node.target, args, kwargs, name)
            copies[node].meta = dict(node.meta)
            if node.op == "get_attr":  # torch 2.1 notes no value
                copies[node].meta.setdefault("val", getattr(gm, str(node.target)))
            originals.update({added.name: node.name for added in count_from_start(copies[node])})
    graph.output((*(copies[node] for node in computed), *(extremes(graph, copies[node]) for node in positions)))
    originals.update({copy.name: node.name for node, copy in copies.items()})
    return graph_module(gm, graph), originals


def _cloned(node: Node) -> Node:
    """What a node is a clone of; itself otherwise."""
    while node.target is _CLONE:
        node = node.args[0]
    return node


def _convert_directly(gm: GraphModule, originals: Mapping[str, str]) -> ov.Model:
    decoder = fx_decoder(gm)
    try:
        return _own_literals(pytorch_frontend().convert(pytorch_frontend().load(decoder)))
    except Exception as error:
        pass_on_signals(error)
        refused = refused_in_graph(gm) or refused_one_by_one(gm)
        if not refused:
            raise ConversionError(f"OpenVINO could not convert the graph: {summary(error)}") from error
        raise UnsupportedNodes({originals.get(name, name): operator for name, operator in refused.items()}) from error
    finally:
        del decoder  # it must live until the conversion returns


def _own_literals(model: ov.Model) -> ov.Model:
    """The model with copies of its bfloat16 literals, whose memory the decoder frees."""
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type() == TO_OV[torch.bfloat16]:
            content = torch.empty(list(node.get_output_shape(0)), dtype=torch.bfloat16)
            if content.numel():
                node.get_tensor_view().copy_to(share(content))
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(constant(content, shared=False).output(0))
    return model


def _order_results(model: ov.Model, gm: GraphModule) -> ov.Model:
    """The model with its results in the order of the graph's results, which are identified by name."""
    output = output_node(gm)
    results = list(model.get_results())
    if len(results) != len(output.args[0]):
        raise ConversionError(f"the converted model returns {len(results)} values, the graph returns {len(output.args[0])}")
    ordered = []
    for position, node in enumerate(output.args[0]):
        named = [r for r in results if f"{node.name}:0" in r.output(0).get_names()]
        if len(named) > 1 and results[position] not in named:
            raise ConversionError(f"the converted model has {len(named)} results named {node.name}")
        ordered.append(results[position] if results[position] in named or not named else named[0])
    if ordered == results:
        return model
    if len(set(map(id, ordered))) != len(ordered):
        raise ConversionError("the results of the converted model cannot be told apart")
    return ov.Model(ordered, model.get_parameters(), model.get_friendly_name())


def _type_parameters(model: ov.Model, names: Sequence[str], specs: Sequence[TensorSpec]) -> None:
    """Give every parameter the shape and the dtype of the placeholder that has its name."""
    expected = dict(zip(names, specs))
    for parameter in model.get_parameters():
        name = parameter_name(parameter)
        if name not in expected:
            raise ConversionError(f"the converted model has a parameter {name!r} that the graph does not have")
        spec = expected[name]
        parameter.set_partial_shape(ov.PartialShape(list(spec.shape)))
        parameter.set_element_type(TO_OV[FROM_NAME[spec.dtype]])
        parameter.set_friendly_name(name)
    model.validate_nodes_and_infer_types()


def _check_shapes(
    model: ov.Model, outputs: Sequence[TensorSpec], renamed: GraphModule, originals: Mapping[str, str]
) -> None:
    """Compare the shapes of the results with those of the graph; where they differ, look for the operators to blame."""
    if all(same_shape(output.get_partial_shape(), spec) for output, spec in zip(model.outputs, outputs)):
        return
    refused = refused_one_by_one(renamed)
    if refused:
        raise UnsupportedNodes({originals[name]: operator for name, operator in refused.items()})
    shapes = [str(output.get_partial_shape()) for output in model.outputs]
    raise ConversionError(f"the converted model returns {shapes}, the graph returns {[list(spec.shape) for spec in outputs]}")


def _cast_outputs(model: ov.Model, outputs: Sequence[TensorSpec]) -> None:
    """Give every result the dtype that PyTorch gives it (the frontend widens or narrows some index types).

    A result that is a parameter gets a cast even to the same dtype. For a model without it the CPU device reads the input
    from the memory of the result.
    """
    for result, spec in zip(model.get_results(), outputs):
        element_type = TO_OV[FROM_NAME[spec.dtype]]
        source = result.input(0).get_source_output()
        if source.get_element_type() != element_type or source.get_node().get_type_name() == "Parameter":
            cast = ov.opset13.convert(source, element_type.to_string())
            result.input(0).replace_source_output(cast.output(0))
    model.validate_nodes_and_infer_types()
