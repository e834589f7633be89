"""The types that PyTorch's autocast to bfloat16 would compute in, written into a float32 model.

bfloat16 has 8 bits: a position of 4001 becomes 4000, and its sine is arbitrary. Told to compute in bfloat16, the CPU device
(OpenVINO 2026.4) rounds nearly everything. PyTorch's autocast rounds what goes into products (of matrices, convolutions,
attention), and what follows them until it meets a float32 value of the network. So the model gets explicit types, and the device
is told to compute in the types that it finds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import torch
from openvino import opset13

from ov_backend.core.autocast_regions import PREFIX
from ov_backend.core.tensors import TO_OV, constant
from ov_backend.model.transformations.convert_precision import WeightBuffer, weight_buffer
from ov_backend.model.transformations.nodes import Constants, is_packed

#: What autocast computes in bfloat16 whatever it gets.
PRODUCTS = frozenset({
    *("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"),
    *("MatMul", "ScaledDotProductAttention", "LSTMSequence", "GRUSequence", "RNNSequence"),
})
#: What only chooses or moves values.
MOVES = frozenset({
    *("Abs", "Broadcast", "Clamp", "Concat", "Convert", "DepthToSpace", "Gather", "GatherElements", "GatherND"),
    *("Maximum", "Minimum", "Negative", "PRelu", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape"),
    *("ReverseSequence", "Roll", "Select", "ShuffleChannels", "Slice", "SpaceToDepth", "Split", "Squeeze", "StridedSlice"),
    *("Tile", "Transpose", "Unsqueeze", "VariadicSplit"),
})
#: What the device computes as exactly as PyTorch's kernel of bfloat16: it rounds the result once.
ROUNDED_ONCE = frozenset({
    *("Add", "AvgPool", "Divide", "Elu", "Gelu", "GroupNormalization", "HSigmoid", "HSwish", "MVN", "Mish", "Multiply"),
    *("Sigmoid", "SoftPlus", "Softmax", "Subtract", "Swish", "Tanh"),
})
#: ATen's operators that autocast computes in bfloat16 with all that they add, and those whose weights do not decide the type.
_PRODUCTS = frozenset({
    *("_addmm_activation", "addbmm", "addmm", "baddbmm", "bmm", "linalg_vecdot", "linear", "matmul", "mm"),
    *("_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("convolution", "scaled_dot_product_attention"),
})
_NORMALIZATIONS = frozenset({
    *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm", "native_batch_norm"),
    *("group_norm", "instance_norm", "layer_norm", "native_group_norm", "native_layer_norm"),
})
#: What stands for the operator of a node that a rewrite has made.
_REWRITTEN = ("", "")
#: Bytes of a weight whose converted form lies in a file while the model is compiled.
_LARGE = 1 << 20
_F32 = TO_OV[torch.float32]


def cast_to_bfloat16(
    model: ov.Model, folder: Path | None, live: Iterable[torch.Tensor] = (), held: Iterable[WeightBuffer] = ()
) -> tuple[WeightBuffer, ...]:
    """Give, in place, what autocast would compute in bfloat16 that type, in a valid model with its weights bound.

    Returns the memory of large converted weights that the device packs, a file in ``folder`` or ordinary memory without one; it
    must live until the device has done so. For ``held`` see :func:`weight_buffer`; only what lies in the memory of ``live``
    weights may be in one of them.
    """
    nodes = model.get_ordered_ops()
    low = _low_nodes(nodes, Constants(model))
    ports = [port for node in nodes for port in node.inputs() if _changes_type(port, low)]
    weights = {source.get_name(): source for port in ports if (source := _source(port)).get_type_name() == "Constant"}
    contents = {name: torch.from_numpy(weight.get_tensor_view().data) for name, weight in weights.items()}
    packed = [contents[name] for name, weight in weights.items() if _is_large(weight)]
    known = held if {weight.data_ptr() for weight in packed} <= {weight.data_ptr() for weight in live} else ()
    buffer = weight_buffer(torch.bfloat16, packed, folder, known, packed=True) if packed else None
    casts: dict[tuple[str, int], ov.Output] = {}
    for port in ports:
        value = port.get_source_output()
        name, key = value.get_node().get_name(), (value.get_node().get_name(), value.get_index())
        if key in casts:
            pass
        elif name in contents:  # folded by OpenVINO 2026.4, a conversion would not round to the nearest
            casts[key] = _rounded(weights[name], contents[name], buffer if _is_large(weights[name]) else None).output(0)
        elif name in low:
            casts[key] = opset13.convert(value, "f32").output(0)
        else:
            is_mask = port.get_node().get_type_name() == "ScaledDotProductAttention" and port.get_index() == 3
            casts[key] = opset13.convert(_bounded(value) if is_mask else value, "bf16").output(0)
        port.replace_source_output(casts[key])
    for node in nodes:
        if node.get_type_name() == "Convert" and node.get_name() in low:
            node.set_attribute("destination_type", "bf16")
    model.validate_nodes_and_infer_types()
    return () if buffer is None else (buffer,)


def _bounded(mask: ov.Output) -> ov.Node:
    """A mask whose lowest finite number is bfloat16's: a row of minus infinity has no softmax."""
    lowest = opset13.constant(np.float32(torch.finfo(torch.bfloat16).min))
    is_finite = opset13.greater_equal(mask, opset13.constant(np.finfo(np.float32).min))
    return opset13.select(is_finite, opset13.maximum(mask, lowest), mask)


def _source(port: ov.Input) -> ov.Node:
    return port.get_source_output().get_node()


def _changes_type(port: ov.Input, low: set[str]) -> bool:
    """Whether a node reads a value in another type than it is computed in."""
    is_float = port.get_source_output().get_element_type() == _F32
    return is_float and (_source(port).get_name() in low) != (port.get_node().get_name() in low)


def _is_large(weight: ov.Node) -> bool:
    """Whether a weight is large, and the device packs it."""
    return bool(weight.get_byte_size() >= _LARGE and is_packed(weight))


def _rounded(weight: ov.Node, content: torch.Tensor, buffer: WeightBuffer | None) -> ov.Node:
    if buffer is None:
        limit = torch.finfo(torch.bfloat16).max
        half = content.clamp(-limit, limit).where(content.isfinite(), content).to(torch.bfloat16)
    else:
        half = buffer.converted(content)
    converted = constant(half, shared=buffer is not None)
    converted.set_friendly_name(weight.get_friendly_name())
    return converted


def _low_nodes(nodes: Sequence[ov.Node], constants: Constants) -> set[str]:
    """The names of the nodes whose results are bfloat16, of ``nodes`` in the order of their computation."""
    rounding_once = _operators_that_round_once(nodes, constants)
    low = set[str]()
    for node in nodes:
        if not _is_float(node) or node.output(0) in constants or node.get_friendly_name().startswith(PREFIX):
            continue
        values = [value for value in node.input_values() if value.get_element_type() == _F32]
        if node.get_type_name() in PRODUCTS and _operator(node)[1] in _PRODUCTS | {""}:
            low.add(node.get_name())
        elif any(value.get_node().get_name() in low for value in values):  # a rewrite may choose between two numbers of its own
            is_part = _operator(node)[1] in _PRODUCTS | _NORMALIZATIONS
            keeps = _keeps_type(node, rounding_once) and all(_is_low(value, node, low, constants) for value in values)
            if is_part or keeps:
                low.add(node.get_name())
    for node in reversed(nodes):  # transposed weights and the like
        if node.get_type_name() in MOVES and _is_float(node) and node.output(0) in constants:
            readers = [target.get_node().get_name() for target in node.output(0).get_target_inputs()]
            if node.get_input_element_type(0) == _F32 and all(reader in low for reader in readers):
                low.add(node.get_name())
    return low


def _keeps_type(node: ov.Node, rounding_once: set[tuple[str, str]]) -> bool:
    """Whether a node may compute in bfloat16 where all that it reads is bfloat16."""
    kind = node.get_type_name()
    return kind in MOVES or (kind in ROUNDED_ONCE and _operator(node) in rounding_once)


def _is_float(node: ov.Node) -> bool:
    """Whether a node computes float32."""
    computes = node.get_type_name() not in ("Constant", "Parameter", "Result")
    return computes and any(output.get_element_type() == _F32 for output in node.outputs())


def _is_low(value: ov.Output, reader: ov.Node, low: set[str], constants: Constants) -> bool:
    """Whether a value leaves its reader's result in bfloat16."""
    if value not in constants:
        return value.get_node().get_name() in low
    is_number = len(value.get_partial_shape()) == 0
    return is_number or _operator(reader) == _REWRITTEN  # a rewrite brings numbers of its own


def _operators_that_round_once(nodes: Sequence[ov.Node], constants: Constants) -> set[tuple[str, str]]:
    """The operators that one node computes."""
    counts = Counter(
        _operator(node)
        for node in nodes
        if _is_float(node) and node.output(0) not in constants and node.get_type_name() not in MOVES
    )
    return {*(operator for operator, count in counts.items() if count == 1), _REWRITTEN}


def _operator(node: ov.Node) -> tuple[str, str]:
    """The name of the node of the traced graph that a node comes from, and its operator, such as "addmm"."""
    name, _, rest = node.get_friendly_name().rpartition("/")[0].rpartition("/")
    operator = re.match(r"aten(?:\.|::)(\w+)", rest)
    return (f"{name}/{rest}", operator[1]) if operator is not None else _REWRITTEN
