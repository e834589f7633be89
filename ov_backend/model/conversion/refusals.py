"""Which operators the converter refuses; the converter itself is asked."""

from __future__ import annotations

import operator

import openvino as ov
import torch
from torch.fx import Graph, GraphModule, Node

from ov_backend.core.errors import pass_on_signals
from ov_backend.core.fx_utils import graph_module, is_getitem, values_read
from ov_backend.core.tensors import TO_OV, TensorSpec
from ov_backend.model.conversion.frontend import fx_decoder, pytorch_frontend
from ov_backend.model.conversion.model import same_shape

#: Types of the operators that a partial conversion leaves unconverted.
_UNCONVERTED = ("PtFrameworkNode", "FrameworkNode")


def refused_in_graph(gm: GraphModule) -> dict[str, str]:
    """Convert the whole graph partially: names and operators of the nodes that the converter leaves unconverted."""
    decoder = fx_decoder(gm)
    try:
        model = pytorch_frontend().convert_partially(pytorch_frontend().load(decoder))
    except Exception as error:  # it fails on operators that it has left unconverted; its exceptions have no common base
        pass_on_signals(error)
        return {}
    refused = {op.get_friendly_name().split("/")[0] for op in model.get_ops() if op.get_type_name() in _UNCONVERTED}
    del decoder  # the unconverted operators read the graph through it
    nodes = [_operator(node) for node in gm.graph.nodes if node.name in refused]
    return {node.name: str(node.target) for node in nodes}


def refused_one_by_one(gm: GraphModule) -> dict[str, str]:
    """Convert every operator alone: names and operators of the nodes that fail, or whose result has another shape."""
    return {node.name: str(node.target) for node in gm.graph.nodes if node.op == "call_function" and not _converts(node, gm)}


def _converts(node: Node, gm: GraphModule) -> bool:
    if is_getitem(node):
        return True
    decoder = fx_decoder(_alone(node, gm))
    try:
        model = pytorch_frontend().convert(pytorch_frontend().load(decoder))
        for i, source in enumerate(node.all_input_nodes):
            value = source.meta.get("val")
            if isinstance(value, torch.Tensor):
                model.inputs[i].get_node().set_partial_shape(ov.PartialShape(list(TensorSpec.of("", value).shape)))
                model.inputs[i].get_node().set_element_type(TO_OV[value.dtype])
        model.validate_nodes_and_infer_types()
        specs = [TensorSpec.of("", value) for value in values_read(node)]
    except Exception as error:  # a dtype that OpenVINO does not have, or one of the converter's, which have no common base
        pass_on_signals(error)
        return False
    finally:
        del decoder  # it must live until the conversion returns
    if len(specs) != len(model.outputs):
        return not specs
    return all(same_shape(port.get_partial_shape(), spec) for port, spec in zip(model.outputs, specs))


def _alone(node: Node, gm: GraphModule) -> GraphModule:
    """A graph of one operator that returns those of its results that are read."""
    graph = Graph()
    inputs: dict[Node, Node] = {}
    for i, source in enumerate(node.all_input_nodes):
        inputs[source] = graph.placeholder(f"input_{i}")
        inputs[source].meta = dict(source.meta)
    copy = graph.node_copy(node, lambda n: inputs[n])
    copy.meta = dict(node.meta)
    indices = sorted({user.args[1] for user in node.users if is_getitem(user) and user.users})
    results = [graph.call_function(operator.getitem, (copy, i)) for i in indices] or [copy]
    graph.output(tuple(results))
    return graph_module(gm, graph)


def _operator(node: Node) -> Node:
    """The operator of a node; of a node that selects one of an operator's results, that operator."""
    return node.all_input_nodes[0] if is_getitem(node) and node.all_input_nodes[0].op == "call_function" else node
