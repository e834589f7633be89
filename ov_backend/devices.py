"""OpenVINO's devices: which there are, what they can do, and a clear sentence where they cannot."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

import openvino as ov

from ov_backend.errors import DeviceError
from ov_backend.settings import Settings

VIRTUAL = ("AUTO", "HETERO", "MULTI", "BATCH")
_CAPABILITY = {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}


@dataclass(frozen=True)
class Device:
    """One device as a user knows it."""

    name: str
    full_name: str
    precisions: tuple[str, ...]
    default_precision: str

    def as_dict(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {**asdict(self), "precisions": list(self.precisions)}


@functools.lru_cache(maxsize=1)
def core() -> ov.Core:
    """The process's one OpenVINO runtime (loading its plugins takes a while)."""
    return ov.Core()


def openvino_version() -> str:
    """OpenVINO's version and build, as it goes into the keys of stored graphs."""
    return str(ov.__version__)


def list_devices() -> list[Device]:
    """Every physical device OpenVINO finds here, the CPU first."""
    return [_describe(name) for name in core().available_devices]


def _describe(name: str) -> Device:
    runtime = core()
    full_name = str(runtime.get_property(name, "FULL_DEVICE_NAME")).strip()
    capabilities = {str(c) for c in runtime.get_property(name, "OPTIMIZATION_CAPABILITIES")}
    precisions = tuple(p for p, capability in _CAPABILITY.items() if capability in capabilities)
    hint = _type_name(runtime.get_property(name, "INFERENCE_PRECISION_HINT"))
    return Device(name, full_name, precisions, hint if hint in _CAPABILITY else precisions[0] if precisions else "f32")


def _type_name(value: Any) -> str:
    return value.to_string() if isinstance(value, ov.Type) else str(value)


def members(device: str) -> list[str]:
    """The physical devices behind a name: ``AUTO:GPU,CPU`` is GPU and CPU, ``AUTO`` is all of them.

    Raises:
        DeviceError: no such device here; the message lists those that there are.
    """
    available = list(core().available_devices)
    head, _, rest = device.partition(":")
    if head not in VIRTUAL:
        wanted = [device]
    elif rest:
        wanted = [part.strip().split("(")[0] for part in rest.split(",") if part.strip(" -")]
    elif head == "AUTO":
        return available
    else:
        raise DeviceError(f"Device {device!r} names no devices; write for example {head}:{','.join(available)}.")
    for name in wanted:
        bare = name.lstrip("-")
        if bare not in available and not any(a.split(".")[0] == bare for a in available):
            raise DeviceError(
                f"Device {name!r} is not on this machine; OpenVINO finds {', '.join(available)}"
                " (AUTO and HETERO:a,b combine them). Choose one of these, or install the device's driver."
            )
    return [name for name in wanted if not name.startswith("-")]


def check(settings: Settings) -> None:
    """Make sure the device exists and can compute in the precision asked for.

    Raises:
        DeviceError: it does not, or cannot; the message says what is there instead.
    """
    physical = members(settings.device)
    if settings.precision == "auto":
        return
    for name in physical:
        found = [d for d in list_devices() if d.name == name or d.name.split(".")[0] == name]
        if found and settings.precision not in found[0].precisions:
            raise DeviceError(
                f"{found[0].full_name} ({name}) cannot compute in {settings.precision}; it can do"
                f" {', '.join(found[0].precisions)}. Choose one of these or 'auto'."
            )


def resolved_precision(settings: Settings) -> str:
    """The precision the device will really compute in: "auto" becomes the device's default."""
    if settings.precision != "auto":
        return settings.precision
    return _describe(_existing(members(settings.device)[0])).default_precision


def _existing(name: str) -> str:
    available = list(core().available_devices)
    return name if name in available else next(a for a in available if a.split(".")[0] == name)


def exports(device: str) -> bool:
    """Whether what this device compiles can be written down and read again."""
    if device.partition(":")[0] in VIRTUAL:
        return False
    return "EXPORT_IMPORT" in {str(c) for c in core().get_property(_existing(device), "OPTIMIZATION_CAPABILITIES")}


def full_name(device: str) -> str:
    """A physical device as its maker calls it."""
    return str(core().get_property(_existing(device), "FULL_DEVICE_NAME")).strip()


def compile_config(settings: Settings) -> dict[str, Any]:
    """The properties handed to ``compile_model``: ours, overridden by the user's own ``config``."""
    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if settings.precision != "auto":
        config["INFERENCE_PRECISION_HINT"] = settings.precision
    config.update(settings.config)
    return config
