"""Finds the files that rows name, and checks each once before anything runs."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ov_backend.checkpoint.config import Configuration, read_configuration
from ov_backend.checkpoint.lora_file import check_fits
from ov_backend.core.errors import OVBackendError, SettingsError, first_line
from ov_backend.core.package_files import TRAINED
from ov_backend.hosts.standalone.checkpoint_files import checkpoint_file
from ov_backend.hosts.standalone.lora_tags import first_file, missing_lora
from ov_backend.hosts.standalone.prompts import chunk_count, is_short

#: Formats of pictures to start from.
PICTURES = ("PNG", "JPEG", "WEBP", "BMP")
#: The digest at the end of a checkpoint's title in the WebUI: "name.safetensors [6ce0161689]".
_HASH = re.compile(r"\s+\[[0-9a-fA-F]{6,64}\]$")
_MAX_PICTURE_PIXELS = 1 << 26


class Places:
    """Where the files of a job are.

    Args:
        folder: paths in rows are relative to it.
        checkpoint: of rows that name none; None is the project's own.
        lora_folder: of LoRAs; None is ``folder``, and the folder ``lora`` beside a row's checkpoint.
    """

    def __init__(self, folder: Path, checkpoint: Path | None = None, lora_folder: Path | None = None) -> None:
        self._folder, self._lora_folder = folder, lora_folder
        self._default = checkpoint and (_first_file(str(checkpoint), [Path()]) or checkpoint)
        self._checked: dict[tuple[object, ...], Any] = {}
        self._tokenizers: dict[Path, Any] = {}
        self._chunks: dict[tuple[Path, str], int] = {}

    def checkpoint(self, name: str | None) -> tuple[Path, Configuration]:
        """The file of a checkpoint, and its configuration.

        Raises:
            OVBackendError: there is no such file, or it is no checkpoint.
        """
        if name is not None:
            path = self._named_checkpoint(name)
            return path, self._check(path, _configuration)
        path = checkpoint_file(self._default)
        try:
            return path, self._check(path, _configuration)
        except OVBackendError as error:
            option = "the --checkpoint, which rows without one need, cannot be used"
            raise SettingsError(f"{option}: {first_line(error)}") from error

    def check_weights(self, checkpoint: Path) -> None:
        """Check the shapes of all weights of a checkpoint, for which PyTorch is imported.

        Raises:
            OVBackendError: some are missing or have wrong shapes.
        """
        from ov_backend.checkpoint.loader import check_weights

        self._check(checkpoint, check_weights)

    def chunks(self, checkpoint: Path, text: str) -> int:
        """The number of chunks of tokens that a checkpoint's text encoder reads a prompt in; short ones need no tokenizer.

        Raises:
            OVBackendError: the tokenizer cannot be used.
        """
        if is_short(text):
            return 1
        key = checkpoint, text
        if key not in self._chunks:
            if checkpoint not in self._tokenizers:
                from ov_backend.checkpoint.loader import read_tokenizer

                self._tokenizers[checkpoint] = read_tokenizer(checkpoint)
            self._chunks[key] = chunk_count(self._tokenizers[checkpoint], text)
        return self._chunks[key]

    def _named_checkpoint(self, name: str) -> Path:
        folders_searched = [self._folder, (self._default or TRAINED).parent]
        path = _first_file(name, folders_searched) or _first_file(_HASH.sub("", name), folders_searched)
        if path is None:
            folders = " or ".join(str(each) for each in dict.fromkeys(folders_searched))
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
            raise missing_lora(name, folders)
        self._check(path, check_fits, checkpoint)
        return path

    def picture(self, name: str) -> Path:
        """The file of a picture to start from.

        Raises:
            OVBackendError: there is no such file, or it is no picture.
        """
        path = _first_file(name, [self._folder], ("",))
        if path is None:
            raise SettingsError(f"init_image is {name[:200]!r}, which is no file in {self._folder}; correct its path.")
        self._check(path, _check_picture)
        return path

    def _check(self, path: Path, check: Callable[..., Any], *more: Path) -> Any:
        """What a check of a file returns or raises, which is done once."""
        key = check, path, *more
        if key not in self._checked:
            try:
                self._checked[key] = check(path, *more)
            except OVBackendError as error:
                self._checked[key] = error
            except (ImportError, MemoryError):  # no fault of the file
                raise
            except Exception as error:  # the last handler: a file of a row is reported with the row, whatever is wrong with it
                what = f"{path.name[:200]!r} cannot be used ({type(error).__name__}: {first_line(error)[:300]})"
                self._checked[key] = SettingsError(f"{what}; check its permissions, or give another file.")
        result = self._checked[key]
        if isinstance(result, OVBackendError):
            raise result
        return result


def _configuration(path: Path) -> Configuration:
    return read_configuration(path)[1]


def _first_file(name: str, folders: list[Path], suffixes: Sequence[str] = ("", ".safetensors")) -> Path | None:
    path = first_file(name, folders, suffixes)
    return _absolute(path) if path is not None else None


def _absolute(path: Path) -> Path:
    """One spelling for a file that is named in several ways. Links stay, because a checkpoint's .yaml lies beside the link."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links
    return absolute if absolute.is_file() and absolute.samefile(path) else path  # "link/.." may lead elsewhere


def _check_picture(path: Path) -> None:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked here
            with Image.open(path, formats=PICTURES) as picture:
                width, height = picture.size
                if width * height > _MAX_PICTURE_PIXELS:
                    most = f"at most {_MAX_PICTURE_PIXELS >> 20} million pixels are read"
                    raise SettingsError(f"init_image is {path.name[:200]!r} of {width}x{height}; {most}, so make it smaller.")
                picture.load()  # a file that was cut short shows here
    except SettingsError:
        raise
    except Exception as error:  # Pillow's readers raise what they like
        what = f"init_image is {path.name[:200]!r}, which is no {', '.join(PICTURES[:-1])} or {PICTURES[-1]}, or not all of one"
        raise SettingsError(f"{what}; give it as a PNG.") from error
