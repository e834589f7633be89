"""Which checkpoint a command is to draw with: a file, one of a folder, or the project's own; needs no PyTorch."""

from __future__ import annotations

from pathlib import Path

from ov_backend.checkpoint.config import Configuration, read_configuration
from ov_backend.checkpoint.header import is_checkpoint
from ov_backend.core.errors import SettingsError
from ov_backend.core.package_files import TRAINED


def checkpoint_file(checkpoint: Path | None) -> Path:
    """The user's checkpoint, else the project's own.

    Raises:
        SettingsError: none is given, and the project's own is not installed.
    """
    if checkpoint is None and not TRAINED.is_file():
        raise SettingsError("No checkpoint is given, and the project's own is not installed here; give --checkpoint FILE.")
    return checkpoint or TRAINED


def checked(checkpoint: Path | None) -> tuple[Path, Configuration]:
    """The file of the checkpoint that is asked for, and its configuration; no weight is read.

    Raises:
        CheckpointError: the file is no checkpoint that can be read.
        SettingsError: see :func:`checkpoint_file`.
    """
    path = checkpoint_file(checkpoint)
    return path, read_configuration(path)[1]


def checkpoints_of(given: Path | None) -> tuple[Path, ...]:
    """The checkpoints of a folder, sorted; none for a file, and for a folder without any, such as one of diffusers."""
    if given is None or not given.is_dir() or (given / "model_index.json").exists():
        return ()
    return tuple(filter(is_checkpoint, sorted(given.glob("*.safetensors"))))
