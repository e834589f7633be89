"""Models survive the way to bytes and back; bytes that are damaged or forged are refused with what the store takes for damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend.model.conversion.converter import WeightlessModel, convert
from ov_backend.model.conversion.serialization import dump, load
from ov_backend.model.runtime.compiled_graph import bind_and_compile
from ov_backend.store.entry_file import DAMAGE
from tests.helpers.graphs import SETTINGS, assert_close, traced

TABLE = torch.arange(6.0).reshape(2, 3)


def function(weight: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns an input, a weight, and a result twice, and holds a constant."""
    y = x @ weight + TABLE
    return y, x, weight, y, y.argmax(1)


def example() -> tuple[WeightlessModel, torch.Tensor, torch.Tensor]:
    weight, x = torch.randn(3, 3), torch.randn(2, 3)
    return convert(traced(function, weight, x), ["w"], ["x"], {"result": [1, "two"]}), weight, x


def test_round_trip() -> None:
    graph, weight, x = example()
    loaded = load(dump(graph))
    assert loaded is not graph
    for field in ("slots", "inputs", "outputs", "returns", "extra"):
        assert getattr(loaded, field) == getattr(graph, field), field
    assert_close(bind_and_compile(loaded, {"w": weight}, SETTINGS)([x]), list(function(weight, x)))


def test_no_weight_is_stored() -> None:
    files = dump(example()[0])
    assert set(files) == {"model.xml", "model.bin", "graph.json"}
    assert len(files["model.bin"]) < 200, "only constants of the code"


def test_symbolic_sizes_survive() -> None:
    graph = convert(traced(lambda x: x.relu() + 1, torch.randn(3, 4), symbolic=True), [], ["x"])
    loaded = load(dump(graph))
    assert loaded.inputs[0].shape == loaded.outputs[0].shape == (-1, -1)
    for x in (torch.randn(2, 5), torch.randn(7, 3)):
        assert_close(bind_and_compile(loaded, {}, SETTINGS)([x]), [x.relu() + 1])


@pytest.mark.parametrize("name", ["model.xml", "model.bin", "graph.json"])
def test_a_missing_file(name: str) -> None:
    files = dump(example()[0])
    del files[name]
    with pytest.raises(DAMAGE):
        load(files)


@pytest.mark.parametrize("name", ["model.xml", "model.bin", "graph.json"])
@pytest.mark.parametrize("part", [0, 1 / 2, 0.9])
def test_a_truncated_file(name: str, part: float) -> None:
    files = dump(example()[0])
    files[name] = files[name][: int(part * len(files[name]))]
    with pytest.raises(DAMAGE):
        load(files)


def test_files_of_another_model() -> None:
    files = dump(example()[0])
    other = dump(convert(traced(lambda x: x.relu(), torch.randn(4)), [], ["x"]))
    with pytest.raises(DAMAGE):
        load({**files, "graph.json": other["graph.json"]})


def _append(name: str, value: Any) -> Callable[[Any], object]:
    return lambda description: description[name].append(value)


def _set(name: str, i: int, field: str, value: Any) -> Callable[[Any], object]:
    return lambda description: description[name][i].update({field: value})


FORGED: dict[str, Callable[[Any], object]] = {
    "an output that is not there is returned": _append("returns", ["output", 9]),
    "an input that is not there is returned": _append("returns", ["input", 1]),
    "a weight that is not there is returned": _append("returns", ["slot", -1]),
    "something of an unknown kind is returned": _append("returns", ["secret", 0]),
    "an index that is no number": _append("returns", ["output", "0"]),
    "an index that is a truth value": _append("returns", ["output", True]),
    "a return of three parts": _append("returns", ["output", 0, 0]),
    "a return that is a number": _append("returns", 3),
    "no returns": lambda description: description.pop("returns"),
    "an output too many": lambda description: description["outputs"].append(description["outputs"][0]),
    "an output too few": lambda description: description["outputs"].pop(),
    "an output of another shape": _set("outputs", 0, "shape", [2, 4]),
    "an output of another dtype": _set("outputs", 0, "dtype", "int64"),
    "an input of another shape": _set("inputs", 0, "shape", [3, 3]),
    "an input of another rank": _set("inputs", 0, "shape", [3]),
    "an input of another dtype": _set("inputs", 0, "dtype", "float64"),
    "an unknown dtype": _set("inputs", 0, "dtype", "float12"),
    "a dtype that is a list": _set("inputs", 0, "dtype", []),
    "a size that is no number": _set("inputs", 0, "shape", ["2", 3]),
    "a size that is a fraction": _set("inputs", 0, "shape", [2.0, 3]),
    "a negative size": _set("inputs", 0, "shape", [-2, 3]),
    "a name that is no text": _set("slots", 0, "name", 7),
    "a weight fewer": lambda description: description["slots"].pop(),
    "inputs that are no list": lambda description: description.update(inputs=3),
    "extra that is no mapping": lambda description: description.update(extra=[1]),
    "a limit that is infinite": lambda description: description.update(limits=[["input", 0, float("-inf"), 1, None]]),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_description(name: str) -> None:
    files = dump(example()[0])
    description = json.loads(files["graph.json"])
    FORGED[name](description)
    with pytest.raises(DAMAGE):
        load({**files, "graph.json": json.dumps(description).encode()})


@pytest.mark.parametrize("text", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000], ids=range(6))
def test_a_description_that_is_none(text: bytes) -> None:
    with pytest.raises(DAMAGE):
        load({**dump(example()[0]), "graph.json": text})
