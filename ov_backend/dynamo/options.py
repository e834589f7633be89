"""The options of ``torch.compile(..., backend="openvino_fx", options={...})`` under the names that the guides give them.

Most are fields of :class:`ov_backend.Settings`. The others are spellings that programmers know from other backends of
this kind, and are translated here.
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


def _operators(given: dict[str, Any], value: Any) -> None:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise SettingsError(f"torch_executed_ops is {value!r}; it must be a set of operators.")
    given["disabled_ops"] = [*given.get("disabled_ops", ()), *value]


def _precisions(given: dict[str, Any], value: Any) -> None:
    """The narrowest precision that is enabled is the one to compute in."""
    kinds = set(value) if isinstance(value, (set, frozenset, list, tuple)) else {value}
    unknown = [kind for kind in kinds if kind not in _PRECISION]
    if unknown or not kinds:
        raise SettingsError(f"enabled_precisions is {value!r}; it must hold torch.float32, torch.float16 or torch.bfloat16.")
    if "precision" in given:
        raise SettingsError("Give either precision or enabled_precisions, not both.")
    narrow = [_PRECISION[kind] for kind in (torch.float16, torch.bfloat16) if kind in kinds]
    if len(narrow) > 1:
        raise SettingsError("enabled_precisions holds torch.float16 and torch.bfloat16; choose one of them.")
    given["precision"] = narrow[0] if narrow else "f32"


def _level(given: dict[str, Any], value: Any) -> None:
    """0 and 1: OpenVINO's transformations kept exact (f32, no dynamic quantization); 2 to 5: the device's own choice."""
    if isinstance(value, bool) or value not in _LEVELS:
        raise SettingsError(f"optimization_level is {value!r}; it must be a whole number from 0 to 5.")
    if value <= 1:
        given["config"] = {"EXECUTION_MODE_HINT": "ACCURACY", **dict(given.get("config") or {})}


_TRANSLATED: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "torch_executed_ops": _operators,
    "enabled_precisions": _precisions,
    "optimization_level": _level,
}


def known() -> list[str]:
    """Every option there is."""
    return [*Settings.__dataclass_fields__, *_TRANSLATED]


def parse(options: Mapping[str, Any] | None) -> Settings:
    """The settings of one ``torch.compile`` call.

    As in OpenVINO's own guide, caching on disk is off here unless asked for by option or environment, and a subgraph that
    cannot be converted goes to inductor.

    Raises:
        SettingsError: an option is unknown (the message lists the known ones) or has an unusable value.
    """
    given = dict(options or {})
    for name in given:
        if name not in known():
            close = difflib.get_close_matches(str(name), known(), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SettingsError(f"Unknown option {name!r}.{hint} Known options: {', '.join(known())}.")
    for name in [name for name in given if name in _TRANSLATED]:
        _TRANSLATED[name](given, given.pop(name))
    if "model_caching" not in given and environment(ENV_CACHING) is None:
        given["model_caching"] = False
    given.setdefault("fallback", "inductor")
    settings = Settings(**given)
    selected(settings.decompositions)  # so that one that cannot be is told at once
    return settings
