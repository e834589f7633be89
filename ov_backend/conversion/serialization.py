"""Serialize a weightless model to named byte strings, and read it back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openvino as ov

from ov_backend.conversion.model import WeightlessModel, parameter_name, parameter_names, same_shape
from ov_backend.devices import core
from ov_backend.errors import ConversionError
from ov_backend.tensors import FROM_NAME, TO_OV, TensorSpec


def dump(graph: WeightlessModel) -> dict[str, bytes]:
    """The model as named byte strings, for the store."""
    with tempfile.TemporaryDirectory(prefix="ov_backend-") as folder:
        xml, weights = Path(folder, "model.xml"), Path(folder, "model.bin")
        ov.serialize(graph.model, str(xml), str(weights))
        files = {"model.xml": xml.read_bytes(), "model.bin": weights.read_bytes()}
    fields = ("slots", "inputs", "outputs")
    description: dict[str, Any] = {name: [asdict(spec) for spec in getattr(graph, name)] for name in fields}
    description.update(returns=graph.returns, extra=dict(graph.extra))
    return {**files, "graph.json": json.dumps(description, sort_keys=True).encode()}


def load(files: Mapping[str, bytes]) -> WeightlessModel:
    """A model from the byte strings of :func:`dump`.

    Raises:
        ConversionError: they do not describe a model.
    """
    try:
        description = json.loads(files["graph.json"])
        model = core().read_model(files["model.xml"], files["model.bin"] or b"\0")
        specs = {
            name: tuple(TensorSpec(s["name"], tuple(s["shape"]), s["dtype"]) for s in description[name])
            for name in ("slots", "inputs", "outputs")
        }
        returns = tuple((str(kind), int(i)) for kind, i in description["returns"])
        graph = WeightlessModel(model, specs["slots"], specs["inputs"], specs["outputs"], returns, description["extra"])
        _check(graph)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConversionError(f"the stored graph cannot be read: {error}") from error
    return graph


def _check(graph: WeightlessModel) -> None:
    """Compare the description with the model that was stored beside it."""
    names = dict(zip(parameter_names(len(graph.slots), len(graph.inputs)), [*graph.slots, *graph.inputs]))
    for parameter in graph.model.get_parameters():
        spec = names[parameter_name(parameter)]
        fits = same_shape(parameter.get_partial_shape(), spec)
        if not fits or parameter.get_element_type() != TO_OV[FROM_NAME[spec.dtype]]:
            raise ValueError(f"{spec} does not fit the model")
    outputs = graph.model.outputs
    if len(outputs) != len(graph.outputs) or not all(map(same_shape, (o.get_partial_shape() for o in outputs), graph.outputs)):
        raise ValueError("the outputs do not fit the model")
