"""The OpenVINO properties that a panel, a route, a script argument or a picture may set, with their types and ranges.

A person who reaches the panel is not necessarily its owner, and some of OpenVINO's properties read and write files
(``CACHE_DIR``, ``WEIGHTS_PATH``) or take processors away from everybody else (``ENABLE_CPU_RESERVATION``). So this is a list
of what is allowed, and everything else is refused. The options of ``torch.compile`` are a programmer's own and are not
checked here.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: The property that holds properties of single devices. OpenVINO also takes a device's name in its place.
NESTED = "DEVICE_PROPERTIES"
MAX_LENGTH = 4096
WHERE = "docs/panel.md lists them"


class NotAllowed(ValueError):
    """One property may not be set.

    Attributes:
        sentence: says so, and what to do.
    """

    def __init__(self, name: str, similar: str) -> None:
        super().__init__(f"an object without {name}, which is not allowed")
        what = f"remove it, or write {similar}" if similar else "remove it"
        self.sentence = f"{name} is not allowed; {what}. docs/panel.md lists what is."


_ONE_DEVICE = re.compile(r"[A-Z]{2,16}(\.\d{1,3})?")
_TOKEN = re.compile(r"\s*([{}:,]|[^{}:,\s][^{}:,]*)")
_MAX_NESTED = 16


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.words[:-1]) + f" or {self.words[-1]}"

    def read(self, value: object) -> str | None:
        """The word, or None."""
        word = value.strip().upper() if isinstance(value, str) and len(value) < 100 else ""
        return next((each for each in self.words if each.upper() == word), None)


@dataclass(frozen=True)
class Switch:
    """True or false, as JSON or as OpenVINO's YES and NO."""

    def __str__(self) -> str:
        return "true or false"

    def read(self, value: object) -> bool | None:
        """The switch, or None."""
        words = {"YES": True, "TRUE": True, "NO": False, "FALSE": False}
        return value if isinstance(value, bool) else words.get(value.strip().upper()) if isinstance(value, str) else None


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds, or one of a few words."""

    low: int
    high: int
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " or ".join([f"a whole number from {self.low} to {self.high}", *self.words])

    def read(self, value: object) -> int | str | None:
        """The number or word, or None."""
        if isinstance(value, str):
            text = value.strip().upper()
            if text in self.words:
                return text
            value = int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return value if is_whole and self.low <= value <= self.high else None  # type: ignore[operator, return-value]


@dataclass(frozen=True)
class Number:
    """A number within bounds."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, value: object) -> float | None:
        """The number, or None."""
        if isinstance(value, str):
            value = float(value) if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", value, re.ASCII) else None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if is_number and self.low <= value <= self.high else None  # type: ignore[operator, arg-type]


Type = Choice | Switch | Whole | Number

#: Every property that is allowed, with its type. docs/panel.md has the same list; a test compares them.
ALLOWED: Mapping[str, Type] = {
    "PERFORMANCE_HINT": Choice(("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")),
    "PERFORMANCE_HINT_NUM_REQUESTS": Whole(0, 64),
    "EXECUTION_MODE_HINT": Choice(("PERFORMANCE", "ACCURACY")),
    "INFERENCE_PRECISION_HINT": Choice(("f32", "bf16", "f16")),
    "NUM_STREAMS": Whole(0, 64, ("AUTO", "NUMA")),
    "INFERENCE_NUM_THREADS": Whole(0, 1024),
    "SCHEDULING_CORE_TYPE": Choice(("ANY_CORE", "PCORE_ONLY", "ECORE_ONLY")),
    "ENABLE_CPU_PINNING": Switch(),
    "ENABLE_HYPER_THREADING": Switch(),
    "CPU_DENORMALS_OPTIMIZATION": Switch(),
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": Number(0.0, 1.0),
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": Whole(0, 65536),
    "MODEL_DISTRIBUTION_POLICY": Choice(("TENSOR_PARALLEL", "PIPELINE_PARALLEL")),
    "MODEL_PRIORITY": Choice(("LOW", "MEDIUM", "HIGH")),
    "PERF_COUNT": Switch(),
    "COMPILATION_NUM_THREADS": Whole(1, 1024),
    "GPU_QUEUE_PRIORITY": Choice(("LOW", "MEDIUM", "HIGH")),
    "GPU_QUEUE_THROTTLE": Choice(("LOW", "MEDIUM", "HIGH")),
    "GPU_HOST_TASK_PRIORITY": Choice(("LOW", "MEDIUM", "HIGH")),
    "GPU_ENABLE_LOOP_UNROLLING": Switch(),
    "GPU_DISABLE_WINOGRAD_CONVOLUTION": Switch(),
    "GPU_ENABLE_SDPA_OPTIMIZATION": Switch(),
    "NPU_TURBO": Switch(),
    "NPU_TILES": Whole(1, 16),
    "WORKLOAD_TYPE": Choice(("DEFAULT", "EFFICIENT")),
    "SCHEDULE_POLICY": Choice(("ROUND_ROBIN", "DEVICE_PRIORITY")),
    "ENABLE_STARTUP_FALLBACK": Switch(),
    "ENABLE_RUNTIME_FALLBACK": Switch(),
    "DEVICE_BIND_BUFFER": Switch(),
    "AUTO_BATCH_TIMEOUT": Whole(0, 60000),
}

#: Names of devices that may stand in the place of :data:`NESTED`.
DEVICES = ("CPU", "GPU", "NPU", "AUTO", "HETERO", "MULTI", "BATCH")

EXPECTED = f'a JSON object of OpenVINO properties such as {{"PERFORMANCE_HINT": "LATENCY"}} ({WHERE})'


def read_properties(value: object) -> dict[str, Any]:
    """Read and check properties.

    Args:
        value: a dict, or its JSON of at most :data:`MAX_LENGTH` characters; None and "" are no properties.

    Returns:
        The properties with values of their own types; those of single devices are under :data:`NESTED`.

    Raises:
        ValueError: something else was given; the message completes the sentence "it must be ...".
    """
    properties = _object(value)
    checked: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, each in properties.items():
        for device, device_properties in _nested(name, each):
            values = nested.setdefault(device, {})
            for key, item in device_properties.items():
                values[key] = _checked(key, item, f" of {device}")
        if not _is_nested(name):
            checked[name] = _checked(name, each)
    return {**checked, NESTED: nested} if nested else checked


def _object(value: object) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    try:
        text = json.dumps(value) if isinstance(value, Mapping) else value
        if not isinstance(text, str) or len(text) > MAX_LENGTH:
            raise ValueError
        properties = json.loads(text, object_pairs_hook=_unique) if text.strip() else {}
    except (ValueError, TypeError, RecursionError):
        raise ValueError(EXPECTED) from None
    if not isinstance(properties, dict):
        raise ValueError(EXPECTED)
    return properties


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of two values under one name nobody knows which is meant."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _is_nested(name: str) -> bool:
    return name.startswith(NESTED) or name.partition(".")[0] in DEVICES


def _nested(name: str, value: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """The devices and their properties that one nested property holds; nothing for any other property."""
    if not _is_nested(name):
        return
    value = parse_text(value) if isinstance(value, str) else value
    if name != NESTED:  # OpenVINO spells this "DEVICE_PROPERTIES_GPU.0" or "GPU.0"
        value = {name.removeprefix(f"{NESTED}_"): value}
    if not isinstance(value, dict) or len(value) > _MAX_NESTED:
        raise ValueError(f'such that {name!r} holds devices, as {{"{NESTED}": {{"CPU": {{"NUM_STREAMS": 2}}}}}}')
    for device, properties in value.items():
        if not _ONE_DEVICE.fullmatch(device) or device.partition(".")[0] not in DEVICES:
            raise ValueError(f"such that {NESTED} holds names of devices ({', '.join(DEVICES)}), not {_short(device)}")
        if not isinstance(properties, dict):
            raise ValueError(f"such that {device} in {NESTED} has an object of properties, not {_short(properties)}")
        yield device, properties


def parse_text(text: str) -> dict[str, Any]:
    """Read OpenVINO's own notation of nested properties, ``{CPU:{NUM_STREAMS:2},GPU:{...}}``; values stay text.

    Raises:
        ValueError: the text is no such notation.
    """
    try:
        tokens = [match.group(1).strip() for match in _TOKEN.finditer(text)] if len(text) <= MAX_LENGTH else []
        result = _parse(tokens, 0)
        if tokens or not isinstance(result, dict):
            raise ValueError
    except (ValueError, IndexError):
        raise ValueError(f"such that {NESTED} holds {{CPU:{{NUM_STREAMS:2}}}} or the same as JSON") from None
    return result


def _parse(tokens: list[str], depth: int) -> dict[str, Any] | str:
    """Take one value from the front of ``tokens``: a word or an object."""
    token = tokens.pop(0)
    if token != "{":
        if token in "}:,":
            raise ValueError
        return token
    if depth > 1:
        raise ValueError
    values: dict[str, Any] = {}
    while True:
        name = tokens.pop(0).strip("\"'")
        if name in values or tokens.pop(0) != ":":
            raise ValueError
        values[name] = _parse(tokens, depth + 1)
        separator = tokens.pop(0)
        if separator == "}":
            return values
        if separator != ",":
            raise ValueError


def _checked(name: str, value: object, where: str = "") -> Any:
    kind = ALLOWED.get(name)
    if kind is None:
        close = difflib.get_close_matches(name[:100].upper(), ALLOWED, n=1)
        raise NotAllowed(f"{_short(name)}{where}", close[0] if close else "")
    checked = kind.read(value)
    if checked is None:
        raise ValueError(f"such that {name}{where} is {kind}, not {_short(value)}")
    return checked


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
