"""The options of ``torch.compile(..., backend="openvino_fx", options={...})``: the arguments of :class:`ov_backend.Settings`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ov_backend.core import devices
from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.core.settings import ENV_CACHING, Settings, check_names, environment
from ov_backend.trace.lowering.decompositions import selected


def names() -> list[str]:
    """The names of all options."""
    return list(Settings.__dataclass_fields__)


def parse(options: Mapping[str, Any] | None) -> Settings:
    """The settings of one ``torch.compile`` call.

    As in OpenVINO's own guide, caching on disk is off unless an option or the environment asks for it, and a graph that
    cannot be converted runs in inductor.

    Raises:
        SettingsError: an option is unknown (the message lists the known ones) or has an unusable value.
        DeviceError: the device does not exist, or does not take a property of ``config``.
    """
    if not isinstance(options, (Mapping, type(None))):
        raise SettingsError(f"options is {short_repr(options)}; it must be a dict, as {{'precision': 'f32'}}.")
    values = dict(options or {})
    check_names(values, names())
    if "model_caching" not in values and environment(ENV_CACHING) is None:
        values["model_caching"] = False
    values.setdefault("fallback", "inductor")
    settings = Settings(**values)
    selected(settings.decompositions)  # raises now if one does not exist
    devices.check_properties(settings)
    return settings
