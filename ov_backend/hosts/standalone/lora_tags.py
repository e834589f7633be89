"""LoRAs in a prompt, as the WebUI writes them: ``<lora:name:0.8>``. What names them, and where their files are."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ov_backend.core.errors import SettingsError, short_repr

LORA_TAG = re.compile(r"<lora:([^:<>]*)(?::([^<>]*))?>", re.IGNORECASE)
_MOST = 100


def is_name(text: str) -> bool:
    """Whether a name of a LoRA can stand in a tag."""
    return re.fullmatch(r"[^:<>,]+", text) is not None


def plain(prompt: str) -> str:
    """A prompt without the tags of LoRAs."""
    return LORA_TAG.sub("", prompt).strip()


def lora_tag(name: str, strength: float) -> str:
    """The tag of a LoRA, from which its strength is read as it is, to the last digit."""
    short = f"{strength:g}"
    return f"<lora:{name}:{short if float(short) == strength else strength}>"


def lora_strength(name: str, value: Any) -> float:
    """Read the strength of a LoRA; "" is 1.

    Raises:
        SettingsError: it is no number.
    """
    if isinstance(value, str) and not value.strip():
        return 1.0
    is_readable = isinstance(value, (numbers.Real, str)) and not isinstance(value, bool) and "_" not in str(value)
    try:
        strength = float(value) if is_readable else math.nan
    except (ValueError, OverflowError):
        strength = math.nan
    what = f"the strength of the LoRA {short_repr(name)} is"
    if not math.isfinite(strength):
        raise SettingsError(f"{what} {short_repr(value)}; it must be a number, as 0.8.")
    if abs(strength) > _MOST:
        raise SettingsError(f"{what} {strength:g}; it must be from -{_MOST} to {_MOST}, as 0.8.")
    return strength


def loras_of(prompt: str) -> dict[str, float]:
    """The LoRAs that a prompt names, with their strengths.

    Raises:
        SettingsError: one is named twice, or its strength is no number.
    """
    loras: dict[str, float] = {}
    for name, strength in LORA_TAG.findall(prompt):
        if not name.strip():
            raise SettingsError("a <lora:...> in the prompt has no name; write <lora:name:0.8>.")
        if name.strip() in loras:
            raise SettingsError(f"the LoRA {short_repr(name.strip())} is named twice; leave one of them.")
        loras[name.strip()] = lora_strength(name.strip(), strength)
    if "<lora:" in LORA_TAG.sub("", prompt).lower():
        raise SettingsError("a <lora: in the prompt has no end; write <lora:name:0.8>.")
    return loras


def lora_folders(checkpoint: Path, chosen: Path | None) -> tuple[Path, ...]:
    """The folder that is chosen, else the folder ``lora`` beside a checkpoint.

    Raises:
        SettingsError: what is chosen is no folder.
    """
    if chosen is not None and not chosen.is_dir():
        raise SettingsError(f"--lora-dir is {short_repr(str(chosen))}, which is no folder; give the folder of the LoRAs.")
    return (chosen if chosen is not None else checkpoint.parent / "lora",)


def lora_names(folders: Sequence[Path]) -> list[str]:
    """The LoRAs that prompts can name, sorted."""
    found = {path.relative_to(folder).with_suffix("").as_posix() for folder in folders for path in folder.rglob("*.safetensors")}
    return sorted(filter(is_name, found), key=str.lower)


def lora_files(
    prompt: str, folders: Sequence[Path], checkpoint: Path | None = None
) -> tuple[tuple[Path, float], ...]:
    """The files and strengths of the LoRAs that a prompt names.

    Args:
        prompt: any.
        folders: are searched in this order.
        checkpoint: that they have to fit; None where that is found out later.

    Raises:
        OVBackendError: one is not there, or is no LoRA that can be used.
    """
    loras: dict[Path, float] = {}
    for name, strength in loras_of(prompt).items():
        path = first_file(name, folders) if not _leads_out(name) else None
        if path is None:
            raise missing_lora(name, folders)
        if path in loras:
            raise named_twice(path, name)
        check_lora(path, checkpoint)
        loras[path] = strength
    return tuple((path, strength) for path, strength in loras.items() if strength)


def check_lora(path: Path, checkpoint: Path | None) -> None:
    """Check the header of a LoRA's file, and against that of a checkpoint where there is one.

    Raises:
        CheckpointError: it is no LoRA that can be used.
    """
    from ov_backend.checkpoint.lora_file import check_fits, read_layers

    read_layers(path) if checkpoint is None else check_fits(path, checkpoint)


def _leads_out(name: str) -> bool:
    """Whether a name leads out of the folders: what a visitor of a page writes shows nothing of other files."""
    return bool(Path(name).anchor) or ".." in Path(name).parts


def named_twice(path: Path, name: str) -> SettingsError:
    """The error for a LoRA that has a second name in the same prompt, as a sentence."""
    return SettingsError(f"the LoRA {short_repr(path.stem)} is named twice, once as {short_repr(name)}; leave one of them.")


def missing_lora(name: str, folders: Sequence[Path]) -> SettingsError:
    """The error for a LoRA that no folder has, as a sentence."""
    where = " or ".join(map(str, folders))
    return SettingsError(f"the LoRA {name[:200]!r} is not in {where}; put its .safetensors there or give --lora-dir.")


def first_file(name: str, folders: Sequence[Path], suffixes: Sequence[str] = ("", ".safetensors")) -> Path | None:
    """The first file of this name in the folders, with or without its suffix; None where there is none."""
    try:
        candidates = (folder / f"{name}{suffix}" for folder in folders for suffix in suffixes)
        return next((path for path in candidates if path.is_file()), None)
    except (OSError, ValueError):  # no file can have such a name
        return None
