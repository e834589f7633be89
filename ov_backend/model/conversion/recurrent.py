"""Converts the recurrent layers of ``capture/opaque_operators.py``: OpenVINO has one operation for all time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from openvino import opset13 as ov
from openvino.frontend.pytorch import ConversionExtension

from ov_backend.core.autocast_regions import PREFIX


def extensions() -> list[ConversionExtension]:
    """What the frontend needs to convert the layers."""
    conversions: dict[str, Callable[..., Any]] = {"lstm": _lstm, "gru": _gru}
    conversions |= {f"rnn_{kind}": partial(_rnn, kind) for kind in ("tanh", "relu")}
    return [ConversionExtension(f"ov_backend.{name}_layer.default", partial(_layer, each)) for name, each in conversions.items()]


def _layer(sequence: Callable[..., Any], context: Any) -> list[Any]:
    """One layer in one direction; the result joins its outputs and its last states in time."""
    x, w, r, b, more_b, h, c = map(context.get_input, range(7))
    direction = "reverse" if context.get_values_from_const_input(7) else "forward"
    batch, steps = (ov.gather(ov.shape_of(x), ov.constant([dim]), ov.constant(0)) for dim in (1, 0))
    size = r.get_partial_shape()[1].get_length()
    given = (_swapped(x), _swapped(h), _swapped(c), ov.broadcast(steps, batch), w, r, b, more_b, size, direction)
    computed = sequence(*given)
    if context.get_values_from_const_input(8):
        computed.set_friendly_name(PREFIX + computed.get_name())
    y, *states = computed.outputs()
    return [ov.concat([_swapped(ov.squeeze(y, ov.constant([1]))), *map(_swapped, states)], 0).output(0)]


def _lstm(x: Any, h: Any, c: Any, steps: Any, w: Any, r: Any, b: Any, more_b: Any, size: int, direction: str) -> Any:
    in_order = partial(_gates, order=(1, 0, 2, 3))  # OpenVINO has the forget gate first
    return ov.lstm_sequence(x, h, c, steps, in_order(w), in_order(r), in_order(ov.add(b, more_b)), size, direction)


def _gru(x: Any, h: Any, c: Any, steps: Any, w: Any, r: Any, b: Any, more_b: Any, size: int, direction: str) -> Any:
    in_order = partial(_gates, order=(1, 0, 2))  # OpenVINO has the update gate first
    both, new, more_new = ov.add(b, more_b), *(ov.split(each, ov.constant(0), 3).outputs()[2] for each in (b, more_b))
    reset, update, _ = ov.split(both, ov.constant(0), 3).outputs()
    biases = ov.unsqueeze(ov.concat([update, reset, new, more_new], 0), ov.constant(0))
    return ov.gru_sequence(x, h, steps, in_order(w), in_order(r), biases, size, direction, linear_before_reset=True)


def _rnn(kind: str, x: Any, h: Any, c: Any, steps: Any, w: Any, r: Any, b: Any, more_b: Any, size: int, direction: str) -> Any:
    first = partial(ov.unsqueeze, axes=ov.constant(0))
    return ov.rnn_sequence(x, h, steps, first(w), first(r), first(ov.add(b, more_b)), size, direction, activations=[kind])


def _swapped(x: Any) -> Any:
    """The first two of three dimensions exchanged."""
    return ov.transpose(x, ov.constant([1, 0, 2]))


def _gates(weight: Any, order: Sequence[int]) -> Any:
    """Weights or biases with their gates in another order, for one direction."""
    gates = ov.split(weight, ov.constant(0), len(order)).outputs()
    return ov.unsqueeze(ov.concat([gates[i] for i in order], 0), ov.constant(0))
