"""Where the files of upscalers are, and what reads them; needs no PyTorch."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.core.package_files import IS_INSTALLED
from ov_backend.ui.infotext import LANCZOS

INSTALL = f"pip install '{'ov-backend' if IS_INSTALLED else '.'}[upscalers]'"
_SUFFIXES = (".safetensors", ".pth")


def upscaler_folder(checkpoint: Path, chosen: Path | None) -> Path:
    """The folder that is chosen, else the folder ``upscaler`` beside a checkpoint; a ``SettingsError`` if it is none."""
    if chosen is not None and not chosen.is_dir():
        raise SettingsError(f"--upscaler-dir is {short_repr(str(chosen))}, which is no folder; give that of the upscalers.")
    return chosen if chosen is not None else checkpoint.parent / "upscaler"


def upscaler_files(folder: Path | None) -> dict[str, Path]:
    """The files of upscalers in a folder and below it, sorted, by their names; by their paths where two have one name."""
    if folder is None or missing_package():
        return {}
    found = sorted((path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES), key=lambda path: path.name.lower())
    counts = Counter([LANCZOS, *(path.stem for path in found)])
    return {path.stem if counts[path.stem] == 1 else str(path.relative_to(folder)): path for path in found}


def missing_package() -> str:
    """How to have upscalers beside Lanczos where the package that reads them is not installed, as a sentence; else ""."""
    return "" if importlib.util.find_spec("spandrel") is not None else f"{INSTALL} adds networks such as ESRGAN"
