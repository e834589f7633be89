"""What a device can do is its own answer, on any platform; combinations of devices answer as one device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.core.errors import DeviceError
from tests.helpers.small import Small, assert_right, engine_for, inputs

#: What the CPU device says of itself: capabilities, and the precision that it prefers.
CPUS = {
    "x86-64 with AVX2": (["FP32", "INT8", "EXPORT_IMPORT"], "f32"),
    "x86-64 with AMX": (["FP32", "BF16", "INT8", "EXPORT_IMPORT"], "bf16"),
    "arm64, as on macOS": (["FP32", "FP16", "EXPORT_IMPORT"], "f16"),
}


class Runtime:
    """OpenVINO's runtime on a machine with another CPU, as far as its properties are asked for."""

    available_devices = ("CPU",)

    def __init__(self, capabilities: list[str], precision: str) -> None:
        self._properties = {"OPTIMIZATION_CAPABILITIES": capabilities, "INFERENCE_PRECISION_HINT": precision}

    def get_property(self, device: str, name: str) -> Any:
        return self._properties.get(name, "a CPU")


@pytest.mark.parametrize("cpu", CPUS)
def test_the_default_precision_is_what_the_device_prefers(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities, precision = CPUS[cpu]
    monkeypatch.setattr(devices, "core", lambda: Runtime(capabilities, precision))
    (device,) = devices.list_devices()
    assert devices.resolved_precision(Settings()) == device.default_precision == precision
    assert "INFERENCE_PRECISION_HINT" not in devices.compile_config(Settings())
    for each in {"f32", "bf16", "f16"} - set(device.precisions):
        with pytest.raises(DeviceError, match=f"cannot compute in {each}; it can do f32"):
            devices.check(Settings(precision=each))
    for each in device.precisions:
        devices.check(Settings(precision=each))


def test_a_cpu_whose_instructions_are_limited_computes_in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO names what the processor has, and would find no code for bf16."""
    monkeypatch.setattr(devices, "core", lambda: Runtime(*CPUS["x86-64 with AMX"]))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2_VNNI")
    (device,) = devices.list_devices()
    assert (device.precisions, device.default_precision) == (("f32",), "f32")
    assert devices.compile_config(Settings())["INFERENCE_PRECISION_HINT"] == "f32"


def test_the_number_of_threads_is_left_to_the_device() -> None:
    assert devices.compile_config(Settings()) == {"PERFORMANCE_HINT": "LATENCY"}
    assert devices.compile_config(Settings(config={"INFERENCE_NUM_THREADS": 3}))["INFERENCE_NUM_THREADS"] == 3


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU", "HETERO:CPU", "MULTI:CPU"])
def test_a_combination_of_devices_answers_as_pytorch_does(device: str, strict: Callable[..., Settings]) -> None:
    module = Small()
    network = engine_for(strict(device=device), module)
    assert_right(network, module, *inputs())
    assert network.statistics.calls == 1


def test_only_a_look_for_devices_asks_the_runtime_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    real = devices.core()

    class Runtime:
        @property
        def available_devices(self) -> list[str]:
            looks.append(1)
            return ["CPU"]

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    runtime = Runtime()
    monkeypatch.setattr(devices, "core", lambda: runtime)
    for _ in range(3):
        devices.check(Settings(device="CPU", precision="f32"))
        devices.resolved_precision(Settings(device="CPU"))
        devices.list_devices()
    assert len(looks) == 1
    devices.look_again()
    devices.list_devices()
    assert len(looks) == 2
