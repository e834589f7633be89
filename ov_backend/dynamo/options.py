"""The options of ``torch.compile(..., backend="openvino_fx", options={...})``.

Most are fields of :class:`ov_backend.Settings`. The others are names from the guides of similar backends, and are translated to
such fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ov_backend.errors import SettingsError
from ov_backend.lowering.decompositions import selected
from ov_backend.settings import ENV_CACHING, Settings, environment

_PRECISION = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_LEVELS = range(6)


def _operators(values: dict[str, Any], value: Any) -> None:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise SettingsError(f"torch_executed_ops is {value!r}; it must be a set of operators.")
    values["disabled_ops"] = [*values.get("disabled_ops", ()), *value]


def _precisions(values: dict[str, Any], value: Any) -> None:
    """Select the narrowest precision that is enabled."""
    kinds = set(value) if isinstance(value, (set, frozenset, list, tuple)) else {value}
    unknown = [kind for kind in kinds if kind not in _PRECISION]
    if unknown or not kinds:
        raise SettingsError(f"enabled_precisions is {value!r}; it must hold torch.float32, torch.float16 or torch.bfloat16.")
    if "precision" in values:
        raise SettingsError("Give either precision or enabled_precisions, not both.")
    narrow = [_PRECISION[kind] for kind in (torch.float16, torch.bfloat16) if kind in kinds]
    if len(narrow) > 1:
        raise SettingsError("enabled_precisions holds torch.float16 and torch.bfloat16; choose one of them.")
    values["precision"] = narrow[0] if narrow else "f32"


def _level(values: dict[str, Any], value: Any) -> None:
    """0 and 1 request accuracy from OpenVINO (f32, no dynamic quantization); 2 to 5 are the device's default."""
    if isinstance(value, bool) or value not in _LEVELS:
        raise SettingsError(f"optimization_level is {value!r}; it must be a whole number from 0 to 5.")
    if not isinstance(values.get("config") or {}, Mapping):
        raise SettingsError(f"config is {values['config']!r}; it must be a dict of OpenVINO properties.")
    if value <= 1:
        values["config"] = {"EXECUTION_MODE_HINT": "ACCURACY", **dict(values.get("config") or {})}


_TRANSLATED: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "torch_executed_ops": _operators,
    "enabled_precisions": _precisions,
    "optimization_level": _level,
}


def names() -> list[str]:
    """The names of all options."""
    return [*Settings.__dataclass_fields__, *_TRANSLATED]


def parse(options: Mapping[str, Any] | None) -> Settings:
    """The settings of one ``torch.compile`` call.

    As in OpenVINO's own guide, caching on disk is off unless an option or the environment asks for it, and a graph that
    cannot be converted runs in inductor.

    Raises:
        SettingsError: an option is unknown (the message lists the known ones) or has an unusable value.
    """
    values = dict(options or {})
    for name in values:
        if name not in names():
            close = difflib.get_close_matches(str(name), names(), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SettingsError(f"Unknown option {name!r}.{hint} Known options: {', '.join(names())}.")
    for name in [name for name in values if name in _TRANSLATED]:
        _TRANSLATED[name](values, values.pop(name))
    if "model_caching" not in values and environment(ENV_CACHING) is None:
        values["model_caching"] = False
    values.setdefault("fallback", "inductor")
    settings = Settings(**values)
    selected(settings.decompositions)  # raises now if one does not exist
    return settings
