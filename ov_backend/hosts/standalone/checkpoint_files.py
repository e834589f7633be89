"""Which checkpoint a command is to draw with: a file, one of a folder, the project's own, or a random one; needs no PyTorch."""

from __future__ import annotations

from pathlib import Path

from ov_backend.checkpoint.config import read_configuration
from ov_backend.checkpoint.header import is_checkpoint
from ov_backend.core.errors import SettingsError
from ov_backend.core.package_files import TRAINED
from ov_backend.core.settings import Settings


def check_checkpoint(checkpoint: Path | None, random: bool = False) -> None:
    """Check the header of the checkpoint that is asked for; no weight is read.

    Raises:
        CheckpointError: the file is no checkpoint that can be read.
        SettingsError: see :func:`checkpoint_file`.
    """
    _check_one(checkpoint, random)
    if checkpoint is not None:
        read_configuration(checkpoint)


def checkpoints_of(given: Path | None) -> tuple[Path, ...]:
    """The checkpoints of a folder, sorted; none for a file, and for a folder without any, such as one of diffusers."""
    if given is None or not given.is_dir() or (given / "model_index.json").exists():
        return ()
    return tuple(filter(is_checkpoint, sorted(given.glob("*.safetensors"))))


def checkpoint_file(checkpoint: Path | None, random: bool = False) -> Path:
    """The user's checkpoint, the project's own, or a seeded random one, which is first written to the cache folder.

    Raises:
        SettingsError: both a checkpoint and a random one are asked for, or none is given and the project's own is not installed.
    """
    _check_one(checkpoint, random)
    if not random:
        return checkpoint or TRAINED
    from ov_backend.checkpoint.random_weights import write_random_checkpoint

    return write_random_checkpoint(Settings(cache_dir=None).cache_folder.parent / "checkpoints" / "random-0.safetensors")


def _check_one(checkpoint: Path | None, random: bool) -> None:
    if checkpoint is not None and random:
        raise SettingsError("--random and --checkpoint exclude each other; give one of them.")
    if checkpoint is None and not random and not TRAINED.is_file():
        what = "No checkpoint is given, and the project's own is not installed here"
        raise SettingsError(f"{what}; give --checkpoint FILE, or --random for noise.")
