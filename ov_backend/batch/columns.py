"""The columns of a job: their names as the WebUI's parameters and its API spell them, and how their values are read."""

from __future__ import annotations

import difflib
import math
import numbers
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.core.settings import PRECISIONS
from ov_backend.hosts.standalone.lora_tags import lora_strength, lora_tag
from ov_backend.pipelines.sizes import parse_size

#: Fields of a picture's parameters that are accepted and say nothing that the others do not.
_IGNORED = ("model_hash",)
_NAME = re.compile(r"[^:<>,]+")
#: A whole number as text; pandas writes 1.0 where another row of the column has none.
_WHOLE = re.compile(r"\s*([+-]?[0-9]{1,29})(\.0*)?\s*")


def column_of(name: str) -> str | None:
    """The column that a name stands for in any of its spellings, or None."""
    return _COLUMN_OF.get(_normalized(name))


def _normalized(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def read_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row by the columns' own names, those that are None left out.

    Raises:
        SettingsError: a name is unknown, or two names are the same column.
    """
    columns: dict[str, Any] = {}
    for name, value in values.items():
        if _normalized(name) in _IGNORED:
            continue
        column = column_of(name)
        if column is None:
            close = difflib.get_close_matches(name.strip().lower(), _COLUMN_OF, 1, 0.7)
            hint = f"{close[0]} is one that is close" if close else f"known are {', '.join(COLUMNS)}"
            raise SettingsError(f"the column {short_repr(name)} is unknown; correct or remove it ({hint}).")
        if column in columns:
            raise SettingsError(f"it has the column {column} in two spellings; leave one of them.")
        if value is not None:
            columns[column] = value
    return columns


def read_value(column: str, value: Any) -> Any:
    """Read one value.

    Raises:
        SettingsError: it makes no sense in this column; the message says what is expected.
    """
    try:
        return _COLUMNS[column][0](value)
    except _Unexpected as expected:
        raise SettingsError(f"{column} is {short_repr(value)}; it must be {expected}.") from None


class _Unexpected(ValueError):
    """Says what is expected instead."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unexpected("text")
    return value


def _name_of_file(value: Any) -> str:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise _Unexpected("the path of a file")
    if value.startswith("data:") or len(value) > 4096:
        raise _Unexpected("the path of a file; pictures inside of a job file are not read, so save it and give its path")
    return value.strip()


def _may_be_number(value: Any) -> bool:
    """Whether it is a number of Python's or NumPy's, or text without Python's own ``_`` between digits."""
    return isinstance(value, (numbers.Real, str)) and not isinstance(value, bool) and "_" not in str(value)


def _whole(example: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            if not _may_be_number(value):
                raise ValueError
            if isinstance(value, str):
                matched = _WHOLE.fullmatch(value)
                return int(matched[1] if matched else "")
            if value != int(value):
                raise ValueError
            return int(value)
        except (ValueError, OverflowError):
            raise _Unexpected(f"a whole number, as {example}") from None

    return read


def _number(example: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = float(value) if _may_be_number(value) else math.nan
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise _Unexpected(f"a number, as {example:g}")
        return number

    return read


def _size(value: Any) -> tuple[int, int]:
    if isinstance(value, str):
        return parse_size(value)
    try:
        return parse_size(str(_whole(512)(value)))
    except _Unexpected:
        raise _Unexpected("text such as 512x768, width first, or the side of a square, as 512") from None


def _precision(value: Any) -> str:
    if not isinstance(value, str) or value.strip().lower() not in PRECISIONS:
        raise _Unexpected(f"one of {', '.join(each for each in PRECISIONS if each != 'int8')}")  # which has a message of its own
    return value.strip().lower()


def _loras(value: Any) -> str:
    """LoRAs as tags of a prompt, from ``{"name": 0.8}`` or ``name:0.8, other:1``."""
    expected = '{"name": 0.8} or "name:0.8, other:1"'
    if isinstance(value, str):
        pairs = [part.partition(":")[::2] for part in value.split(",") if part.strip()]
    elif isinstance(value, Mapping):
        pairs = [*value.items()]
    else:
        raise _Unexpected(expected)
    tags = []
    for name, strength in pairs:
        if not isinstance(name, str) or not _NAME.fullmatch(name.strip()):
            raise _Unexpected(expected)
        tags.append(lora_tag(name.strip(), lora_strength(name.strip(), strength)))
    return " ".join(tags)


#: Of every column what reads its values, and its other spellings, in lower case with ``_`` for spaces: ``cfg_scale``.
_COLUMNS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "prompt": (_text, ()),
    "negative_prompt": (_text, ()),
    "seed": (_whole(42), ()),
    "size": (_size, ()),
    "width": (_whole(512), ()),
    "height": (_whole(512), ()),
    "steps": (_whole(20), ()),
    "sampler_name": (_text, ("sampler", "sampler_index")),
    "scheduler": (_text, ("schedule_type",)),
    "cfg_scale": (_number(7), ()),
    "batch_size": (_whole(1), ()),
    "checkpoint": (_name_of_file, ("model", "sd_model_checkpoint")),
    "precision": (_precision, ()),
    "init_image": (_name_of_file, ("init_images",)),
    "denoising_strength": (_number(0.5), ()),
    "loras": (_loras, ("lora",)),
}
COLUMNS = tuple(_COLUMNS)
_COLUMN_OF = {spelling: column for column, (_, others) in _COLUMNS.items() for spelling in (column, *others)}
