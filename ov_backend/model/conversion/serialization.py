"""Serialize a weightless model to named byte strings, and read it back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openvino as ov

from ov_backend.core.devices import core
from ov_backend.core.tensors import FROM_NAME, TO_OV, TensorSpec
from ov_backend.model.conversion.index_limits import Limit
from ov_backend.model.conversion.model import WeightlessModel, parameter_name, parameter_names, same_shape


def dump(graph: WeightlessModel) -> dict[str, bytes]:
    """The model as named byte strings, for the store."""
    with tempfile.TemporaryDirectory(prefix="ov_backend-") as folder:
        xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(graph.model, str(xml), str(weights))
        files = {"model.xml": xml.read_bytes(), "model.bin": weights.read_bytes()}
    fields = ("slots", "inputs", "outputs")
    description: dict[str, Any] = {name: [asdict(spec) for spec in getattr(graph, name)] for name in fields}
    limits = [(kind, i, limit.low, limit.high, limit.other) for kind, i, limit in graph.limits]
    description.update(returns=graph.returns, extra=dict(graph.extra), limits=limits)
    return {**files, "graph.json": json.dumps(description).encode()}


def load(files: Mapping[str, bytes]) -> WeightlessModel:
    """A model from the byte strings of :func:`dump`. Raises one of the store's ``DAMAGE`` if they describe no model."""
    description = json.loads(files["graph.json"])
    model = core().read_model(files["model.xml"], files["model.bin"] or b"\0")
    slots, inputs, outputs = (tuple(map(_spec, description[name])) for name in ("slots", "inputs", "outputs"))
    returns = tuple((kind, i) for kind, i in description["returns"])
    limits = tuple((kind, i, Limit(int(low), int(high), other)) for kind, i, low, high, other in description["limits"])
    graph = WeightlessModel(model, slots, inputs, outputs, returns, dict(description["extra"]), limits)
    _check(graph)
    return graph


def _spec(description: Mapping[str, Any]) -> TensorSpec:
    name, shape, dtype = description["name"], description["shape"], description["dtype"]
    if not isinstance(name, str) or dtype not in FROM_NAME or any(type(size) is not int or size < -1 for size in shape):
        raise ValueError(f"{description} describes no tensor")
    strides = description["strides"]
    if strides is not None and (len(strides) != len(shape) or any(type(stride) is not int or stride < 0 for stride in strides)):
        raise ValueError(f"{description} describes no tensor")
    return TensorSpec(name, tuple(shape), dtype, None if strides is None else tuple(strides))


def _check(graph: WeightlessModel) -> None:
    """Compare the description with the model that was stored beside it, and its returns with its own lists."""
    specs = dict(zip(parameter_names(len(graph.slots), len(graph.inputs)), [*graph.slots, *graph.inputs]))
    for parameter in graph.model.get_parameters():
        _check_port(parameter.output(0), specs[parameter_name(parameter)])
    if len(graph.model.outputs) != len(graph.outputs):
        raise ValueError("the outputs do not fit the model")
    for port, spec in zip(graph.model.outputs, graph.outputs):
        _check_port(port, spec)
    lists: dict[str, Sequence[TensorSpec]] = {"output": graph.outputs, "input": graph.inputs, "slot": graph.slots}
    for kind, i in (*graph.returns, *((kind, i) for kind, i, _ in graph.limits)):
        if type(i) is not int or not 0 <= i < len(lists[kind]):
            raise ValueError(f"there is no {kind} {i}")


def _check_port(port: ov.Output, spec: TensorSpec) -> None:
    if not same_shape(port.get_partial_shape(), spec) or port.get_element_type() != TO_OV[FROM_NAME[spec.dtype]]:
        raise ValueError(f"{spec} does not fit the model")
