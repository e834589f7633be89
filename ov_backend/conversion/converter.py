"""Convert: a lowered ATen graph becomes an OpenVINO model whose weights are named parameters, and back from bytes.

Nothing is looked up by position: every placeholder is given a name of its own and found again by that name.
"""

from __future__ import annotations

import json
import operator
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openvino as ov
import torch
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch._guards import tracing
from torch.fx import GraphModule, Node
from torch.fx.graph import CodeGen

from ov_backend.devices import core
from ov_backend.tensors import FROM_NAME, TO_OV
from ov_backend.errors import ConversionError, NothingToCompute
from ov_backend.conversion.frontend import decoder, frontend
from ov_backend.fx_utils import graph_module, is_getitem, output_node, placeholders, values_read
from ov_backend.conversion.torchscript_ops import compose
from ov_backend.guards.signature import TensorSpec

_UNCONVERTED = ("PtFrameworkNode", "FrameworkNode")


@dataclass(frozen=True)
class Graph:
    """A graph without weights.

    Attributes:
        model: OpenVINO model; ``slot_<i>`` and ``input_<i>`` name its parameters.
        slots: the weights, in the order of their numbers.
        inputs: the inputs, in the order of their numbers.
        outputs: what the model computes, each once.
        returns: what the call returns: ``["output", i]``, ``["input", i]`` or ``["slot", i]``, in order.
        extra: JSON-able things the maker wants to find again (the structure of the result).
    """

    model: ov.Model
    slots: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    returns: tuple[tuple[str, int], ...]
    extra: Mapping[str, Any]


class Unconverted(ConversionError):
    """Some operators have no conversion.

    Attributes:
        nodes: names of the FX nodes, each with the reason.
    """

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self.nodes = dict(nodes)
        super().__init__("OpenVINO has no conversion for " + ", ".join(sorted(set(nodes.values()))))


def convert(
    gm: GraphModule,
    slots: Sequence[str],
    inputs: Sequence[str],
    extra: Mapping[str, Any] | None = None,
    by_torchscript: bool = False,
) -> Graph:
    """Convert a graph whose placeholders are the slots, then the inputs.

    Args:
        gm: lowered ATen graph.
        slots: names of the weights.
        inputs: names of the inputs.
        extra: kept with the graph.
        by_torchscript: trace the graph to TorchScript and convert that.

    Raises:
        Unconverted: some operators have no conversion; it names them.
        ConversionError: the model that came out is not the one that went in.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if len(placeholders) != len(slots) + len(inputs):
        named = f"{len(slots)} weights and {len(inputs)} inputs"
        raise ConversionError(f"the graph takes {len(placeholders)} values; {named} have names")
    work, positions, returns = _prepare(gm, placeholders, len(slots))
    specs = [TensorSpec.of(name, node.meta["val"]) for name, node in zip([*slots, *inputs], placeholders)]
    outputs = tuple(TensorSpec.of(f"output_{i}", node.meta["val"]) for i, node in enumerate(positions))
    if not outputs:
        raise NothingToCompute("the graph computes nothing")
    model = _in_order(_translate_script(work) if by_torchscript else _translate(work), work)
    _type_parameters(model, _names(len(slots), len(inputs)), specs)
    if not all(_same(found.get_partial_shape(), spec) for found, spec in zip(model.outputs, outputs)):
        refused = _refused(work)
        if refused:
            raise Unconverted({old.name: refused[new.name] for old, new in _same_nodes(gm, work) if new.name in refused})
        found = [str(o.get_partial_shape()) for o in model.outputs]
        raise ConversionError(f"the converted model returns {found}, the graph returns {[list(o.shape) for o in outputs]}")
    _cast_outputs(model, outputs)
    return Graph(model, tuple(specs[: len(slots)]), tuple(specs[len(slots) :]), outputs, returns, dict(extra or {}))


def _same(found: ov.PartialShape, spec: TensorSpec) -> bool:
    """Whether a model's shape is the graph's; a size that is left open in the graph must be so in the model."""
    if found.rank.is_dynamic or len(found) != len(spec.shape):
        return False
    return all(own.is_dynamic if size == -1 else own.is_dynamic or own == size for own, size in zip(found, spec.shape))


def _same_nodes(gm: GraphModule, work: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Pairs of a node and its copy made by :func:`_prepare`."""
    pairs = zip((n for n in gm.graph.nodes if n.op != "output"), (n for n in work.graph.nodes if n.op != "output"))
    return iter(pairs)


def _names(slots: int, inputs: int) -> list[str]:
    return [f"slot_{i}" for i in range(slots)] + [f"input_{i}" for i in range(inputs)]


def _prepare(
    gm: GraphModule, placeholders: Sequence[Node], slots: int
) -> tuple[GraphModule, list[Node], tuple[tuple[str, int], ...]]:
    """A copy with plain named placeholders and each computed output once; and where every result comes from."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    wanted = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
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
    graph = torch.fx.Graph()
    graph.set_codegen(CodeGen())
    copies: dict[Node, Node] = {}
    names = iter(_names(slots, len(placeholders) - slots))
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
        failed = _unconverted(gm) or _refused(gm)
        if not failed:
            raise ConversionError(f"OpenVINO could not convert the graph: {_summary(error)}") from error
        raise Unconverted(failed) from error
    finally:
        del read


def _translate_script(gm: GraphModule) -> ov.Model:
    """Trace over tensors of zeros, which are indices that no operator refuses; nothing of them stays in the model."""
    gm = compose(gm)
    values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
    zeros = tuple(torch.zeros(tuple(value.shape), dtype=value.dtype) for value in values)
    try:
        with torch.no_grad(), tracing(None):
            script = torch.jit.trace(gm, zeros, check_trace=False, strict=False)
        read = TorchScriptPythonDecoder(script, skip_freeze=True)  # must stay alive until the conversion returns
        return frontend().convert(frontend().load(read))
    except Exception as error:  # of the trace, or of the converter
        raise ConversionError(f"OpenVINO could not convert the graph by way of TorchScript: {_summary(error)}") from error


def _in_order(model: ov.Model, gm: GraphModule) -> ov.Model:
    """The model with its results in the order of the graph's outputs, told by their names, not by their places."""
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
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


def _unconverted(gm: GraphModule) -> dict[str, str]:
    """Ask the converter which nodes it left as they were."""
    read = decoder(gm)
    try:
        model = frontend().convert_partially(frontend().load(read))
    except RuntimeError:  # the converter trips over its own leftovers
        return {}
    known = {node.name: _whole(node) for node in gm.graph.nodes}
    names = [op.get_friendly_name().split("/")[0] for op in model.get_ops() if op.get_type_name() in _UNCONVERTED]
    del read
    return {known[name].name: str(known[name].target) for name in names if name in known}


def _refused(gm: GraphModule) -> dict[str, str]:
    """Ask for every operator by itself whether it can be converted, and into what it should be."""
    return {node.name: str(node.target) for node in gm.graph.nodes if node.op == "call_function" and not _converts(node, gm)}


def _converts(node: Node, gm: GraphModule) -> bool:
    if getattr(node.target, "__name__", "") == "getitem":
        return True
    graph = torch.fx.Graph()
    copies = {}
    for i, source in enumerate(node.all_input_nodes):
        copies[source] = graph.placeholder(f"input_{i}")
        copies[source].meta = dict(source.meta)
    alone = graph.node_copy(node, lambda n: copies[n])
    alone.meta = dict(node.meta)
    values = used(node)
    takers = {user.args[1]: user for user in node.users if getattr(user.target, "__name__", "") == "getitem" and user.users}
    results = [graph.call_function(operator.getitem, (alone, i)) for i in takers] or [alone]
    graph.output(tuple(results))
    read = decoder(graph_module(gm, graph))
    try:
        model = frontend().convert(frontend().load(read))
        for i, source in enumerate(node.all_input_nodes):
            value = source.meta.get("val")
            if isinstance(value, torch.Tensor):
                model.inputs[i].get_node().set_partial_shape(ov.PartialShape(list(TensorSpec.of("", value).shape)))
                model.inputs[i].get_node().set_element_type(TO_OV[value.dtype])
        model.validate_nodes_and_infer_types()
    except (RuntimeError, KeyError, IndexError):
        return False
    finally:
        del read
    shapes = [list(output.get_partial_shape()) for output in model.outputs]
    return not values or sorted(map(str, shapes)) == sorted(str(list(value.shape)) for value in values)


def _whole(node: Node) -> Node:
    """The operator itself where a node only takes one of its results."""
    taken = getattr(node.target, "__name__", "") == "getitem"
    return node.all_input_nodes[0] if taken and node.all_input_nodes[0].op == "call_function" else node


def _summary(error: Exception) -> str:
    text = str(error)
    found = re.search(r"Summary:\s*(.*)", text, re.DOTALL)
    return " ".join((found.group(1) if found else text).split())[:300]


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


def parameter_name(parameter: ov.Node) -> str:
    """Our name of a parameter, ``slot_<i>`` or ``input_<i>``."""
    names = [n for n in parameter.output(0).get_names() if re.fullmatch(r"(slot|input)_\d+", n)]
    return names[0] if len(names) == 1 else str(parameter.get_friendly_name())


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


def dump(graph: Graph) -> dict[str, bytes]:
    """A graph as named byte strings, for the store."""
    with tempfile.TemporaryDirectory(prefix="ov_backend-") as folder:
        xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(graph.model, str(xml), str(weights))
        files = {"model.xml": xml.read_bytes(), "model.bin": weights.read_bytes()}
    fields = ("slots", "inputs", "outputs")
    described: dict[str, Any] = {name: [asdict(spec) for spec in getattr(graph, name)] for name in fields}
    described.update(returns=graph.returns, extra=dict(graph.extra))
    return {**files, "graph.json": json.dumps(described, sort_keys=True).encode()}


def load(files: Mapping[str, bytes]) -> Graph:
    """A graph from the byte strings of :func:`dump`.

    Raises:
        ConversionError: they do not describe a graph.
    """
    try:
        described = json.loads(files["graph.json"])
        model = core().read_model(files["model.xml"], files["model.bin"] or b"\0")
        specs = {
            name: tuple(TensorSpec(s["name"], tuple(s["shape"]), s["dtype"]) for s in described[name])
            for name in ("slots", "inputs", "outputs")
        }
        returns = tuple((str(kind), int(i)) for kind, i in described["returns"])
        graph = Graph(model, specs["slots"], specs["inputs"], specs["outputs"], returns, described["extra"])
        _check(graph)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConversionError(f"the stored graph cannot be read: {error}") from error
    return graph


def _check(graph: Graph) -> None:
    names = dict(zip(_names(len(graph.slots), len(graph.inputs)), [*graph.slots, *graph.inputs]))
    for parameter in graph.model.get_parameters():
        spec = names[parameter_name(parameter)]
        same_shape = _same(parameter.get_partial_shape(), spec)
        if not same_shape or parameter.get_element_type() != TO_OV[FROM_NAME[spec.dtype]]:
            raise ValueError(f"{spec} does not fit the model")
    outputs = graph.model.outputs
    if len(outputs) != len(graph.outputs) or not all(map(_same, (o.get_partial_shape() for o in outputs), graph.outputs)):
        raise ValueError("the outputs do not fit the model")
