"""OpenVINO's devices: a list of them, what they can do, and clear errors for what they cannot."""

from __future__ import annotations

import ov_backend.core.telemetry  # noqa: F401  # before OpenVINO

# isort: split
import difflib
import functools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from ov_backend.core.errors import DeviceError, cleaned, pass_on_signals, short_repr
from ov_backend.core.settings import Settings, environment

VIRTUAL = ("AUTO", "HETERO", "MULTI", "BATCH")
_CAPABILITY = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}


@dataclass(frozen=True)
class Device:
    """One physical device, as it is shown to users."""

    name: str
    full_name: str
    precisions: tuple[str, ...]
    default_precision: str

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dict, for JSON."""
        return {**asdict(self), "precisions": list(self.precisions)}


#: Processes in which OpenVINO has started threads: this one, or one from which it was forked.
_with_threads: set[int] = set()


@functools.lru_cache(maxsize=1)
def core() -> ov.Core:
    """The process-wide OpenVINO runtime; loading its plugins takes a while."""
    return ov.Core()


def starts_threads() -> None:
    """OpenVINO starts threads in this process, in order to compile."""
    _with_threads.add(os.getpid())


def lacks_threads() -> bool:
    """Whether this process was forked from one in which OpenVINO had started threads: they stay there, and it waits for them."""
    return bool(_with_threads) and os.getpid() not in _with_threads


def openvino_version() -> str:
    """OpenVINO's version and build, a part of the keys of stored graphs."""
    return str(ov.__version__)


def list_devices() -> list[Device]:
    """Every physical device that OpenVINO has found on this machine, the CPU first."""
    return [_describe(name) for name in _names(core())]


def look_again() -> None:
    """Let OpenVINO look for devices anew at the next question, because the user asks for that."""
    _names.cache_clear()


@functools.lru_cache(maxsize=1)
def _names(runtime: ov.Core) -> tuple[str, ...]:
    """The names of the devices, asked once: each look loads the plugins again whose drivers are missing, and glibc may end the
    process where another thread begins while a library cannot be loaded."""
    return tuple(runtime.available_devices)


def _describe(name: str) -> Device:
    runtime = core()
    full_name = str(runtime.get_property(name, "FULL_DEVICE_NAME")).strip()
    capabilities = {str(c) for c in runtime.get_property(name, "OPTIMIZATION_CAPABILITIES")}
    precisions = tuple(p for p, capability in _CAPABILITY.items() if capability in capabilities)
    hint = _type_name(runtime.get_property(name, "INFERENCE_PRECISION_HINT"))
    if name == "CPU" and instructions_are_limited():  # OpenVINO asks the processor, and then finds no code for bf16
        precisions, hint = ("f32",), "f32"
    return Device(name, full_name, precisions, hint if hint in _CAPABILITY else precisions[0] if precisions else "f32")


def instructions_are_limited() -> bool:
    """Whether ``ONEDNN_MAX_CPU_ISA`` asks for less than AVX-512, which OpenVINO 2026.4 heeds in one place and not in another."""
    limit = (environment("ONEDNN_MAX_CPU_ISA") or "").upper()
    return limit not in ("", "ALL", "DEFAULT") and not limit.startswith(("AVX512", "AVX10"))


def _type_name(value: Any) -> str:
    return value.to_string() if isinstance(value, ov.Type) else str(value)


def members(device: str) -> list[str]:
    """The physical devices behind a name: ``AUTO:GPU,CPU`` is GPU and CPU, ``AUTO`` is all of them.

    Raises:
        DeviceError: there is no such device; the message lists the available ones.
    """
    available = list(_names(core()))
    head, colon, rest = device.partition(":")
    if head not in VIRTUAL:
        names = [device]
    elif colon:
        names = [part.strip().split("(")[0] for part in rest.split(",") if part.strip(" -")]
    elif head == "AUTO":
        return available
    else:
        names = []
    for name in names:
        bare = name.lstrip("-")
        if bare not in available and not any(a.split(".")[0] == bare for a in available):
            raise DeviceError(
                f"Device {name[:100]!r} is not on this machine; OpenVINO finds {', '.join(available)}"
                " (AUTO and HETERO:a,b combine them). Choose one of these, or install the device's driver."
            )
    excluded = {name.lstrip("-") for name in names if name.startswith("-")}
    rest_of_all = [name for name in available if not {name, name.split(".")[0]} & excluded] if excluded else []
    chosen = [name for name in names if not name.startswith("-")] or rest_of_all
    if not chosen:
        raise DeviceError(f"Device {device[:100]!r} names no device; write for example {head}:{','.join(available)}.")
    return chosen


def check(settings: Settings) -> None:
    """Make sure that the device exists and can compute in the given precision.

    Raises:
        DeviceError: it does not, or it cannot; the message lists what is available.
    """
    physical = members(settings.device)
    if settings.precision == "auto":
        return
    if settings.precision == "int8":
        if physical != ["CPU"]:
            raise DeviceError(f"int8 is for the CPU alone, and not for {settings.device}. Choose the device CPU, or 'auto'.")
        return
    for name in physical:
        device = next((_describe(each) for each in _names(core()) if name in (each, each.split(".")[0])), None)
        if device is not None and settings.precision not in device.precisions:
            raise DeviceError(
                f"{device.full_name} ({name}) cannot compute in {settings.precision}; it can do"
                f" {', '.join(device.precisions)}. Choose one of these or 'auto'."
            )


def resolved_precision(settings: Settings) -> str:
    """The precision that the device computes in; "auto" becomes the device's default, as does what is not in "int8"."""
    if settings.precision not in ("auto", "int8"):
        return settings.precision
    return _describe(_existing(members(settings.device)[0])).default_precision


def takes_autocast_types(settings: Settings) -> bool:
    """Whether a model gets the types of PyTorch's autocast: on the CPU in bf16, unless the user chose otherwise."""
    if members(settings.device) != ["CPU"] or {"INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"} & set(settings.config):
        return False
    return resolved_precision(settings) == "bf16"


def _existing(name: str) -> str:
    available = list(_names(core()))
    return name if name in available else next(a for a in available if a.split(".")[0] == name)


def exports(device: str) -> bool:
    """Whether this device's compiled models can be exported and imported."""
    if device.partition(":")[0] in VIRTUAL:
        return False
    return "EXPORT_IMPORT" in {str(c) for c in core().get_property(_existing(device), "OPTIMIZATION_CAPABILITIES")}


def full_name(device: str) -> str:
    """The vendor's name of a physical device."""
    return str(core().get_property(_existing(device), "FULL_DEVICE_NAME")).strip()


def accepts_properties(settings: Settings) -> bool:
    """Whether the device compiles the smallest of models with the properties of these settings."""
    return not _problem(settings.device, compile_config(settings))


@functools.lru_cache(maxsize=64)
def check_properties(settings: Settings) -> None:
    """Make sure that the device takes every property of ``settings.config``.

    Raises:
        DeviceError: it does not know one, or not the value; the message names it.
    """
    if not settings.config:
        return
    physical, runtime = members(settings.device), core()
    own = {*runtime.get_property(settings.device.partition(":")[0], "SUPPORTED_PROPERTIES"), "DEVICE_PROPERTIES"}
    known = own.union(*(runtime.get_property(_existing(each), "SUPPORTED_PROPERTIES") for each in physical))
    for name, value in settings.config.items():
        problem = _problem(settings.device, {name: value})
        if not problem and settings.device not in physical and name not in own:
            problems = [_problem(each, {name: value}) for each in physical]  # AUTO and its like take what nobody knows
            problem = problems[0] if all(problems) else ""
        if problem:
            close = [] if name in known else difflib.get_close_matches(name.upper(), known, n=1)
            raise DeviceError(
                f"config sets {short_repr(name)} to {short_repr(value)}, which {settings.device} does not take:"
                f" {problem.rstrip('. ;')}. {f'Did you mean {close[0]!r}? ' if close else ''}Correct it, or leave it out."
            )


def _problem(device: str, config: Mapping[str, Any]) -> str:
    """What OpenVINO says against these properties where it compiles the smallest of models, or ""."""
    x = opset13.parameter([1], np.float32)
    try:
        core().compile_model(ov.Model([opset13.relu(x)], [x]), device, dict(config))
    except (RuntimeError, TypeError) as error:  # it takes no objects of some types
        pass_on_signals(error)
        lines = [line for line in str(error).splitlines() if line.strip(" ;") and not line.startswith("Exception from")]
        return cleaned(" ".join(" ".join(lines[-1:]).split()))
    return ""


def compile_config(settings: Settings) -> dict[str, Any]:
    """The properties for ``compile_model``: this package's own, overridden by the user's ``config``."""
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if settings.precision not in ("auto", "int8"):
        config["INFERENCE_PRECISION_HINT"] = settings.precision
    elif settings.device == "CPU" and instructions_are_limited():
        config["INFERENCE_PRECISION_HINT"] = "f32"
    config.update(settings.config)
    return config
