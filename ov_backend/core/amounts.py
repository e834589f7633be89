"""Amounts in words: a count with its noun, bytes in KiB, MiB and GiB, and other numbers with a metric prefix."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: "1 graph", "2 graphs", "0 mixes"; ``plural`` is needed where it is not the noun and an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def size_text(size: int) -> str:
    """A number of bytes as the panel writes it (javascript/openvino_text.js): "980 B", "29.9 KiB", "512 MiB", "1.9 GiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{0 if unit == 0 or value >= 100 else 1}f} {_UNITS[unit]}"


def engineering(value: float) -> str:
    """A number with a metric prefix: ``12.47 G``."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} P"
