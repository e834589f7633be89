"""8-bit integer arithmetic for the layers of a bound model, and the ranges that it needs.

An activation gets a FakeQuantize operator, and a weight becomes int8 with one factor for each output channel. The CPU device's
own passes turn that into layers that multiply 8-bit integers. What surrounds them stays in the device's own precision.

An activation has one range for all of its channels. A factor for each channel that moves differences between channels into the
weight (Xiao et al. 2022, SmoothQuant) makes the calls that were observed more exact. It makes pictures of other prompts worse,
because each channel then ends at its own largest value: docs/dropped.md has the figures.
"""

from __future__ import annotations

import ov_backend.core.telemetry  # noqa: F401  # before OpenVINO

# isort: split
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import torch

from ov_backend.core.errors import NotFiniteWeight
from ov_backend.core.tensors import TO_OV, constant, share
from ov_backend.model.transformations.convert_precision import WeightBuffer
from ov_backend.model.transformations.layers_in_8_bits import Layer, weight_name, weighted_layers

#: Ranges are this much wider than what was observed, because other prompts have larger values.
MARGIN = 1.2
_F32 = TO_OV[torch.float32]
#: The type of the observed values, by what the device computes in.
_OBSERVED = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_LEVELS = 256
_LARGEST = 127


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value of an activation."""

    low: float
    high: float

    def joined(self, other: Range) -> Range:
        """The range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


#: Called after every inference with the ranges of that inference, by layer.
Observer = Callable[[Mapping[str, Range]], None]


@dataclass(frozen=True)
class Observe:
    """Compile in the device's precision, and report the ranges of the layers' inputs."""

    observer: Observer


@dataclass(frozen=True)
class Quantize:
    """Compile in 8 bits.

    Attributes:
        ranges: of the layers' inputs; a layer without one stays in the device's precision.
    """

    ranges: Mapping[str, Range]


Rewrite = Observe | Quantize


def observe(model: ov.Model, weights: Collection[str], precision: str) -> list[str]:
    """Add results to a model, in place: the smallest and then the largest value of every layer's input.

    The results have the type that the device computes in. Before a result of another type, the CPU device would compute
    everything in float32, back to the last convolution or matrix product; that is most of what is no such layer.

    Args:
        model: the model with its weights bound.
        weights: names of the live weights.
        precision: arithmetic of the device, "f32", "bf16" or "f16".

    Returns:
        the names of the layers, in the order of the pairs of results; layers with the same input share a pair, and their
        names stand in one string, separated by line feeds.
    """
    pairs = []
    for layers in _by_source(model, weights):
        source = layers[0].source
        axes = np.arange(len(source.get_shape()))
        for reduce in (ops.reduce_min, ops.reduce_max):
            model.add_results([ops.result(_cast(reduce(source, axes, False).output(0), TO_OV[_OBSERVED[precision]]))])
        pairs.append("\n".join(layer.name for layer in layers))
    model.validate_nodes_and_infer_types()
    return pairs


def observed_value(result: ov.Tensor) -> float:
    """The value of one of these results."""
    dtype = next(dtype for dtype in _OBSERVED.values() if TO_OV[dtype] == result.element_type)
    value = torch.empty((), dtype=dtype)
    result.copy_to(share(value))
    return float(value)


def quantize(
    model: ov.Model, weights: Mapping[str, torch.Tensor], ranges: Mapping[str, Range], buffer: WeightBuffer | None = None
) -> list[str]:
    """Replace layers, in place, by the form that the device computes in 8 bits.

    Args:
        model: the model with its weights bound.
        weights: the live weights by name.
        ranges: of the layers' inputs; a layer without a range is left as it is.
        buffer: memory for the 8-bit weights, see :func:`int8_buffer`; None leaves them to the model.

    Returns:
        the names of the layers that were replaced.

    Raises:
        NotFiniteWeight: behind a layer that has one, the next would make numbers of what it gives.
    """
    done: list[str] = []
    in_layers = {layer.weight for layer in weighted_layers(model, weights)}
    if (odd := next((name for name, weight in weights.items() if not _is_finite(weight)), None)) is not None:
        raise NotFiniteWeight(f"{odd} is not finite, which a computation in 8 bits would hide")
    ranges = {name: given for name, given in ranges.items() if given.low or given.high}  # else only zeros were seen
    largest = max((weights[name].numel() for name in in_layers), default=0)
    scratch = torch.empty(largest, dtype=torch.float32, device="cpu")  # whatever this process has chosen as default
    for group in _by_source(model, weights):
        matrices = [_Matrix.of(layer, weights[layer.weight]) for layer in group if layer.name in ranges]
        if matrices:
            names = [matrix.layer.name for matrix in matrices]
            quantized = _quantized(group[0].source, functools.reduce(Range.joined, (ranges[name] for name in names)))
            for matrix in matrices:
                _replace(matrix, quantized, scratch, buffer)
            done += names
    model.validate_nodes_and_infer_types()
    return done


def int8_buffer(weights: Mapping[str, torch.Tensor], layers: Collection[str], folder: Path | None) -> WeightBuffer:
    """Memory for the 8-bit weights of layers, whose pages can be dropped when the device has packed them.

    It must live as long as the model and what is compiled from it. Without a folder for its file it is ordinary memory.
    """
    known = (name for layer in layers if (name := weight_name(layer)) in weights)
    return WeightBuffer(torch.int8, [weights[name] for name in known], folder)


def _by_source(model: ov.Model, weights: Collection[str]) -> list[list[Layer]]:
    """The layers that can be quantized; those that read the same activation together."""
    groups: dict[tuple[str, bool], list[Layer]] = {}
    for layer in weighted_layers(model, weights):
        if not layer.left_out:
            groups.setdefault((layer.source_name, layer.is_convolution), []).append(layer)
    return list(groups.values())


@dataclass(frozen=True)
class _Matrix:
    """A layer's weight.

    Attributes:
        layer: the layer.
        weight: the live weight.
        largest: float32 of shape (output channels), the largest magnitude in each channel.
    """

    layer: Layer
    weight: torch.Tensor
    largest: torch.Tensor

    @classmethod
    def of(cls, layer: Layer, weight: torch.Tensor) -> _Matrix:
        """Look at every value once."""
        low, high = torch.aminmax(_by_channel(layer, weight).flatten(1), dim=1)
        return cls(layer, weight, torch.maximum(-low, high))

    def rounded(self, scratch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Whole numbers from -127 to 127, kept in ``scratch``, and the factor of each output channel.

        All weights share one piece of memory: getting 4 bytes for each value from the system takes as long as the rounding.
        """
        factor = torch.where(self.largest > 0, self.largest / _LARGEST, torch.ones_like(self.largest))
        values = _by_channel(self.layer, self.weight)
        factor = factor.view(-1, *[1] * (values.dim() - 1))
        out = scratch[: values.numel()].view(values.shape)
        return torch.div(values, factor, out=out).round_(), factor


def _by_channel(layer: Layer, weight: torch.Tensor) -> torch.Tensor:
    """The weight as float32 of shape (output channels, ...); a copy only of one in half precision."""
    weight = weight.detach().float()
    return weight if layer.is_convolution or layer.transposed else weight.t()


def _quantized(source: ov.Output, given: Range) -> ov.Node:
    bounds = [_constant(bound) for bound in _interval(MARGIN * given.low, MARGIN * given.high)]
    # a float16 model has float32 in here: its factors would be too small for float16
    return ops.fake_quantize(_cast(source, _F32), *bounds, *bounds, _LEVELS)


def _is_finite(weight: torch.Tensor) -> bool:
    """Whether a weight has neither NaN nor infinity; its sum has one of them, too, where it is too large for float32."""
    return not weight.is_floating_point() or bool(torch.isfinite(weight.detach().sum(dtype=torch.float32)))


def _interval(low: float, high: float) -> tuple[float, float]:
    """The interval of 256 values that holds a range, and in which zero is a value of its own."""
    low, high = min(low, 0.0), max(high, 0.0)
    if high - low < np.finfo(np.float32).tiny * _LEVELS:
        return 0.0, 1.0
    step = (high - low) / (_LEVELS - 1)
    zero = round(-low / step)
    return -zero * step, (_LEVELS - 1 - zero) * step


def _replace(matrix: _Matrix, quantized: ov.Node, scratch: torch.Tensor, buffer: WeightBuffer | None) -> None:
    layer, (rounded, factor) = matrix.layer, matrix.rounded(scratch)
    integers = buffer.convert(rounded) if buffer is not None else rounded.to(torch.int8).contiguous()
    weight = ops.multiply(ops.convert(constant(integers, shared=buffer is not None), "f32"), _constant(factor.numpy()))
    if layer.is_convolution:
        a = layer.node.get_attributes()
        pads = a["pads_begin"], a["pads_end"]
        new = ops.convolution(quantized, weight, a["strides"], *pads, a["dilations"], a.get("auto_pad", "explicit"))
    else:
        new = ops.matmul(quantized, weight, transpose_a=False, transpose_b=True)
    new.set_friendly_name(layer.node.get_friendly_name())
    result = _cast(new.output(0), layer.node.get_element_type())
    for target in layer.node.output(0).get_target_inputs():
        target.replace_source_output(result)


def _cast(value: ov.Output, element_type: ov.Type) -> ov.Output:
    return value if value.get_element_type() == element_type else ops.convert(value, element_type.to_string()).output(0)


def _constant(value: float | np.ndarray) -> ov.Node:
    return ops.constant(np.asarray(value, dtype=np.float32))
