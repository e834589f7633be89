"""What a user chose in the panel: eight values, read from anything a host may hand over, written as one infotext field."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ov_backend.settings import PRECISIONS, Settings, parse_bool

#: Between a device's name and its description in the panel's list: "CPU — AMD EPYC 9B45".
DESCRIBED = " — "
#: Under this name the choices stand in a picture's generation parameters.
INFOTEXT = "OpenVINO"

_DEVICE = re.compile(r"[A-Z]+(\.\d+)?(:-?[A-Z]+(\.\d+)?(\(\d+\))?(,-?[A-Z]+(\.\d+)?(\(\d+\))?)*)?")
_MAX_MEMORY_MB = 1 << 24
_MAX_CONFIG = 4096
#: A property that names a file or folder would let a remote caller choose where this machine reads and writes.
_FILE_PROPERTY = re.compile(r"DIR|PATH|FILE|LOCATION", re.IGNORECASE)


@dataclass(frozen=True)
class Choices:
    """The panel's values, in the order in which a host passes them.

    Attributes:
        device: an OpenVINO device, e.g. "CPU", "GPU.1", "AUTO:GPU,CPU".
        precision: "auto", "f32", "bf16" or "f16".
        unet: run the UNet in OpenVINO.
        vae: run the VAE in OpenVINO.
        text_encoder: run the text encoder in OpenVINO.
        model_caching: keep captured graphs on disk.
        memory_mb: budget in MiB for compiled networks; 0 is half of the machine's memory.
        config_json: further OpenVINO properties as a JSON object, or "".
    """

    device: str = "CPU"
    precision: str = "auto"
    unet: bool = True
    vae: bool = True
    text_encoder: bool = True
    model_caching: bool = True
    memory_mb: int = 0
    config_json: str = ""

    @classmethod
    def from_args(cls, args: object, defaults: Choices | None = None) -> tuple[Choices, list[str]]:
        """Read what a host passed; whatever makes no sense becomes its default and one sentence.

        Args:
            args: the values in this class's order, as many as there are, of any type.
            defaults: what is used instead of nonsense and of what is missing.

        Returns:
            the choices, and the sentences (none when all is well, or when nothing was passed at all).
        """
        defaults = defaults or cls()
        names = [f.name for f in dataclasses.fields(cls)]
        if args is None:
            return defaults, []
        if not isinstance(args, (list, tuple)):
            return defaults, [f"The script's arguments are {_shown(args)}; they must be a list: {', '.join(names)}."]
        said = []
        if args and len(args) != len(names):
            said.append(f"{len(args)} arguments were given; the script takes {len(names)}: {', '.join(names)}.")
        values = dataclasses.asdict(defaults)
        for name, given in zip(names, args):
            try:
                values[name] = _READERS[name](given)
            except ValueError as error:
                said.append(f"{name} is {_shown(given)}; it must be {error}. {_shown(values[name])} is used instead.")
        return cls(**values), said

    def settings(self, cache_dir: str | None = None, **more: Any) -> Settings:
        """The backend's settings for these choices; which networks run in OpenVINO is the host's own affair."""
        return Settings(
            device=self.device,
            precision=self.precision,
            model_caching=self.model_caching,
            cache_dir=cache_dir,
            memory_mb=self.memory_mb,
            config=json.loads(self.config_json or "{}"),
            **more,
        )

    def as_infotext(self) -> str:
        """One field that :meth:`from_infotext` reads back: only what is not default, or "on" when all of it is."""
        parts = []
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                parts.append(f"{f.name}={('off', 'on')[value] if isinstance(value, bool) else value}")
        return "; ".join(parts) or "on"

    @classmethod
    def from_infotext(cls, text: object) -> Choices:
        """Choices from a picture's field; what is missing or makes no sense there is the default.

        ``config_json`` comes last, so that a semicolon inside it ends nothing.
        """
        values: dict[str, Any] = {}
        rest = str(text or "").strip()
        while rest:
            name, equals, tail = rest.partition("=")
            name = name.strip()
            value, _, rest = (tail, "", "") if name == "config_json" else tail.partition(";")
            if equals and name in _READERS:
                values[name] = value.strip()
        known = cls()
        return cls.from_args([values.get(f.name, getattr(known, f.name)) for f in dataclasses.fields(cls)])[0]


def _device(given: object) -> str:
    name = given.split(DESCRIBED)[0].strip().upper() if isinstance(given, str) else ""
    name = re.sub(r"\s*([:,])\s*", r"\1", name)
    if not _DEVICE.fullmatch(name):
        raise ValueError("an OpenVINO device such as 'CPU', 'GPU.0' or 'AUTO:GPU,CPU'")
    return name


def _precision(given: object) -> str:
    if not isinstance(given, str) or given.strip().lower() not in PRECISIONS:
        raise ValueError(f"one of {', '.join(PRECISIONS)}")
    return given.strip().lower()


def _switch(given: object) -> bool:
    if isinstance(given, (bool, str)) or (isinstance(given, (int, float)) and given in (0, 1)):
        try:
            return parse_bool(int(given) if isinstance(given, float) else given, "it")
        except ValueError:
            pass
    raise ValueError("true or false")


def _memory(given: object) -> int:
    expected = f"a whole number of MiB from 0 to {_MAX_MEMORY_MB}"
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise ValueError(expected)
    try:
        number = float(given)
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    if not math.isfinite(number) or not 0 <= number <= _MAX_MEMORY_MB or number != int(number):
        raise ValueError(expected)
    return int(number)


def _config(given: object) -> str:
    """Normalise OpenVINO properties to one spelling of JSON, refusing those that name files."""
    if given is None or given == "":
        return ""
    try:
        text = json.dumps(given) if isinstance(given, Mapping) else given
        if not isinstance(text, str) or len(text) > _MAX_CONFIG:
            raise ValueError
        value = json.loads(text) if text.strip() else {}
    except (ValueError, TypeError, RecursionError):
        raise ValueError('a JSON object of OpenVINO properties such as {"PERFORMANCE_HINT": "LATENCY"}') from None
    if not isinstance(value, dict):
        raise ValueError('a JSON object of OpenVINO properties such as {"PERFORMANCE_HINT": "LATENCY"}')
    _check_properties(value)
    return json.dumps(value, sort_keys=True) if value else ""


def _check_properties(properties: Mapping[str, Any]) -> None:
    for name, value in properties.items():
        if _FILE_PROPERTY.search(name):
            raise ValueError(f"without {name!r}: properties that name files or folders are not taken from here")
        if isinstance(value, Mapping):
            _check_properties(value)
        elif not isinstance(value, (str, int, float, bool)) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"such that {name!r} has a text, a number, true or false as its value")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_READERS: dict[str, Callable[[object], Any]] = {
    "device": _device,
    "precision": _precision,
    "unet": _switch,
    "vae": _switch,
    "text_encoder": _switch,
    "model_caching": _switch,
    "memory_mb": _memory,
    "config_json": _config,
}
