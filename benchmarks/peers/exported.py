"""What the peers share that run a copy of the pipeline, exported to their own format: changed weights are exported again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.picture import Picture, Report, draw
from benchmarks.peers.weights import lora_changes


class Exported:
    """A pipeline that is exported before it is read."""

    #: Whether to count the time of an export that exists already, because another peer made it in this run.
    counts_export = False
    #: The exported pipeline, with diffusers' interface.
    pipe: Any

    def __init__(self, keep: Path, report: Report) -> None:
        self.keep, self.report = keep, report

    def load(self, checkpoint: Path) -> None:
        """Export the checkpoint unless that was done before, and read the export."""
        self._release()
        self.exported = self._export(checkpoint)
        self._read()

    def _release(self) -> None:
        """Give the memory of the pipeline back that was read before: an export needs much."""
        self.pipe = None

    def _export(self, checkpoint: Path) -> Path:
        exported = self.keep / checkpoint.name
        seconds_file = self.keep / f"{checkpoint.name}.seconds"  # written last: without it, the export is incomplete
        if not seconds_file.is_file():
            start = time.perf_counter()
            shutil.rmtree(exported, ignore_errors=True)
            self._write(checkpoint, exported)
            seconds_file.write_text(str(time.perf_counter() - start))
            self.report("export", seconds=float(seconds_file.read_text()), shared=False)
        elif self.counts_export:
            self.report("export", seconds=float(seconds_file.read_text()), shared=True)
        return exported

    def _write(self, checkpoint: Path, exported: Path) -> None:
        """Export the checkpoint into a new folder."""
        raise NotImplementedError

    def _read(self) -> None:
        """Read the pipeline from the folder ``self.exported``."""
        raise NotImplementedError

    def picture(self, width: int, height: int, steps: int) -> Picture:
        """Draw a picture."""
        return draw(self.pipe, width, height, steps, torch.float32)

    def second_checkpoint(self, checkpoint: Path) -> None:
        """Export the second checkpoint, and read it instead of the first."""
        self.load(checkpoint)

    def lora(self, path: Path) -> None:
        """Merge the LoRA, save, export and read everything again, because the pipeline holds a copy of the weights."""
        merged = path.parent / "merged"
        shutil.rmtree(merged, ignore_errors=True)
        self._release()
        _merge(path.parent / self.exported.name, path, merged)
        self.exported = self._export(merged)
        shutil.rmtree(merged)
        self._read()

    def recompile(self) -> bool:
        """Return False: there is nothing to recompile."""
        return False


@torch.no_grad()
def _merge(checkpoint: Path, lora: Path, merged: Path) -> None:
    """Write a copy of the checkpoint with the LoRA merged into its UNet."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, merged)
    file = Path("unet") / "diffusion_pytorch_model.safetensors"
    tensors = load_file(str(checkpoint / file))
    for name, change in lora_changes(lora, list(tensors)):
        tensors[name] += change
    save_file(tensors, str(merged / file), {"format": "pt"})
