"""Binds live weights to a weightless model: every slot becomes a constant.

While it compiles, the CPU device packs the weights of convolutions and matrix products into a layout of its own, and reads the
originals no more; all other constants it reads in place at every inference. So the first share the memory of the live tensors,
and the others are copied: what is compiled owns all that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import openvino as ov
import torch

from ov_backend.conversion.model import WeightlessModel, parameter_name
from ov_backend.tensors import constant

#: Weights below this size are copied in any case.
COPY_BELOW_BYTES = 1 << 20

#: Operators whose second input is packed at compile time, with the most dimensions of a weight for which that was observed.
_PACKING = {"Convolution": 5, "GroupConvolution": 6, "ConvolutionBackpropData": 5, "MatMul": 2}
#: Operators on a weight that are folded into it, so that a new constant is packed.
_FOLDED = {"Convert", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}


def bind(graph: WeightlessModel, weights: Mapping[str, torch.Tensor], validate: bool = True) -> ov.Model:
    """A copy of the graph's model in which every slot is a constant.

    Args:
        graph: the weightless model; it is not changed.
        weights: the live tensors by slot name. Large ones that the device packs are shared: their memory must stay alive until
            the model is compiled, and its first inference request made.
        validate: infer all types and shapes anew.
    """
    model = graph.model.clone()
    slots = {f"slot_{i}": spec for i, spec in enumerate(graph.slots)}
    for parameter in list(model.get_parameters()):
        spec = slots.get(parameter_name(parameter))
        if spec is None:
            continue
        tensor = weights[spec.name].detach()
        shared = tensor.is_contiguous() and tensor.nbytes >= COPY_BELOW_BYTES and _is_packed(parameter)
        value = constant(tensor.contiguous(), shared)
        value.set_friendly_name(spec.name)  # by which layers are known
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(value.output(0))
        model.remove_parameter(parameter)
    if validate:
        model.validate_nodes_and_infer_types()
    return model


def _is_packed(parameter: ov.Node) -> bool:
    """Whether the device packs a weight for everything that reads it."""
    return all(
        port == 1 and len(reader.get_input_partial_shape(1)) <= _PACKING.get(reader.get_type_name(), 0)
        for reader, port in _readers(parameter)
    )


def _readers(node: ov.Node) -> Iterator[tuple[ov.Node, int]]:
    """The operators that read a weight, or what is folded into it, each with the number of its input."""
    for target in node.output(0).get_target_inputs():
        reader = target.get_node()
        if reader.get_type_name() in _FOLDED and target.get_index() == 0:
            yield from _readers(reader)
        else:
            yield reader, target.get_index()
