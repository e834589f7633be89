"""Binds live weights to a weightless model: every slot becomes a constant.

While it compiles, the CPU device packs the weights of convolutions and matrix products into a layout of its own, and reads the
originals no more; all other constants it reads in place at every inference. So the first share the memory of the live tensors,
and the others are copied: what is compiled owns all that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import openvino as ov
import torch

from ov_backend.core.tensors import constant
from ov_backend.model.conversion.model import WeightlessModel, parameter_name
from ov_backend.model.transformations.nodes import is_packed

#: Weights below this size are copied in any case.
COPY_BELOW_BYTES = 1 << 20


def bind(graph: WeightlessModel, weights: Mapping[str, torch.Tensor], validate: bool = True) -> ov.Model:
    """A copy of the graph's model in which every slot is a constant; with ``validate`` all types and shapes are inferred anew.

    Large weights that the device packs are shared: their memory must stay alive until the model is compiled, and its first
    inference request made.
    """
    model = graph.model.clone()
    slots = {f"slot_{i}": spec for i, spec in enumerate(graph.slots)}
    for parameter in list(model.get_parameters()):
        spec = slots.get(parameter_name(parameter))
        if spec is None:
            continue
        tensor = weights[spec.name].detach()
        shared = tensor.is_contiguous() and tensor.nbytes >= COPY_BELOW_BYTES and is_packed(parameter)
        value = constant(tensor.contiguous(), shared)
        value.set_friendly_name(spec.name)  # by which layers are known
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(value.output(0))
        model.remove_parameter(parameter)
    if validate:
        model.validate_nodes_and_infer_types()
    return model
