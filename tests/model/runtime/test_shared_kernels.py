"""Parts of a graph whose generated kernels OpenVINO may take for each other have kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
import pytest
import torch

from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.engine.engine import Engine
from ov_backend.model.runtime import shared_kernels
from ov_backend.model.runtime.shared_kernels import KERNELS, may_confuse
from tests.helpers import networks
from tests.helpers.small import Small, assert_right, engine_for, inputs

KINDS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "sum": lambda x, number: x + number,
    "difference": lambda x, number: number - x,
    "product": lambda x, number: (x + 1) * number,
    "quotient": lambda x, number: (x + 1) / (number + 0.125),
    "largest": lambda x, number: torch.maximum(x, torch.tensor(number)),
    "power": lambda x, number: (x + 1.5) ** (number / 64),
    "choice": lambda x, number: torch.where(x > number, number, x),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (2, 5), (3,)])
def test_operators_with_other_numbers_have_kernels_of_their_own(kind: str, shape: tuple[int, ...]) -> None:
    """With kernels shared, OpenVINO 2026.4 gives some of these sums the number of another one."""
    _assert_own_kernels("CPU", KINDS[kind], torch.zeros(shape))


@pytest.mark.parametrize("device", ["CPU", "AUTO", "HETERO:CPU", "MULTI:CPU"])
def test_sums_with_other_numbers_have_kernels_of_their_own_on_every_device(device: str) -> None:
    _assert_own_kernels(device, KINDS["sum"], torch.zeros(2, 5, dtype=torch.bfloat16))


def _assert_own_kernels(device: str, kind: Callable[[torch.Tensor, float], torch.Tensor], x: torch.Tensor) -> None:
    numbers = [*map(float, range(-130, 131)), *(0.25 + number for number in range(-100, 100))]

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        return [kind(x, number) for number in numbers]

    options = {"device": device, "precision": "f32", "fallback": "raise"}
    for got, want in zip(torch.compile(results, backend="openvino_fx", options=options)(x), results(x), strict=True):
        torch.testing.assert_close(got, want)


def _model(*steps: Callable[[Any], Any], shape: tuple[int, ...] = (2, 3)) -> ov.Model:
    x = ops.parameter(shape, np.float32)
    return ov.Model([step(x) for step in steps], [x])


def _number(value: float, kind: Any = np.float32) -> Any:
    return ops.constant(np.array(value, kind))


def test_only_different_numbers_at_like_places_are_confused() -> None:
    one, two = _number(1), _number(2)
    assert not may_confuse(_model(lambda x: ops.add(x, one), lambda x: ops.multiply(x, two), lambda x: ops.power(x, _number(3))))
    assert not may_confuse(_model(lambda x: ops.add(ops.add(x, one), one)))
    assert may_confuse(_model(lambda x: ops.add(ops.add(x, one), two)))
    assert may_confuse(_model(lambda x: ops.add(x, one), lambda x: ops.subtract(two, x)))
    assert may_confuse(_model(lambda x: ops.multiply(x, one), lambda x: ops.divide(x, two)))
    vector = ops.constant(np.array([1, 2, 3], np.float32))
    assert not may_confuse(_model(lambda x: ops.add(x, one), lambda x: ops.add(x, vector)))
    assert not may_confuse(_model(lambda x: ops.add(x, one), lambda x: ops.add(ops.reshape(x, np.array([6]), False), two)))


def test_numbers_that_the_device_folds_are_numbers() -> None:
    half = ops.convert(ops.constant(np.array([[0.5]], np.float16)), np.float32)
    folded = ops.multiply(_number(3), ops.reshape(half, np.array([1]), False))
    assert may_confuse(_model(lambda x: ops.add(x, folded), lambda x: ops.add(x, _number(1))))
    assert not may_confuse(_model(lambda x: ops.add(x, folded), lambda x: ops.add(ops.relu(x), folded)))
    vector = ops.constant(np.array([1, 2, 3], np.float32))
    table = ops.add(ops.add(vector, _number(1)), _number(2))
    assert not may_confuse(_model(lambda x: ops.multiply(x, table), shape=(3,))), "the table is computed once"


def test_networks_of_stable_diffusion_share_kernels(monkeypatch: pytest.MonkeyPatch, strict: Callable[..., Settings]) -> None:
    """Else a step may take longer."""
    seen: list[bool] = []
    monkeypatch.setattr(shared_kernels, "may_confuse", lambda model: seen.append(may_confuse(model)) or seen[-1])
    engine, unet = Engine(strict()), networks.unet()
    with torch.no_grad():
        engine.network("unet", unet)(torch.randn(2, 4, 8, 8), torch.tensor([3, 3]), torch.randn(2, 7, networks.CONTEXT))
        engine.network("vae_decode", networks.vae_decoder())(torch.randn(1, 4, 8, 8))
    assert seen == [False, False]


def test_what_the_user_sets_is_taken(strict: Callable[..., Settings]) -> None:
    module = Small()
    network = engine_for(strict(config={KERNELS: 7}), module)
    assert_right(network, module, *inputs())


def test_a_device_without_the_property_compiles(monkeypatch: pytest.MonkeyPatch, strict: Callable[..., Settings]) -> None:
    monkeypatch.setattr(shared_kernels, "KERNELS", "A_NAME_THAT_NO_VERSION_HAS")
    shared_kernels._takes_kernels.cache_clear()
    try:
        assert not shared_kernels._takes_kernels()
        assert devices.list_devices()[0].name == "CPU"
        module = Small()
        assert_right(engine_for(strict(), module), module, *inputs())
    finally:
        shared_kernels._takes_kernels.cache_clear()
