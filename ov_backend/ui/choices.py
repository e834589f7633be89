"""The user's choices: the panel's nine values, read from whatever a host passes, written as one infotext field."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.core.settings import LOW_MEMORY, PRECISIONS, Settings, parse_bool
from ov_backend.ui.properties import MAX_LENGTH, NotAllowed, read_properties

#: Between a device's name and its description in the panel's list: "CPU — AMD EPYC 9B45".
DESCRIPTION_SEPARATOR = " — "
#: The field of a picture's generation parameters that holds the choices.
INFOTEXT_FIELD = "OpenVINO"
#: The choices that switch networks, each all networks of one kind.
SWITCHES = ("unet", "vae", "text_encoder")
#: What the panel calls each choice; messages call it so too.
LABELS: Mapping[str, str] = {
    "device": "OpenVINO device",
    "precision": "Precision",
    "unet": "Run the UNet in OpenVINO",
    "vae": "Run the VAE in OpenVINO",
    "text_encoder": "Run the text encoder in OpenVINO",
    "model_caching": "Keep prepared graphs on disk",
    "memory_mb": "Memory for compiled networks in MiB",
    "config_json": "Further OpenVINO properties",
    "low_memory": "Give the weights' memory back",
}

_DEVICE = re.compile(r"[A-Z]+(\.\d+)?(:-?[A-Z]+(\.\d+)?(\(\d+\))?(,-?[A-Z]+(\.\d+)?(\(\d+\))?)*)?")
_MAX_MEMORY_MB = 1 << 24
_MAX_DEVICE_LENGTH = 200
#: Of a value in a message, which stands below the panel and with pictures.
_MAX_SHOWN = 80
#: Of a picture's field; the properties in it are bounded too.
_MAX_INFOTEXT_LENGTH = 2 * MAX_LENGTH


def switch_of(role: str) -> str:
    """The choice that switches a network: "vae" for "vae_decode"; "unet" for every network that denoises."""
    return next((switch for switch in SWITCHES if role.startswith(switch)), "unet")


@dataclass(frozen=True)
class Choices:
    """The panel's values, in the order in which a host passes them.

    Attributes:
        device: an OpenVINO device, e.g. "CPU", "GPU.1", "AUTO:GPU,CPU".
        precision: "auto", "f32", "bf16", "f16" or "int8".
        unet: run the UNet in OpenVINO.
        vae: run the VAE in OpenVINO.
        text_encoder: run the text encoder in OpenVINO.
        model_caching: keep captured graphs on disk.
        memory_mb: budget in MiB for compiled networks; 0 is half of the memory that this process may use.
        config_json: further OpenVINO properties as a JSON object, or "".
        low_memory: give the memory of compiled weights back: "auto", "on" or "off". Hosts of earlier versions do not pass it.
    """

    device: str = "CPU"
    precision: str = "auto"
    unet: bool = True
    vae: bool = True
    text_encoder: bool = True
    model_caching: bool = True
    memory_mb: int = 0
    config_json: str = ""
    low_memory: str = "auto"

    @classmethod
    def from_args(cls, args: object, defaults: Choices | None = None) -> tuple[Choices, list[str]]:
        """Read what a host passed; a value that makes no sense is replaced by its default and reported in one message.

        Args:
            args: the values in this class's order, as many as there are, of any type.
            defaults: replace values that make no sense or are missing.

        Returns:
            the choices, and the messages (none when all is well, or when nothing was passed at all).
        """
        defaults = defaults or cls()
        names = [f.name for f in dataclasses.fields(cls)]
        if args is None:
            return defaults, []
        if not isinstance(args, (list, tuple)):
            return defaults, [f"The script's arguments are {short_repr(args)}; they must be a list: {', '.join(names)}."]
        messages = []
        if args and len(args) not in (len(names) - 1, len(names)):
            messages.append(f"{len(args)} arguments were given; the script takes {len(names)}: {', '.join(names)}.")
        values = dataclasses.asdict(defaults)
        for name, value in zip(names, args):
            try:
                values[name] = _READERS[name](value)
            except ValueError as error:
                messages.append(f"{_refusal(name, value, error)} {_used(values[name])} instead.")
        return cls(**values), messages

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Choices:
        """Read choices by name; those that are missing are the default.

        Raises:
            SettingsError: a name is unknown, or a value makes no sense.
        """
        known = vars(cls())
        values = {}
        for name, value in fields.items():
            if name not in known:
                raise SettingsError(f"The choices hold {short_repr(name)}; they must be an object of {', '.join(known)}.")
            try:
                values[name] = _READERS[name](value)
            except ValueError as error:
                raise SettingsError(_refusal(name, value, error)) from None
        return cls(**values)

    def settings(self, cache_dir: str | None = None) -> Settings:
        """The backend's settings for these choices; which networks run in OpenVINO is up to the host.

        Args:
            cache_dir: folder of the graph store; None is the one of the environment, else the user's cache folder.
        """
        folder: dict[str, Any] = {} if cache_dir is None else {"cache_dir": cache_dir}
        return Settings(
            device=self.device,
            precision=self.precision,
            model_caching=self.model_caching,
            memory_mb=self.memory_mb,
            low_memory=self.low_memory,
            config=json.loads(self.config_json or "{}"),
            **folder,
        )

    def as_infotext(self) -> str:
        """The choices as one field for :meth:`from_infotext`: only what is not default, or "on" when all of it is."""
        parts = []
        for f in sorted(dataclasses.fields(self), key=lambda f: f.name == "config_json"):  # nothing may follow that one
            value = getattr(self, f.name)
            if value != f.default:
                parts.append(f"{f.name}={('off', 'on')[value] if isinstance(value, bool) else value}")
        return "; ".join(parts) or "on"

    @classmethod
    def from_infotext(cls, text: object) -> Choices:
        """The choices of :meth:`read_infotext`, without the messages."""
        return cls.read_infotext(text)[0]

    @classmethod
    def read_infotext(cls, text: object) -> tuple[Choices, list[str]]:
        """Read the choices from a picture's field; what is missing or makes no sense there is the default.

        ``config_json`` comes last, so that a semicolon inside it ends nothing.

        Returns:
            the choices, and one message for each value that makes no sense.
        """
        values: dict[str, Any] = {}
        rest = str(text or "").strip()[:_MAX_INFOTEXT_LENGTH]
        while rest:
            name, equals, tail = rest.partition("=")
            name = name.strip()
            value, _, rest = (tail, "", "") if name == "config_json" else tail.partition(";")
            if equals and name in _READERS:
                values[name] = value.strip()
        return cls.from_args([values.get(f.name, f.default) for f in dataclasses.fields(cls)])


def _refusal(name: str, value: object, error: ValueError) -> str:
    """Why a choice cannot be used, in one sentence."""
    if isinstance(error, NotAllowed):  # the value may be long, and one name in it is meant
        return f"{LABELS[name]}: {error.sentence}"
    return f"{LABELS[name]}: {short_repr(value, _MAX_SHOWN)} must be {error}."


def _used(value: Any) -> str:
    """The beginning of the sentence which value is used instead."""
    if isinstance(value, bool):
        return f"{'On' if value else 'Off'} is used"
    return f"{short_repr(value, _MAX_SHOWN)} is used" if value != "" else "None is set"


def _read_device(value: object) -> str:
    name = value.split(DESCRIPTION_SEPARATOR)[0].strip().upper() if isinstance(value, str) else ""
    name = re.sub(r"\s*([:,])\s*", r"\1", name)
    if len(name) > _MAX_DEVICE_LENGTH or not _DEVICE.fullmatch(name):
        raise ValueError("an OpenVINO device such as 'CPU', 'GPU.0' or 'AUTO:GPU,CPU'")
    return name


def _read_precision(value: object) -> str:
    if not isinstance(value, str) or value.strip().lower() not in PRECISIONS:
        raise ValueError(f"one of {', '.join(PRECISIONS)}")
    return value.strip().lower()


def _read_low_memory(value: object) -> str:
    if not isinstance(value, str) or value.strip().lower() not in LOW_MEMORY:
        raise ValueError(f"one of {', '.join(LOW_MEMORY)}")
    return value.strip().lower()


def _read_switch(value: object) -> bool:
    if isinstance(value, (bool, str)) or (isinstance(value, (int, float)) and value in (0, 1)):
        try:
            return parse_bool(int(value) if isinstance(value, float) else value, "it")
        except ValueError:
            pass
    raise ValueError("true or false")


def _read_memory(value: object) -> int:
    expected = f"a whole number of MiB from 0 to {_MAX_MEMORY_MB}"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(expected)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(expected) from None
    if not math.isfinite(number) or not 0 <= number <= _MAX_MEMORY_MB or number != int(number):
        raise ValueError(expected)
    return int(number)


def _read_config(value: object) -> str:
    """Normalise OpenVINO properties to one spelling of JSON, refusing those that are not allowed."""
    properties = read_properties(value)
    return json.dumps(properties, sort_keys=True) if properties else ""


_READERS: dict[str, Callable[[object], Any]] = {
    "device": _read_device,
    "precision": _read_precision,
    "unet": _read_switch,
    "vae": _read_switch,
    "text_encoder": _read_switch,
    "model_caching": _read_switch,
    "memory_mb": _read_memory,
    "config_json": _read_config,
    "low_memory": _read_low_memory,
}
