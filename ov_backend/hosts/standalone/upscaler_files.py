"""Where the files of upscalers are, and what reads them; needs no PyTorch."""

from __future__ import annotations

import importlib.util
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
    """The files of upscalers in a folder and below it, sorted, by their names."""
    found = sorted(folder.rglob("*"), key=lambda path: path.name.lower()) if folder is not None and not missing_package() else []
    return {path.stem: path for path in found if path.suffix.lower() in _SUFFIXES and path.stem != LANCZOS}


def missing_package() -> str:
    """How to have upscalers beside Lanczos where the package that reads them is not installed, as a sentence; else ""."""
    return "" if importlib.util.find_spec("spandrel") is not None else f"{INSTALL} adds networks such as ESRGAN"
