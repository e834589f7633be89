"""What the demo is asked for, checked before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ov_backend.checkpoint.config import read_configuration
from ov_backend.checkpoint.header import is_checkpoint
from ov_backend.core.errors import SettingsError, first_line, short_repr
from ov_backend.core.package_files import TRAINED
from ov_backend.core.settings import Settings
from ov_backend.hosts.standalone.lora_tags import lora_files, lora_folders
from ov_backend.hosts.standalone.prompt_syntax import check_syntax
from ov_backend.hosts.standalone.samplers import DEFAULT, NAMES, check_sampler, sampler_named
from ov_backend.pipelines.sizes import check_guidance, check_size


@dataclass(frozen=True)
class Request:
    """What to generate.

    ``size`` is (width, height) in pixels. None is the size that the checkpoint was trained for, and the guidance and the number
    of steps that suit it. The seed -1 is any.

    Raises:
        SettingsError: a value cannot be used; the message says what is expected.
    """

    prompt: str
    negative: str = ""
    steps: int | None = None
    size: tuple[int, int] | None = None
    seed: int = 0
    guidance: float | None = None
    sampler: str = DEFAULT
    checkpoint: Path | None = None
    random: bool = False
    out: Path = Path("demo.png")
    lora_dir: Path | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before anything is loaded."""
        if self.steps is not None and not 1 <= self.steps <= 1000:
            raise SettingsError(f"--steps is {self.steps}; it must be a whole number from 1 to 1000, 20 for example.")
        if not -1 <= self.seed < 1 << 63:
            raise SettingsError(f"--seed is {self.seed}; it must be a whole number from -1 (any) to {(1 << 63) - 1}.")
        if self.guidance is not None:
            check_guidance(self.guidance, "--guidance")
        if not sampler_named(self.sampler):
            raise SettingsError(f"--sampler is {short_repr(self.sampler)}; it must be one of {', '.join(NAMES)}.")
        check_sampler(sampler_named(self.sampler), self.steps or 1)
        if self.size is not None:
            check_size(*self.size)
        _check_writable(self.out)
        check_checkpoint(self.checkpoint, self.random)
        check_syntax(self.prompt, self.negative)
        lora_files(self.prompt, self.lora_folders, None if self.random else self.checkpoint or TRAINED)

    @property
    def lora_folders(self) -> tuple[Path, ...]:
        """Where the LoRAs are that the prompt names."""
        return lora_folders(self.checkpoint or TRAINED, self.lora_dir)


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


def _check_writable(out: Path) -> None:
    try:
        if out.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except (OSError, ValueError) as error:  # a ValueError for a name that no file can have
        raise cannot_write(out, error) from error
    if out.suffix.lower() != ".png":
        raise SettingsError(f"--out is {out}; it must be the name of a .png file.")


def cannot_write(out: Path, error: OSError | ValueError) -> SettingsError:
    """The error for a file that cannot be written, as a sentence."""
    reason = getattr(error, "strerror", None) or first_line(error)
    return SettingsError(f"{out} cannot be written ({reason}); give another file with --out.")
