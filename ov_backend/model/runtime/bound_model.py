"""Binds live weights to a graph, and gives it the types and the form in which the device computes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import openvino as ov
import torch
from openvino import opset13

from ov_backend.core import devices
from ov_backend.core.errors import is_failure, last_line
from ov_backend.core.settings import Settings
from ov_backend.core.tensors import TO_OV, constant, resolved
from ov_backend.model import transformations
from ov_backend.model.conversion.model import WeightlessModel, parameter_name
from ov_backend.model.transformations.autocast_types import cast_to_bfloat16
from ov_backend.model.transformations.convert_precision import (
    WeightBuffer,
    convert_precision,
    weight_buffer,
    weight_conversion,
)
from ov_backend.model.transformations.nodes import is_packed
from ov_backend.model.transformations.quantize import Observe, Quantize, Rewrite, int8_buffer, observe, quantize
from ov_backend.model.transformations.timestep_angles import keep_angles_exact

log = logging.getLogger(__name__)


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
        shared = tensor.is_contiguous() and not tensor.is_neg() and tensor.nbytes >= COPY_BELOW_BYTES and is_packed(parameter)
        value = constant(resolved(tensor).contiguous(), shared)
        value.set_friendly_name(spec.name)  # by which layers are known
        for target in parameter.output(0).get_target_inputs():
            target.replace_source_output(value.output(0))
        model.remove_parameter(parameter)
    if validate:
        model.validate_nodes_and_infer_types()
    return model


def bound_model(
    graph: WeightlessModel,
    live: Mapping[str, torch.Tensor],
    settings: Settings,
    rewrite: Rewrite | None,
    held: Sequence[WeightBuffer] = (),
) -> tuple[ov.Model, tuple[WeightBuffer, ...], Sequence[str] | None, int]:
    """The model with its weights, as the device gets it; for ``rewrite`` and ``held`` see
    :func:`.compiled_graph.bind_and_compile`.

    With it come what holds its converted weights, what :func:`observe` returned if it was called, and the number of layers in 8
    bits.
    """
    if devices.members(settings.device) != ["CPU"]:
        return bind(graph, live), (), None, 0
    buffers: tuple[WeightBuffer, ...]
    pairs, in_8_bits, precision = None, 0, devices.resolved_precision(settings)
    if isinstance(rewrite, Quantize):
        model = bind(graph, live)
        buffer = int8_buffer(live, rewrite.ranges, _buffer_folder(settings))
        buffers, in_8_bits = (buffer,), len(quantize(model, live, rewrite.ranges, buffer))
        types = weight_conversion(list(live.values()), "f32")
        if types is not None:
            convert_precision(model, *types)
        if precision == "bf16":
            keep_angles_exact(model)
    else:
        in_type = _in_computed_type(graph, live, precision, settings, held)
        model, buffers = in_type or (_without_float16(graph, live, precision), ())
        if isinstance(rewrite, Observe):
            pairs = observe(model, live, precision)
    transformations.apply(model, precision)
    if devices.takes_autocast_types(settings) and not isinstance(rewrite, Quantize):
        buffers += cast_to_bfloat16(model, _buffer_folder(settings), live.values(), held)
    elif precision == "f32":
        _leave_rounding_to_pytorch(model)
    return model, buffers, pairs, in_8_bits


def _leave_rounding_to_pytorch(model: ov.Model) -> None:
    """Have results in bfloat16 be float32: without AVX-512 the device cuts half of the numbers off where it should round them."""
    half = [result for result in model.get_results() if result.get_input_element_type(0) == TO_OV[torch.bfloat16]]
    for result in half:
        result.input(0).replace_source_output(opset13.convert(result.input_value(0), "f32").output(0))
    if half:
        model.validate_nodes_and_infer_types()


def _buffer_folder(settings: Settings) -> Path | None:
    """The folder of converted weights, whose memory is freed once they are compiled; None without one."""
    return settings.cache_folder if settings.model_caching else None


def _in_computed_type(
    graph: WeightlessModel, live: Mapping[str, torch.Tensor], precision: str, settings: Settings, held: Sequence[WeightBuffer]
) -> tuple[ov.Model, tuple[WeightBuffer, ...]] | None:
    """The bound model with half-precision weights converted to the type that the CPU computes in; None if none need it."""
    types = weight_conversion(list(live.values()), precision)
    if types is None:
        return None
    large = {name: w for name, w in live.items() if w.dtype is types[0] and w.nbytes >= COPY_BELOW_BYTES}
    buffer = weight_buffer(types[1], list(large.values()), _buffer_folder(settings), held)
    converted = {name: buffer.converted(weight) for name, weight in large.items()}
    model = bind(graph, {**live, **converted}, validate=False)
    try:
        convert_precision(model, *types)
    except RuntimeError as error:
        if not is_failure(error):
            raise
        log.info("A graph keeps its %s weights twice: %s.", types[0], last_line(error))
        return None
    return model, (buffer,)


def _without_float16(graph: WeightlessModel, live: Mapping[str, torch.Tensor], precision: str) -> ov.Model:
    """The bound model, in f32 without float16: where the device removes that, it loses the bias of a layer that is converted."""
    model, half = bind(graph, live), TO_OV[torch.float16]
    if precision != "f32" or all(each.get_element_type() != half for node in model.get_ops() for each in node.outputs()):
        return model
    try:
        convert_precision(model, torch.float16, torch.float32)
    except RuntimeError as error:
        if not is_failure(error):
            raise
        return bind(graph, live)
    return model
