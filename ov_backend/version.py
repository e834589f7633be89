"""This package's version, and the oldest OpenVINO that it works with."""

from __future__ import annotations

import importlib.metadata

__version__ = "0.2.0.dev0"

#: install.py and pyproject.toml have the same bound; a test compares them.
OLDEST_OPENVINO = (2026, 1)


def openvino_problem() -> str:
    """What is wrong with the version of OpenVINO that is installed, and the command to run; "" where nothing is, or where
    none is installed."""
    try:
        text = importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return ""
    if tuple(int(part) for part in text.split(".")[:2] if part.isdecimal()) >= OLDEST_OPENVINO:
        return ""
    oldest = ".".join(map(str, OLDEST_OPENVINO))
    return f"OpenVINO {text} is installed, and {oldest} or newer is needed; run: pip install 'openvino>={oldest}'"
