"""A converted graph: an OpenVINO model whose weights are named parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import openvino as ov

from ov_backend.core.errors import ConversionError
from ov_backend.core.tensors import TensorSpec
from ov_backend.model.conversion.index_limits import Limit


@dataclass(frozen=True)
class WeightlessModel:
    """A converted graph without weights.

    Attributes:
        model: OpenVINO model; ``slot_<i>`` and ``input_<i>`` name its parameters.
        slots: the weights; the i-th is the parameter ``slot_<i>``.
        inputs: the inputs; the i-th is the parameter ``input_<i>``.
        outputs: the results of the model, each once.
        returns: the results of the call, in order: ``("output", i)``, ``("input", i)`` or ``("slot", i)``.
        extra: JSON values that are stored with the model (the structure of the call's result).
        limits: of positions, for which PyTorch would raise: ``("input", i, limit)``, ``("slot", i, limit)``, or with the least
            and the largest position in ``("output", i, limit)``.
    """

    model: ov.Model
    slots: tuple[TensorSpec, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    returns: tuple[tuple[str, int], ...]
    extra: Mapping[str, Any]
    limits: tuple[tuple[str, int, Limit], ...] = ()


class UnsupportedNodes(ConversionError):
    """Some operators have no conversion: ``nodes`` names the FX nodes, each with its operator."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self.nodes = dict(nodes)
        super().__init__("OpenVINO has no conversion for " + ", ".join(sorted(set(nodes.values()))))


def parameter_names(slots: int, inputs: int) -> list[str]:
    """The parameter names of a model with this number of slots and inputs, in order."""
    return [f"slot_{i}" for i in range(slots)] + [f"input_{i}" for i in range(inputs)]


def same_shape(shape: ov.PartialShape, spec: TensorSpec) -> bool:
    """Whether a shape of the model fits the graph's; a dimension that is dynamic in the graph must be so in the model."""
    if shape.rank.is_dynamic or len(shape) != len(spec.shape):
        return False
    return all(own.is_dynamic if size == -1 else own.is_dynamic or own == size for own, size in zip(shape, spec.shape))


def parameter_name(parameter: ov.Node) -> str:
    """The name of a parameter, ``slot_<i>`` or ``input_<i>``; of any other parameter its friendly name."""
    names = [n for n in parameter.output(0).get_names() if re.fullmatch(r"(slot|input)_\d+", n)]
    return names[0] if len(names) == 1 else str(parameter.get_friendly_name())
