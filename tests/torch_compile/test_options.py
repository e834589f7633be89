"""The options of the guides, each of them: it does what it says, for one call and no other."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.core.errors import DeviceError, SettingsError
from ov_backend.torch_compile import options
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x * 2).sin() + 1


def in_pytorch() -> set[str]:
    return {name for network in ov_backend.stats().values() for name in network["in_pytorch"]}


def test_device(compiled: Compile) -> None:
    x = torch.randn(3)
    agree(compiled(f, device="CPU")(x), f(x))
    torch._dynamo.reset()  # torch 2.1 warns that a function's other options take effect after that only
    with pytest.raises(Exception, match=r"'GPU.7' is not on this machine; OpenVINO finds CPU"):
        compiled(f, device="GPU.7")(x)


def test_aot_autograd(compiled: Compile) -> None:
    x = torch.randn(3, requires_grad=True)
    with torch.enable_grad():
        y = compiled(f, aot_autograd=True)(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        (expected,) = torch.autograd.grad(f(x).sum(), x)
    agree(gradient, expected)
    assert {name.split()[-1] for name in ov_backend.stats()} == {"forward", "backward"}
    assert calls() == 2


@pytest.mark.parametrize("caching", [True, False])
def test_model_caching_and_cache_dir(compiled: Compile, tmp_path: Path, caching: bool) -> None:
    compiled(f, model_caching=caching, cache_dir=str(tmp_path / "store"))(torch.randn(3))
    stored = list((tmp_path / "store").rglob("*")) if (tmp_path / "store").exists() else []
    assert bool(stored) is caching


def test_decompositions(compiled: Compile) -> None:
    x = torch.randn(3)
    agree(compiled(f, decompositions=[torch.ops.aten.silu.default], disabled_ops=["aten.sigmoid.default"])(x), f(x))
    assert in_pytorch() == {"aten.sigmoid.default"}  # so silu was decomposed, and its sigmoid disabled
    with pytest.raises(SettingsError, match=r"'aten.mm.default', which PyTorch cannot decompose"):
        options.parse({"decompositions": [torch.ops.aten.mm.default]})


@pytest.mark.parametrize("option", ["disabled_ops", "torch_executed_ops"])
@pytest.mark.parametrize("spelling", [torch.ops.aten.sin.default, "torch.ops.aten.sin.default", "aten.sin"], ids=str)
def test_disabled_ops_and_torch_executed_ops(compiled: Compile, option: str, spelling: object) -> None:
    x = torch.randn(3)
    agree(compiled(f, **{option: [spelling]})(x), f(x))
    assert in_pytorch() == {"aten.sin.default"}


def test_config(compiled: Compile) -> None:
    x = torch.randn(3)
    agree(compiled(f, config={"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": 1})(x), f(x))


#: Properties that a device does not take, and what the message says beside the property's name.
REFUSED = {
    "unknown": ({"NO_SUCH_PROPERTY": 1}, "leave it out"),
    "misspelt": ({"PERFORMANCE_HINT": "LATENCY", "NUM_STREAM": 1}, "Did you mean 'NUM_STREAMS'"),
    "a bad value": ({"NUM_STREAMS": "many"}, "'many'"),
    "an unknown choice": ({"PERFORMANCE_HINT": "FAST"}, "FAST"),
    "an object": ({"PERFORMANCE_HINT": object()}, "<object object>((?!0x).)*leave it out"),
}


@pytest.mark.parametrize("device", ["CPU", "AUTO", "HETERO:CPU"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_property_that_the_device_does_not_take_is_one_error(case: str, device: str) -> None:
    config, said = REFUSED[case]
    options = {"config": config, "device": device, "fallback": "pytorch"}
    with pytest.raises(Exception, match=f"{list(config)[-1]}.*{said}"):
        torch.compile(f, backend="openvino_fx", options=options)(torch.randn(3))
    with pytest.raises(DeviceError, match=f"{list(config)[-1]}.*{said}"):
        ov_backend.accelerate({"net": torch.nn.Linear(2, 2)}, Settings(**options))
    with pytest.raises(DeviceError, match=list(config)[-1]):
        ov_backend.explain(f, torch.randn(3), options=options)


@pytest.mark.parametrize("config", [{"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 2}}}, {"NUM_STREAMS": 2}], ids=str)
def test_a_combination_takes_the_properties_of_its_devices(config: dict[str, object]) -> None:
    devices.check_properties(Settings(device="AUTO", config=config))


def test_min_block_size(compiled: Compile) -> None:
    x = torch.randn(3)
    given = {"disabled_ops": ["aten.silu"], "min_block_size": 2}
    agree(compiled(f, **given)(x), f(x))
    assert in_pytorch() == {"aten.silu.default", "aten.mul.Tensor"}  # sin and add are two in a row, mul is alone
    assert calls() == 1


def test_dry_run(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, "ov_backend"):
        agree(compiled(f, min_block_size=math.inf, disabled_ops=["aten.sin"])(x), f(x))
    assert calls() == 0
    assert "75 %" in caplog.text
    assert "aten.sin.default" in caplog.text


def test_enabled_precisions() -> None:
    assert options.parse({"enabled_precisions": {torch.float}}).precision == "f32"
    assert options.parse({"enabled_precisions": {torch.float, torch.bfloat16}}).precision == "bf16"
    assert options.parse({"enabled_precisions": {torch.half}}).precision == "f16"
    for wrong in ({torch.int8}, set(), {torch.half, torch.bfloat16}, "f32"):
        with pytest.raises(SettingsError, match="enabled_precisions"):
            options.parse({"enabled_precisions": wrong})
    with pytest.raises(SettingsError, match="not both"):
        options.parse({"enabled_precisions": {torch.float}, "precision": "f32"})


def test_truncate_long_and_double(compiled: Compile) -> None:
    x = torch.randn(4, dtype=torch.float64)
    exact = f(x)
    agree(compiled(f, truncate_long_and_double=True)(x), exact)
    assert calls() == 1
    assert not in_pytorch()


def test_settings_take_the_names_of_all_options() -> None:
    given = {"torch_executed_ops": {torch.ops.aten.sin.default}, "enabled_precisions": {torch.half}, "optimization_level": 1}
    settings = Settings(disabled_ops=["aten.cos.default"], config={"NUM_STREAMS": 1}, **given)
    assert settings.disabled_ops == ("aten.cos.default", "aten.sin.default")
    assert settings.precision == "f16"
    assert settings.config == {"EXECUTION_MODE_HINT": "ACCURACY", "NUM_STREAMS": 1}
    assert settings.replace(device="GPU").replace(device="CPU") == settings
    assert hash(settings.replace()) == hash(settings)
    assert set(options.names()) >= {field for affects in ("graph", "compile", "run") for field in settings.affecting(affects)}
    assert not set(given) & {field for affects in ("graph", "compile", "run") for field in settings.affecting(affects)}
    for name in given:
        with pytest.raises(SettingsError, match=name):
            Settings(**{name: object()})


def test_optimization_level() -> None:
    assert options.parse({"optimization_level": 0}).config == {"EXECUTION_MODE_HINT": "ACCURACY"}
    assert options.parse({"optimization_level": 5}).config == {}
    with pytest.raises(SettingsError, match="from 0 to 5"):
        options.parse({"optimization_level": 9})


def test_debug(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ov_backend"):
        compiled(f, debug=True, disabled_ops=["aten.sin"])(torch.randn(3))
    assert "aten.sin.default" in caplog.text
    assert "75 %" in caplog.text


def test_every_option_of_the_guides_at_once(compiled: Compile) -> None:
    given = {
        "truncate_long_and_double": True,
        "debug": True,
        "min_block_size": 2,
        "torch_executed_ops": {"torch.ops.aten.sub.Tensor"},
        "optimization_level": 4,
        "aot_autograd": False,
        "config": {"PERFORMANCE_HINT": "LATENCY"},
    }
    x = torch.randn(3)
    agree(compiled(f, **given)(x), f(x))


@pytest.mark.parametrize(
    "given,told",
    [
        ({"devise": "CPU"}, r"Unknown option 'devise'. Did you mean 'device'\? Known options: .*torch_executed_ops"),
        ({"use_python_runtime": True}, "Unknown option 'use_python_runtime'"),
        ([1], r"options is \[1\]; it must be a dict"),
        ({"device": 3}, "device is 3"),
        ({"precision": "int3"}, "precision is 'int3'; it must be one of auto, f32, bf16, f16, int8"),
        ({"aot_autograd": "maybe"}, "aot_autograd is 'maybe'; it must be true or false"),
        ({"model_caching": 7}, "model_caching is 7"),
        ({"cache_dir": 5}, "cache_dir is 5; it must be the path of a folder"),
        ({"disabled_ops": "aten.add"}, "disabled_ops is 'aten.add'; it must be a list"),
        ({"torch_executed_ops": "aten.add"}, "torch_executed_ops is 'aten.add'; it must be a list"),
        ({"decompositions": 1}, "decompositions is 1; it must be a list"),
        ({"config": []}, r"config is \[\]; it must be a dict"),
        ({"min_block_size": 0}, "min_block_size is 0"),
        ({"fallback": "never"}, "fallback is 'never'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_unknown_or_unusable_options_raise(given: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        options.parse(given)


def test_unknown_options_raise_through_torch_compile() -> None:
    with pytest.raises(Exception, match="Unknown option 'nonsense'"):
        torch.compile(f, backend="openvino_fx", options={"nonsense": 1})(torch.randn(3))


def test_environment_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENVINO_TORCH_BACKEND_DEVICE", "AUTO:CPU")
    monkeypatch.setenv("OPENVINO_TORCH_MODEL_CACHING", "True")
    monkeypatch.setenv("OPENVINO_TORCH_CACHE_DIR", str(tmp_path))
    found = options.parse(None)
    assert (found.device, found.model_caching, found.cache_dir) == ("AUTO:CPU", True, str(tmp_path))
    given = options.parse({"device": "CPU", "model_caching": False, "cache_dir": "here"})
    assert (given.device, given.model_caching, given.cache_dir) == ("CPU", False, "here")
    monkeypatch.setenv("OPENVINO_TORCH_MODEL_CACHING", "perhaps")
    with pytest.raises(SettingsError, match="OPENVINO_TORCH_MODEL_CACHING is 'perhaps'"):
        options.parse(None)


def test_no_option_leaks_into_another_call(compiled: Compile) -> None:
    x = torch.randn(5)
    one, other = compiled(f, disabled_ops=["aten.sin"]), compiled(lambda x: f(x) * 1, config={"INFERENCE_NUM_THREADS": 1})
    for _ in range(2):
        agree(one(x), f(x))
        agree(other(x), f(x))
    left = sorted(sorted(network["in_pytorch"]) for network in ov_backend.stats().values())
    assert left == [[], ["aten.sin.default"]]


def test_settings_that_differ_are_different_engines() -> None:
    assert Settings(device="CPU") == options.parse({"fallback": "pytorch", "device": "cpu", "model_caching": True})
    assert Settings(min_block_size=3) != Settings()
    assert hash(Settings(config={"A": 1})) == hash(Settings(config={"A": 1}))


def test_an_absent_device_is_one_sentence(compiled: Compile) -> None:
    with pytest.raises(Exception, match="Choose one of these") as told:
        compiled(f, device="NPU")(torch.randn(3))
    assert isinstance(told.value, DeviceError) or isinstance(told.value.__cause__, DeviceError) or "NPU" in str(told.value)
    assert not fallbacks()
