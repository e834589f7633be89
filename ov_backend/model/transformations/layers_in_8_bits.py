"""The convolutions and matrix products of a model that have a weight, by the name of the weight in the module.

A layer is known by its weight's name, because OpenVINO's own names change with its version. A weight that is used several times
gives several layers: ``conv.weight``, ``conv.weight#2``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import openvino as ov

#: Operators between a weight and the layer that reads it.
_CONVERTED = ("Convert", "Transpose")
#: A matrix product of fewer rows than this has little to gain: it reads one row for each picture, as a time embedding does.
FEW_ROWS = 32
#: A convolution of fewer channels than this, in or out, reads the latent or writes the result.
FEW_CHANNELS = 16

#: Operators that only move values.
_MOVED = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")
#: Why a layer of one row or pixel at a time is left out, by what it reads.
LEFT_OUT_INPUTS = {
    "Parameter": "reads an input of the network, such as the prompt, whose range is another in every picture",
    "Concat": "a shortcut over two joined activations",
    "Multiply": "reads a product of activations, as behind a gate",
    "Add": "reads a sum of activations, as behind the blocks of a transformer",
}
#: Those of them that are left out only at the finest resolution at which such layers occur: at the others a UNet's pictures lose
#: next to nothing, and a step is faster. docs/int8.md and docs/dropped.md have the measurements.
ONLY_AT_FINEST = frozenset({"Multiply", "Add"})
#: Of a coarser resolution there are at least so many times fewer positions: halving both sides gives 4, a little less where the
#: sides are odd, and merging half of the tokens gives 2 at the same resolution.
_COARSER = 3


@dataclass(frozen=True)
class Layer:
    """One convolution or matrix product.

    Attributes:
        name: of its weight, with "#2" and so on for its second use.
        node: the operator; its first input is the activation.
        weight: name of the weight.
        transposed: whether the weight of a matrix product is [out, in], as torch.nn.Linear's is.
        left_out: why it stays in the device's own precision, or "".
    """

    name: str
    node: ov.Node
    weight: str
    transposed: bool
    left_out: str = ""

    @property
    def is_convolution(self) -> bool:
        """Whether it is a convolution."""
        return bool(self.node.get_type_name() == "Convolution")

    @property
    def source(self) -> ov.Output:
        """The activation that it reads."""
        return self.node.input_value(0)

    @property
    def source_name(self) -> str:
        """Names the activation within the model; layers that read the same one share its ranges."""
        return f"{self.source.get_node().get_name()}:{self.source.get_index()}"


def weighted_layers(model: ov.Model, weights: Collection[str]) -> list[Layer]:
    """The layers of a bound model in the order of their computation.

    Args:
        model: the model with its weights bound; its constants have the names of the weights.
        weights: names of the live weights.
    """
    candidates = [layer for node in model.get_ordered_ops() if (layer := _layer(node, weights)) is not None]
    finest = _finest(candidates) if any(map(_halves, candidates)) else {}
    layers: list[Layer] = []
    uses: dict[str, int] = {}
    for layer in candidates:
        uses[layer.weight] = count = uses.get(layer.weight, 0) + 1
        name = layer.weight if count == 1 else f"{layer.weight}#{count}"
        layers.append(Layer(name, layer.node, layer.weight, layer.transposed, _left_out(layer, finest)))
    return layers


def _finest(layers: Sequence[Layer]) -> dict[str, int]:
    """The most positions of a layer of each kind that is left out at the finest resolution alone.

    A layer that is left out for another reason does not count.
    """
    finest: dict[str, int] = {}
    for layer in layers:
        kind = _input_kind(layer)
        if kind in ONLY_AT_FINEST and not _left_out_for_sizes(layer):
            finest[kind] = max(finest.get(kind, 0), _positions(layer))
    return finest


def _halves(layer: Layer) -> bool:
    """Whether a layer takes its input to a coarser resolution; the patches of a transformer do not overlap, and are no such step.

    Where no layer does, as in a transformer, layers of fewer positions are those of the prompt.
    """
    if not layer.is_convolution:
        return False
    strides, kernel = layer.node.get_attributes()["strides"], layer.node.get_input_shape(1)[2:]
    return any(1 < stride < size for stride, size in zip(strides, kernel))


def _positions(layer: Layer) -> int:
    """How many rows or pixels a layer of static sizes reads."""
    shape = layer.node.get_input_shape(0)
    return math.prod(shape) // shape[1 if layer.is_convolution else -1]


def weight_name(layer: str) -> str:
    """The name of a layer's weight."""
    return layer.partition("#")[0]


def _layer(node: ov.Node, weights: Collection[str]) -> Layer | None:
    kind = node.get_type_name()
    if kind not in ("Convolution", "MatMul"):
        return None
    weight, transposed = node.input_value(1).get_node(), False
    if kind == "MatMul":
        attributes = node.get_attributes()
        transposed = bool(attributes["transpose_b"])
        if attributes["transpose_a"]:
            return None
        while weight.get_type_name() in _CONVERTED:
            if weight.get_type_name() == "Transpose":
                order = weight.input_value(1).get_node()
                if order.get_type_name() != "Constant" or list(order.get_data()) != [1, 0]:
                    return None
                transposed = not transposed
            weight = weight.input_value(0).get_node()
        if weight.get_type_name() == "Constant" and len(weight.get_output_shape(0)) != 2:
            return None
    while weight.get_type_name() == "Convert":
        weight = weight.input_value(0).get_node()
    name = weight.get_friendly_name()
    if weight.get_type_name() != "Constant" or name not in weights:
        return None
    return Layer(name, node, name, transposed)


def _left_out(layer: Layer, finest: Mapping[str, int]) -> str:
    """Why a layer has more to lose than to gain; docs/int8.md has the measurements.

    Args:
        layer: the layer.
        finest: by what layers read, the positions at the finest resolution; where that is missing, all are left out.
    """
    if reason := _left_out_for_sizes(layer):
        return reason
    kind = _input_kind(layer)
    is_coarse = _COARSER * _positions(layer) <= finest.get(kind, 0)
    return "" if is_coarse else LEFT_OUT_INPUTS.get(kind, "")


def _left_out_for_sizes(layer: Layer) -> str:
    """Why the sizes of a layer alone keep it out, or ""."""
    if layer.node.get_input_partial_shape(0).is_dynamic:
        return "sizes are dynamic"
    outputs, inputs = layer.node.get_input_shape(1)[:2]
    if not layer.is_convolution and math.prod(layer.node.get_input_shape(0)[:-1]) < FEW_ROWS:
        return "few rows, as in a time embedding"
    if layer.is_convolution and min(outputs, inputs) < FEW_CHANNELS:
        return "few channels, as in the first and last layer"
    return ""


def _input_kind(layer: Layer) -> str:
    """The operator that a layer of one row or pixel at a time reads, see :data:`LEFT_OUT_INPUTS`; "" for larger kernels."""
    if layer.is_convolution and math.prod(layer.node.get_input_shape(1)[2:]) > 1:
        return ""
    return _kind_of(layer.source)


def _kind_of(value: ov.Output) -> str:
    """The operator that computes an activation, if it joins two activations: a sum with a weight is none of these."""
    node = value.get_node()
    while node.get_type_name() in ("Convert", *_MOVED):
        node = node.input_value(0).get_node()
    if node.get_type_name() in ("Concat", "Parameter"):
        return str(node.get_type_name())
    return str(node.get_type_name()) if len(node.inputs()) == 2 and not any(map(_is_weight, node.input_values())) else ""


def _is_weight(value: ov.Output) -> bool:
    node = value.get_node()
    while node.get_type_name() in (*_CONVERTED, *_MOVED):
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")
