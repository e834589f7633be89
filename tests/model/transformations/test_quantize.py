"""Layers in 8 bits, and what they are told apart by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.model.conversion.converter import convert
from ov_backend.model.runtime.bound_model import bind
from ov_backend.model.runtime.compiled_graph import CompiledGraph, bind_and_compile
from ov_backend.model.transformations.layers_in_8_bits import weighted_layers
from ov_backend.model.transformations.quantize import Observe, Quantize, Range, quantize
from tests.helpers.graphs import SETTINGS, traced
from tests.helpers.layers_in_8_bits import needs_vnni

Function = Callable[..., torch.Tensor]
F = torch.nn.functional


def model_of(function: Function, weights: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    """The weightless model of ``function(*weights, x)``."""
    return convert(traced(function, *weights.values(), x), [*weights], ["x"])


def observed(function: Function, weights: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    bind_and_compile(model_of(function, weights, x), weights, SETTINGS, rewrite=Observe(ranges.update))([x])
    return ranges


def in_8_bits(function: Function, weights: dict[str, torch.Tensor], x: torch.Tensor) -> CompiledGraph:
    rewrite = Quantize(observed(function, weights, x))
    return bind_and_compile(model_of(function, weights, x), weights, SETTINGS, rewrite=rewrite)


def types(graph: CompiledGraph) -> Counter[str]:
    """The types of the convolutions and matrix products in what the device runs."""
    nodes = graph._request.get_compiled_model().get_runtime_model().get_ops()
    info = [[node.get_rt_info()[name].astype(str) for name in ("layerType", "runtimePrecision")] for node in nodes]
    return Counter(element_type for kind, element_type in info if kind in ("Convolution", "FullyConnected", "MatMul"))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


CONVOLUTION = {"w": random(48, 32, 3, 3), "b": random(48)}
LINEAR = {"w": random(48, 32), "b": random(48)}
ZEROS = {**LINEAR, "w": LINEAR["w"] * (torch.arange(48) > 3)[:, None]}
PICTURE, ROWS = random(2, 32, 12, 12, seed=1), random(2, 40, 32, seed=1)
CASES: dict[str, tuple[Function, dict[str, torch.Tensor], torch.Tensor]] = {
    "a convolution": (lambda w, b, x: F.conv2d(x, w, b, padding=1), CONVOLUTION, PICTURE),
    "one with strides": (lambda w, b, x: F.conv2d(x, w, b, stride=2, padding=(1, 0)), CONVOLUTION, PICTURE),
    "one with dilations": (lambda w, b, x: F.conv2d(x, w, b, dilation=2), CONVOLUTION, PICTURE),
    "a layer of rows": (lambda w, b, x: F.linear(x.sin(), w, b), LINEAR, ROWS),
    "a product with a matrix": (lambda w, x: x.sin() @ w, {"w": random(32, 48)}, ROWS[0].repeat(2, 1)),
    "values above zero": (lambda w, b, x: F.linear(x.abs() + 3, w, b), LINEAR, ROWS),
    "values below zero": (lambda w, b, x: F.conv2d(-x.abs() - 1, w, b, padding=1), CONVOLUTION, PICTURE),
    "an output channel of zeros": (lambda w, b, x: F.linear(x.sin(), w, b), ZEROS, ROWS),
}


def two_layers(v: torch.Tensor, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return F.linear(F.linear(x.sin(), v).sin(), w)


@needs_vnni
@pytest.mark.parametrize("caching", [True, False], ids=["with a folder", "without"])
def test_layers_of_one_shape_keep_their_own_weights(strict: Callable[..., Settings], caching: bool) -> None:
    weights = {"v": random(32, 32, seed=2) / 6, "w": random(32, 32, seed=3) / 6}
    rewrite = Quantize(observed(two_layers, weights, ROWS))
    settings = strict(precision="int8", model_caching=caching)
    graph = bind_and_compile(model_of(two_layers, weights, ROWS), weights, settings, rewrite=rewrite)
    (result,), expected = graph([ROWS]), two_layers(*weights.values(), ROWS)
    assert graph.layers_in_8_bits == 2
    assert float((result - expected).norm() / expected.norm()) < 0.05


@needs_vnni
@pytest.mark.parametrize("case", CASES)
def test_a_layer_computes_in_8_bits_and_is_nearly_right(case: str) -> None:
    function, weights, x = CASES[case]
    graph = in_8_bits(function, weights, x)
    assert set(types(graph)) <= {"u8", "i8"}
    assert types(graph)
    (result,), expected = graph([x]), function(*weights.values(), x)
    assert float((result - expected).norm() / expected.norm()) < 0.02


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_weights_give_the_same_layers(dtype: torch.dtype) -> None:
    weights = {name: (0.001 * value).to(dtype) for name, value in CONVOLUTION.items()}  # small: factors that float16 has not
    x = PICTURE.to(dtype)
    graph = in_8_bits(lambda w, b, x: F.conv2d(x, w, b, padding=1), weights, x)
    assert set(types(graph)) <= {"u8", "i8"}
    (result,) = graph([x])
    expected = F.conv2d(x.float(), weights["w"].float(), weights["b"].float(), padding=1)
    assert result.dtype is dtype
    assert float((result.float() - expected).norm() / expected.norm()) < 0.02


@needs_vnni
def test_the_default_dtype_of_the_process_is_of_no_matter() -> None:
    function, weights, x = CASES["a layer of rows"]
    expected = in_8_bits(function, weights, x)([x])[0]
    torch.set_default_dtype(torch.bfloat16)  # as loaders of checkpoints do meanwhile
    try:
        actual = in_8_bits(function, weights, x)([x])[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(actual, expected)


def test_the_ranges_are_those_of_the_inputs() -> None:
    weights = {"a": random(48, 32), "b": random(64, 32), "c": random(32, 48)}

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = x.tanh()
        return F.linear(F.linear(x, a), c) + F.linear(x, b).sum()

    ranges = observed(function, weights, ROWS)
    inner = F.linear(ROWS.tanh(), weights["a"])
    assert ranges.keys() == {"a", "b", "c"}
    assert ranges["a"] == ranges["b"]
    assert ranges["a"].high == pytest.approx(float(ROWS.tanh().max()), rel=1e-4)
    assert ranges["c"].low == pytest.approx(float(inner.min()), rel=1e-4)
    assert ranges["c"].high == pytest.approx(float(inner.max()), rel=1e-4)


def test_a_weight_that_is_used_twice_gives_two_layers() -> None:
    weights = {"w": random(32, 32)}
    assert observed(lambda w, x: F.linear(F.linear(x.cos(), w).sin(), w), weights, ROWS).keys() == {"w", "w#2"}


def test_a_layer_of_which_only_zeros_were_seen_stays_as_it_is() -> None:
    function, weights, x = CASES["a convolution"]
    zero = Quantize({name: Range(0.0, 0.0) for name in observed(function, weights, x)})
    graph = bind_and_compile(model_of(function, weights, x), weights, SETTINGS, rewrite=zero)
    assert graph.layers_in_8_bits == 0
    assert types(graph) == {"f32": 1}
    assert in_8_bits(function, weights, x).layers_in_8_bits == 1


def test_a_layer_without_a_range_stays_as_it_is() -> None:
    weights = {"a": random(32, 32), "b": random(32, 32)}
    model = bind(model_of(lambda a, b, x: F.linear(F.linear(x.cos(), a).sin(), b), weights, ROWS), weights)
    assert quantize(model, weights, {"b": Range(-1.0, 1.0), "no such layer": Range(0.0, 1.0)}) == ["b"]


LEFT_OUT: dict[str, tuple[Function, dict[str, torch.Tensor], torch.Tensor]] = {
    "few rows": (lambda w, x: F.linear(x, w), {"w": random(48, 32)}, ROWS[0, :4]),
    "few channels, as": (lambda w, x: F.conv2d(x[:, :4], w), {"w": random(48, 4, 3, 3)}, PICTURE),
    "few channels": (lambda w, x: F.conv2d(x, w), {"w": random(4, 32, 3, 3)}, PICTURE),
    "reads an input": (lambda w, x: F.linear(x.reshape(80, 32), w), {"w": random(48, 32)}, ROWS),
    "reads a product": (lambda w, x: F.linear(x * x.sin(), w), {"w": random(48, 32)}, ROWS),
    "reads a sum": (lambda w, x: F.linear((x + x.sin()).reshape(80, 32), w), {"w": random(48, 32)}, ROWS),
    "a shortcut": (lambda w, x: F.conv2d(torch.cat([x, x.sin()], 1), w), {"w": random(32, 64, 1, 1)}, PICTURE),
}


@pytest.mark.parametrize("reason", LEFT_OUT)
def test_sensitive_layers_are_left_out_with_the_reason(reason: str) -> None:
    function, weights, x = LEFT_OUT[reason]
    (layer,) = weighted_layers(bind(model_of(function, weights, x), weights), weights)
    assert layer.left_out.startswith(reason)
    assert not observed(function, weights, x)


def gate(x: torch.Tensor) -> torch.Tensor:
    return x * x.sin()


def summed(x: torch.Tensor) -> torch.Tensor:
    return x + x.sin()


def left_out(function: Function, weights: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, str]:
    return {layer.name: layer.left_out for layer in weighted_layers(bind(model_of(function, weights, x), weights), weights)}


@pytest.mark.parametrize(("joined", "reason"), [(gate, "reads a product"), (summed, "reads a sum")])
@pytest.mark.parametrize(("side", "coarse"), [(4, True), (2, False), (1, False)])
@pytest.mark.parametrize("is_matrix", [True, False])
def test_layers_behind_a_gate_or_a_sum_are_left_out_at_the_finest_resolution_alone(
    joined: Function, reason: str, side: int, coarse: bool, is_matrix: bool
) -> None:
    """A network with two resolutions, as a UNet has; ``side``: how many times fewer rows the coarser one has."""

    def function(fine: torch.Tensor, down: torch.Tensor, low: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.linear(x.movedim(1, -1).reshape(-1, 32), weight) if is_matrix else F.conv2d(x, weight)

        smaller = F.conv2d(x.cos(), down, stride=2, padding=1).cos()
        smaller = torch.cat([smaller] * (4 // side), 2)
        return layer(joined(x), fine).sum() + layer(joined(smaller), low).sum()

    kernel = () if is_matrix else (1, 1)
    weights = {"fine": random(48, 32, *kernel), "down": random(32, 32, 3, 3), "low": random(48, 32, *kernel)}
    picture = random(1, 32, 16, 16)
    found = left_out(function, weights, picture)
    assert found["down"] == ""
    assert found["fine"].startswith(reason)
    assert found["low"] == "" if coarse else found["low"].startswith(reason)
    assert observed(function, weights, picture).keys() == {"down"} | ({"low"} if coarse else set())


def test_the_finest_resolution_is_that_of_layers_of_the_same_kind() -> None:
    """A ControlNet of SDXL has sums at full resolution, and gates from half of it on."""

    def function(zero: torch.Tensor, few: torch.Tensor, down: torch.Tensor, ff: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        smaller = F.conv2d(x.cos(), down, stride=2, padding=1).cos()
        larger = F.conv2d(gate(x), few).sum()  # of few channels: left out for another reason
        return F.conv2d(summed(x), zero).sum() + larger + F.conv2d(gate(smaller), ff).sum()

    one = (1, 1)
    weights = {"zero": random(32, 32, *one), "few": random(4, 32, *one), "down": random(32, 32, 3, 3), "ff": random(48, 32, *one)}
    assert left_out(function, weights, random(1, 32, 16, 16))["ff"].startswith("reads a product")


@pytest.mark.parametrize("text_rows", [40, 400])
def test_layers_of_a_transformer_are_left_out_for_its_prompt_and_its_picture_alike(text_rows: int) -> None:
    """Without resolutions, rows of another number are those of another stream."""

    def function(patches: torch.Tensor, picture: torch.Tensor, text: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        rows = F.conv2d(x, patches, stride=2).movedim(1, -1).reshape(-1, 32)
        prompt = rows.sum() + x.flatten()[: text_rows * 32].reshape(text_rows, 32)
        return F.linear(gate(rows.sin()), picture).sum() + F.linear(gate(prompt.cos()), text).sum()

    weights = {"patches": random(32, 32, 2, 2), "picture": random(48, 32), "text": random(48, 32)}
    found = left_out(function, weights, random(1, 32, 24, 24))
    assert all(found[name].startswith("reads a product") for name in ("picture", "text"))


def test_products_of_activations_and_constants_of_the_graph_are_no_layers() -> None:
    model = bind(model_of(lambda w, x: (x @ x.transpose(1, 2)) * w, {"w": random(1)}, ROWS), {"w": random(1)})
    assert not weighted_layers(model, {"w"})
