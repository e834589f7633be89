"""A weightless model with its weights, in the form in which the device gets it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import openvino as ov
import torch

from ov_backend import devices, transformations
from ov_backend.conversion.model import WeightlessModel
from ov_backend.errors import is_failure, last_line
from ov_backend.runtime.binding import COPY_BELOW_BYTES, bind
from ov_backend.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.settings import Settings
from ov_backend.transformations.autocast_types import cast_to_bfloat16
from ov_backend.transformations.convert_precision import WeightBuffer, convert_precision, weight_conversion
from ov_backend.transformations.low_precision import (
    Observe,
    Observer,
    Quantize,
    Range,
    Rewrite,
    observe,
    observed_value,
    quantize,
    weight_buffer,
)
from ov_backend.transformations.timestep_angles import keep_angles_exact

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Observed:
    """Reports the ranges that a graph has as additional results; ``pairs`` is what :func:`observe` returned."""

    pairs: Sequence[str]
    observer: Observer

    def report(self, request: ov.InferRequest, first: int) -> None:
        """Report the ranges of the last inference; ``first`` is the index of the first additional result."""
        ranges = {}
        for i, names in enumerate(self.pairs):
            low, high = (observed_value(request.get_output_tensor(first + 2 * i + j)) for j in range(2))
            ranges.update(dict.fromkeys(names.split("\n"), Range(low, high)))
        self.observer(ranges)


def without_overflow(model: ov.Model, device: str) -> dict[str, str]:
    """The property that keeps what a graph quantizes in floating point, on a CPU whose products of 8-bit integers overflow."""
    quantizes = any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
    if not quantizes or "CPU" not in devices.members(device) or multiplies_8_bits_exactly():
        return {}
    log.warning("Quantized layers compute in floating point: products of 8-bit integers overflow on a CPU without VNNI.")
    return {"LP_TRANSFORMS_MODE": "NO"}


def device_model(
    graph: WeightlessModel, live: Mapping[str, torch.Tensor], settings: Settings, rewrite: Rewrite | None
) -> tuple[ov.Model, tuple[WeightBuffer, ...], Observed | None, int]:
    """The model with its weights, as the device gets it; at last the number of its layers in 8 bits."""
    if devices.members(settings.device) != ["CPU"]:
        return bind(graph, live), (), None, 0
    buffers: tuple[WeightBuffer, ...]
    observed, in_8_bits, precision = None, 0, devices.resolved_precision(settings)
    if isinstance(rewrite, Quantize):
        model = bind(graph, live)
        buffer = weight_buffer(live, rewrite.ranges, _buffer_folder(settings))
        buffers, in_8_bits = (buffer,), len(quantize(model, live, rewrite.ranges, buffer))
        types = weight_conversion(list(live.values()), "f32")
        if types is not None:
            convert_precision(model, *types)
        if precision == "bf16":
            keep_angles_exact(model)
    else:
        model, buffers = _in_computed_type(graph, live, precision, settings) or (bind(graph, live), ())
        if isinstance(rewrite, Observe):
            observed = Observed(observe(model, live, precision), rewrite.observer)
    transformations.apply(model, precision)
    if devices.takes_autocast_types(settings) and not isinstance(rewrite, Quantize):
        buffers += cast_to_bfloat16(model, _buffer_folder(settings))
    return model, buffers, observed, in_8_bits


def _buffer_folder(settings: Settings) -> Path | None:
    """The folder of converted weights, whose memory is given back when they are compiled; None without one."""
    return settings.cache_folder if settings.model_caching else None


def _in_computed_type(
    graph: WeightlessModel, live: Mapping[str, torch.Tensor], precision: str, settings: Settings
) -> tuple[ov.Model, tuple[WeightBuffer, ...]] | None:
    """The bound model with half-precision weights converted to the type that the CPU computes in; None if none need it."""
    types = weight_conversion(list(live.values()), precision)
    if types is None:
        return None
    large = {name: w for name, w in live.items() if w.dtype is types[0] and w.nbytes >= COPY_BELOW_BYTES}
    buffer = WeightBuffer(types[1], list(large.values()), _buffer_folder(settings))
    converted = {name: buffer.convert(weight) for name, weight in large.items()}
    model = bind(graph, {**live, **converted}, validate=False)
    try:
        convert_precision(model, *types)
    except RuntimeError as error:
        if not is_failure(error):
            raise
        log.info("A graph keeps its %s weights twice: %s.", types[0], last_line(error))
        return None
    return model, (buffer,)
