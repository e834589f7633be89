"""The small files beside a checkpoint, .yaml and .json: read with bounds on size, depth and growth, each value checked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ov_backend.core.errors import CheckpointError, first_line

#: The largest .yaml and .json beside a checkpoint; those of Stable Diffusion have 5 KB, a vocabulary has 1 MB.
MAX_YAML_BYTES, MAX_JSON_BYTES = 64 << 10, 2 << 20
MAX_DEPTH = 32
#: The most values and characters that a YAML document may have after its aliases are replaced by what they stand for.
MAX_EXPANDED = 1 << 20


class TooMuch(ValueError):
    """A document is larger, deeper or longer than any that is meant; the message says in which way."""


def read_text(path: Path, most: int) -> str:
    """The text of a small file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than ``most`` bytes, or no UTF-8.
    """
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise TooMuch(f"it is larger than {most >> 10} KiB")
    return data.decode("utf-8")


def parse_json(text: str) -> Any:
    """Read JSON that is no deeper than :data:`MAX_DEPTH`. Raises ValueError if it is no JSON, or deeper."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels") from None
    if _depth(value) > MAX_DEPTH:
        raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels")
    return value


def _depth(value: Any) -> int:
    deepest, pending = 0, [(value, 1)]
    while pending:
        each, depth = pending.pop()
        deepest = max(deepest, depth)
        items = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if depth <= MAX_DEPTH:
            pending += [(item, depth + 1) for item in items if isinstance(item, (dict, list))]
    return deepest


def parse_yaml(text: str) -> Any:
    """Read YAML that is no deeper than :data:`MAX_DEPTH` and grows no larger than :data:`MAX_EXPANDED`.

    Raises:
        ValueError: it is no YAML, deeper, or larger.
    """
    import yaml

    try:
        _check_growth(yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError("it is no YAML") from error
    except TooMuch:
        raise
    except ValueError as error:  # of int() and datetime()
        raise TooMuch("it holds a number of thousands of digits, or a date that does not exist") from error


def _check_growth(events: Iterator[Any]) -> None:
    """Add up the sizes of all values in the order of the text, an alias with the size of what it stands for."""
    import yaml

    sizes: dict[str, int] = {}
    open_collections: list[tuple[str | None, int]] = []
    total = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_collections.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_collections.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value)
            total += size
            if event.anchor:
                sizes[event.anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:  # of a collection that is still open: it would hold itself
                raise TooMuch(f"the alias {event.anchor[:60]!r} stands for nothing that is complete")
            total += sizes[event.anchor]
        if len(open_collections) > MAX_DEPTH:
            raise TooMuch(f"it is nested deeper than {MAX_DEPTH} levels")
        if total > MAX_EXPANDED:
            raise TooMuch("its aliases stand for too much")


#: The noise schedule's ends where the .yaml names none.
LINEAR_START, LINEAR_END = 0.00085, 0.012
#: Sides of a latent, which are an eighth of the picture's.
_LATENTS = (8, 512)
_PREDICTIONS = ("eps", "v")
_ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "relu", "silu")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def companion(path: Path, name: str) -> Path | None:
    """The path of a text encoder's file beside a checkpoint, or None."""
    places = path.with_suffix("") / "tokenizer" / name, path.parent / "tokenizer" / name
    return next((file for file in places if file.is_file()), None)


def read_yaml(path: Path) -> dict[str, Any]:
    """``model.params`` of the .yaml beside a checkpoint, with every value that is used checked; empty without such a file.

    Raises:
        CheckpointError: the file exists and is no such configuration, or a value in it makes no sense.
    """
    file = next((f for f in (path.with_suffix(".yaml"), path.with_suffix(".yml")) if f.is_file()), None)
    if file is None:
        return {}
    try:
        params = parse_yaml(read_text(file, MAX_YAML_BYTES))["model"]["params"]
        return _checked(file.name, dict(params))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"; {first_line(error)}" if type(error).__name__ == "TooMuch" else ""
        raise CheckpointError(
            f"{file.name} is no configuration of a checkpoint (model: params: is expected{reason}); correct it or remove it."
        ) from error


def _checked(file: str, params: dict[str, Any]) -> dict[str, Any]:
    _whole(file, params, "image_size", *_LATENTS)
    _whole(file, params, "timesteps", 1, 10000)
    for name, low, high in (("scale_factor", 1e-3, 1e3), ("linear_start", 1e-9, 0.999), ("linear_end", 1e-9, 0.999)):
        _number(file, params, name, low, high)
    _check_ends(file, params)
    if params.get("parameterization", "eps") not in _PREDICTIONS:
        raise _wrong(file, "parameterization", params["parameterization"], f"one of {', '.join(_PREDICTIONS)}")
    for name in ("unet_config", "network_config", "denoiser_config"):
        inner = _mapping(file, params, name)
        values = _mapping(file, inner, "params")
        for each in ("num_heads", "num_head_channels"):
            if values.get(each) != -1:  # which is the other one's turn
                _whole(file, values, each, 1, 1024, "-1 or ")
        scaling = _mapping(file, values, "scaling_config")
        for named in (inner, scaling) if name == "denoiser_config" else ():
            _text(file, named, "target")
    return params


def _check_ends(file: str, params: Mapping[str, Any]) -> None:
    start, end = params.get("linear_start", LINEAR_START), params.get("linear_end", LINEAR_END)
    if start <= end:
        return
    if "linear_start" in params:
        default = "" if "linear_end" in params else ", its default"
        raise _wrong(file, "linear_start", start, f"at most linear_end, {end:g}{default}")
    raise _wrong(file, "linear_end", end, f"at least linear_start, {start:g}, its default")


def _mapping(file: str, params: dict[str, Any], name: str) -> dict[str, Any]:
    """A nested mapping, empty where there is none; it replaces the value."""
    value = params.get(name)
    if value is None:
        params.pop(name, None)
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(file, name, value, "a mapping of names to values")
    params[name] = dict(value)
    return params[name]


def _text(file: str, params: dict[str, Any], name: str) -> None:
    if params.get(name) is None:
        params.pop(name, None)
    elif not isinstance(params[name], str):
        raise _wrong(file, name, params[name], "the name of a class")


def _whole(file: str, params: dict[str, Any], name: str, low: int, high: int, other: str = "") -> None:
    if name not in params:
        return
    value = params[name]
    value = int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(file, name, params[name], f"{other}a whole number from {low} to {high}")
    params[name] = value


def _number(file: str, params: dict[str, Any], name: str, low: float, high: float) -> None:
    if name not in params:
        return
    value = params[name]
    if isinstance(value, str) and len(value) < 40 and _NUMBER.fullmatch(value):  # YAML takes 1e-4 for text
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise _wrong(file, name, params[name], f"a number from {low:g} to {high:g}")
    params[name] = float(value)


def _wrong(file: str, name: str, value: object, expected: str) -> CheckpointError:
    text = _short(value)
    return CheckpointError(f"{file} has {name}: {text}; it must be {expected}; correct it or remove the file.")


def _short(value: object) -> str:
    """A value of any size in a few characters, without writing all of it."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of hundreds of digits"
    if isinstance(value, (Mapping, list, tuple, set)):
        return f"a {type(value).__name__} of {len(value)} values"
    text = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_text_config(path: Path | None) -> dict[str, Any]:
    """What is used of the ``config.json`` of a text encoder; empty without such a file.

    Raises:
        CheckpointError: it is no such file, or a value in it makes no sense.
    """
    if path is None:
        return {}
    config = read_object(path)
    for name, high in (("hidden_size", 65536), ("num_attention_heads", 1024)):
        _whole(path.name, config, name, 1, high)
    if "hidden_size" in config and "num_attention_heads" not in config:
        config.pop("hidden_size")
    if config.get("hidden_act", "gelu") not in _ACTIVATIONS:
        raise _wrong(path.name, "hidden_act", config["hidden_act"], f"one of {', '.join(_ACTIVATIONS)}")
    return config


def check_vocabulary(path: Path) -> None:
    """Check the vocab.json and merges.txt of a tokenizer before they are given to one.

    Raises:
        CheckpointError: they are no vocabulary.
    """
    numbers = read_object(path).values()
    if not numbers or not all(isinstance(number, int) and 0 <= number < 1 << 20 for number in numbers):
        raise _broken(path, "a mapping of words to numbers")
    try:
        read_text(path.with_name("merges.txt"), MAX_JSON_BYTES)
    except (OSError, ValueError) as error:
        raise _broken(path.with_name("merges.txt"), "the text of CLIP's merges") from error


def read_object(path: Path) -> dict[str, Any]:
    """The object in a small JSON file. Raises CheckpointError if it is none."""
    try:
        value = parse_json(read_text(path, MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise _broken(path, "a JSON object") from error
    if not isinstance(value, dict):
        raise _broken(path, "a JSON object")
    return value


def _broken(path: Path, expected: str) -> CheckpointError:
    return CheckpointError(f"{path} cannot be used; it must be {expected}; correct it or remove it.")
