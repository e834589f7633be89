"""Finds the files that rows name, and checks each once before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from ov_backend.checkpoint.loader import trained_side
from ov_backend.checkpoint.lora import check_lora
from ov_backend.errors import OVBackendError, SettingsError
from ov_backend.standalone.demo import checkpoint_file

_PICTURES = ("PNG", "JPEG", "WEBP", "BMP")
_MAX_PICTURE_PIXELS = 1 << 26


class Places:
    """Where the files of a job are.

    Args:
        folder: paths in rows are relative to it.
        checkpoint: of rows that name none; None is the project's own.
        lora_folder: of LoRAs; None is ``folder``, and the folder ``lora`` beside a row's checkpoint.
    """

    def __init__(self, folder: Path, checkpoint: Path | None = None, lora_folder: Path | None = None) -> None:
        self._folder, self._default, self._lora_folder = folder, checkpoint, lora_folder
        self._checked: dict[tuple[str, Path], int | OVBackendError] = {}

    def checkpoint(self, name: str | None) -> tuple[Path, int]:
        """The file of a checkpoint, and the side in pixels of the square picture that it was trained for.

        Raises:
            OVBackendError: there is no such file, or it is no checkpoint.
        """
        path = checkpoint_file(self._default) if name is None else self._named_checkpoint(name)
        return path, self._check("checkpoint", path, trained_side)

    def _named_checkpoint(self, name: str) -> Path:
        beside = [self._default.parent] if self._default is not None else []
        path = _first_file(name, [self._folder, *beside])
        if path is None:
            folders = " or ".join(str(each) for each in dict.fromkeys([self._folder, *beside]))
            what = f"in {folders}" if not Path(name).is_absolute() else "there"
            raise SettingsError(f"the checkpoint {name[:200]!r} is no file {what}; give the path of a .safetensors file.")
        return path

    def lora(self, name: str, checkpoint: Path) -> Path:
        """The file of a LoRA.

        Raises:
            OVBackendError: there is no such file, or it is no LoRA that can be used.
        """
        folders = [self._lora_folder] if self._lora_folder is not None else [self._folder, checkpoint.parent / "lora"]
        path = _first_file(name, folders)
        if path is None:
            where = " or ".join(str(folder) for folder in folders)
            raise SettingsError(f"the LoRA {name[:200]!r} is not in {where}; put its .safetensors there or give --lora-dir.")
        self._check("lora", path, check_lora)
        return path

    def picture(self, name: str) -> Path:
        """The file of a picture to start from.

        Raises:
            OVBackendError: there is no such file, or it is no picture.
        """
        path = _first_file(name, [self._folder], ("",))
        if path is None:
            raise SettingsError(f"init_image is {name[:200]!r}, which is no file in {self._folder}; correct its path.")
        self._check("picture", path, _check_picture)
        return path

    def _check(self, kind: str, path: Path, check: Callable[[Path], int]) -> int:
        key = kind, path
        if key not in self._checked:
            try:
                self._checked[key] = check(path)
            except OVBackendError as error:
                self._checked[key] = error
        result = self._checked[key]
        if isinstance(result, OVBackendError):
            raise result
        return result


def _first_file(name: str, folders: list[Path], suffixes: Sequence[str] = ("", ".safetensors")) -> Path | None:
    try:
        candidates = [folder / f"{name}{suffix}" for folder in folders for suffix in suffixes]
        return next((path for path in candidates if path.is_file()), None)
    except (OSError, ValueError):  # no file can have such a name
        return None


def _check_picture(path: Path) -> int:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked here
            with Image.open(path, formats=_PICTURES) as picture:
                width, height = picture.size
                if width * height > _MAX_PICTURE_PIXELS:
                    most = f"at most {_MAX_PICTURE_PIXELS >> 20} million pixels are read"
                    raise SettingsError(f"init_image is {path.name[:200]!r} of {width}x{height}; {most}, so make it smaller.")
                picture.load()  # a file that was cut short shows here
    except SettingsError:
        raise
    except Exception as error:  # Pillow's readers raise what they like
        what = f"init_image is {path.name[:200]!r}, which is no picture, or not all of one"
        raise SettingsError(f"{what}; give a {', '.join(_PICTURES)}.") from error
    return width
