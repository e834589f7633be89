"""Which operators the converter refuses, asked of the converter itself."""

from __future__ import annotations

import operator

import openvino as ov
import torch
from torch.fx import Graph, GraphModule, Node

from ov_backend.conversion.frontend import decoder, frontend
from ov_backend.fx_utils import graph_module, is_getitem, values_read
from ov_backend.tensors import TO_OV, TensorSpec

_UNCONVERTED = ("PtFrameworkNode", "FrameworkNode")


def refused_together(gm: GraphModule) -> dict[str, str]:
    """Ask the converter which nodes it left as they were."""
    read = decoder(gm)
    try:
        model = frontend().convert_partially(frontend().load(read))
    except RuntimeError:  # the converter trips over its own leftovers
        return {}
    known = {node.name: _operator(node) for node in gm.graph.nodes}
    names = [op.get_friendly_name().split("/")[0] for op in model.get_ops() if op.get_type_name() in _UNCONVERTED]
    del read
    return {known[name].name: str(known[name].target) for name in names if name in known}


def refused_alone(gm: GraphModule) -> dict[str, str]:
    """Ask for every operator by itself whether it can be converted, and into what it should be."""
    return {node.name: str(node.target) for node in gm.graph.nodes if node.op == "call_function" and not _converts(node, gm)}


def _converts(node: Node, gm: GraphModule) -> bool:
    if is_getitem(node):
        return True
    graph = Graph()
    copies = {}
    for i, source in enumerate(node.all_input_nodes):
        copies[source] = graph.placeholder(f"input_{i}")
        copies[source].meta = dict(source.meta)
    alone = graph.node_copy(node, lambda n: copies[n])
    alone.meta = dict(node.meta)
    values = values_read(node)
    takers = {user.args[1]: user for user in node.users if is_getitem(user) and user.users}
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


def _operator(node: Node) -> Node:
    """The operator itself where a node only takes one of its results."""
    taken = is_getitem(node)
    return node.all_input_nodes[0] if taken and node.all_input_nodes[0].op == "call_function" else node
