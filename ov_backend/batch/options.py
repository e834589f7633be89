"""The options of a batch, checked before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ov_backend.batch.cluster import LOCAL, check_address
from ov_backend.core.errors import SettingsError, short_repr
from ov_backend.core.settings import PRECISIONS, Settings
from ov_backend.hosts.standalone.lora_tags import lora_folders

#: The value of ``workers`` that stands for one process on each machine.
AUTO = "auto"
MAX_WORKERS = 1024
#: Precisions of a batch; the first picture of int8 would be computed in another one.
BATCH_PRECISIONS = tuple(each for each in PRECISIONS if each != "int8")


@dataclass(frozen=True)
class Options:
    """Options of a batch.

    Attributes:
        checkpoint: of rows that name none; None is the project's own.
        lora_dir: folder of LoRAs; None is the job file's folder, and the folder ``lora`` beside a checkpoint.
        precision: of rows that name none.
        device: an OpenVINO device; None is the default.
        low_memory: whether the weights are offloaded to the disk once they are compiled, as in :class:`ov_backend.Settings`.
        cache_dir: folder of the graph store; None is that of the environment, else the user's cache folder.
        replace: replace pictures of other values that are in the folder; otherwise the run refuses to.
        skip_bad_rows: leave out rows that are bad; otherwise nothing runs before all are right.
        contact_sheet: draw pages of thumbnails at the end.
        ray: address of the Ray cluster that makes the pictures, "auto" for one that runs on this machine, "local" to start Ray
            here; None is this process, unless ``workers`` is given.
        workers: number of processes on Ray, on this machine where ``ray`` is None; None and "auto" are one for each machine.
    """

    checkpoint: Path | None = None
    lora_dir: Path | None = None
    precision: str = "auto"
    device: str | None = None
    low_memory: str = "auto"
    cache_dir: str | None = None
    replace: bool = False
    skip_bad_rows: bool = False
    contact_sheet: bool = True
    ray: str | None = None
    workers: int | str | None = None

    @property
    def address(self) -> str | None:
        """The address of Ray; None where this process makes the pictures."""
        return LOCAL if self.ray is None and self.workers is not None else self.ray

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings of the engine."""
        given = {"device": self.device, "cache_dir": self.cache_dir}  # without them the environment's, as everywhere
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return Settings(precision=self.precision, low_memory=self.low_memory, **chosen)

    def check(self) -> None:
        """Check what needs no device.

        Raises:
            SettingsError: an option cannot be used.
        """
        if self.precision not in BATCH_PRECISIONS:
            what = f"precision is {short_repr(self.precision)}"
            raise SettingsError(f"{what}; it must be one of {', '.join(BATCH_PRECISIONS)} in a batch.")
        if self.workers not in (None, AUTO) and not (type(self.workers) is int and 1 <= self.workers <= MAX_WORKERS):
            raise SettingsError(f"--workers is {short_repr(self.workers)}; give a number from 1 to {MAX_WORKERS}, or {AUTO}.")
        if self.address is not None:
            check_address(self.address)
        lora_folders(Path(), self.lora_dir)
