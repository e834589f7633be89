"""A lowered ATen graph becomes an OpenVINO model whose weights are named parameters.

Nothing is looked up by position: every placeholder is given a name of its own and found again by that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import openvino as ov
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

from ov_backend import fx_utils
from ov_backend.conversion.frontend import decoder, frontend, summary
from ov_backend.conversion.model import UnsupportedNodes, WeightlessModel, parameter_name, parameter_names, same_shape
from ov_backend.conversion.refusals import refused_alone, refused_together
from ov_backend.conversion.torchscript import translate_script
from ov_backend.errors import ConversionError, NothingToCompute
from ov_backend.fx_utils import graph_module, output_node
from ov_backend.tensors import FROM_NAME, TO_OV, TensorSpec

__all__ = ["UnsupportedNodes", "WeightlessModel", "convert", "parameter_name"]


def convert(
    gm: GraphModule,
    slots: Sequence[str],
    inputs: Sequence[str],
    extra: Mapping[str, Any] | None = None,
    through_torchscript: bool = False,
) -> WeightlessModel:
    """Convert a graph whose placeholders are the slots, then the inputs.

    Args:
        gm: lowered ATen graph.
        slots: names of the weights.
        inputs: names of the inputs.
        extra: kept with the graph.
        through_torchscript: trace the graph to TorchScript and convert that.

    Raises:
        UnsupportedNodes: some operators have no conversion; it names them.
        ConversionError: the model that came out is not the one that went in.
    """
    placeholders = fx_utils.placeholders(gm)
    if len(placeholders) != len(slots) + len(inputs):
        named = f"{len(slots)} weights and {len(inputs)} inputs"
        raise ConversionError(f"the graph takes {len(placeholders)} values; {named} have names")
    work, positions, returns = _prepare(gm, placeholders, len(slots))
    specs = [TensorSpec.of(name, node.meta["val"]) for name, node in zip([*slots, *inputs], placeholders)]
    outputs = tuple(TensorSpec.of(f"output_{i}", node.meta["val"]) for i, node in enumerate(positions))
    if not outputs:
        raise NothingToCompute("the graph computes nothing")
    model = _in_order(translate_script(work) if through_torchscript else _translate(work), work)
    _type_parameters(model, parameter_names(len(slots), len(inputs)), specs)
    if not all(same_shape(found.get_partial_shape(), spec) for found, spec in zip(model.outputs, outputs)):
        refused = refused_alone(work)
        if refused:
            raise UnsupportedNodes({old.name: refused[new.name] for old, new in _copies(gm, work) if new.name in refused})
        found = [str(o.get_partial_shape()) for o in model.outputs]
        raise ConversionError(f"the converted model returns {found}, the graph returns {[list(o.shape) for o in outputs]}")
    _cast_outputs(model, outputs)
    return WeightlessModel(model, tuple(specs[: len(slots)]), tuple(specs[len(slots) :]), outputs, returns, dict(extra or {}))


def _copies(gm: GraphModule, work: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Pairs of a node and its copy made by :func:`_prepare`."""
    pairs = zip((n for n in gm.graph.nodes if n.op != "output"), (n for n in work.graph.nodes if n.op != "output"))
    return iter(pairs)


def _prepare(
    gm: GraphModule, placeholders: Sequence[Node], slots: int
) -> tuple[GraphModule, list[Node], tuple[tuple[str, int], ...]]:
    """A copy with plain named placeholders and each computed output once; and where every result comes from."""
    (results,) = output_node(gm).args
    wanted = results if isinstance(results, (list, tuple)) else [results]
    computed: list[Node] = []
    returns: list[tuple[str, int]] = []
    for node in wanted:
        if node in placeholders:  # handed back as it came, not copied: in PyTorch it is the same tensor too
            i = placeholders.index(node)
            returns.append(("slot", i) if i < slots else ("input", i - slots))
            continue
        if node not in computed:
            computed.append(node)
        returns.append(("output", computed.index(node)))
    graph = Graph()
    graph.set_codegen(CodeGen())
    copies: dict[Node, Node] = {}
    names = iter(parameter_names(slots, len(placeholders) - slots))
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.placeholder(next(names))
            copies[node].meta = dict(node.meta)
        elif node.op != "output":
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in computed))
    return graph_module(gm, graph), computed, tuple(returns)


def _translate(gm: GraphModule) -> ov.Model:
    read = decoder(gm)
    try:
        return frontend().convert(frontend().load(read))
    except Exception as error:
        failed = refused_together(gm) or refused_alone(gm)
        if not failed:
            raise ConversionError(f"OpenVINO could not convert the graph: {summary(error)}") from error
        raise UnsupportedNodes(failed) from error
    finally:
        del read


def _in_order(model: ov.Model, gm: GraphModule) -> ov.Model:
    """The model with its results in the order of the graph's outputs, told by their names, not by their places."""
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


def _cast_outputs(model: ov.Model, outputs: Sequence[TensorSpec]) -> None:
    """Make every result have the dtype PyTorch gives it (the frontend widens or narrows some index types).

    A result that is a parameter gets a cast too, be it to the same dtype: for such a model the CPU device takes the
    memory of the result for that of the parameter, and reads its inputs from there.
    """
    for result, spec in zip(model.get_results(), outputs):
        wanted = TO_OV[FROM_NAME[spec.dtype]]
        source = result.input(0).get_source_output()
        if source.get_element_type() != wanted or source.get_node().get_type_name() == "Parameter":
            cast = ov.opset13.convert(source, wanted.to_string())
            result.input(0).replace_source_output(cast.output(0))
    model.validate_nodes_and_infer_types()
