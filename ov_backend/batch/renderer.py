"""Makes the pictures of rows in this process. What the next row needs too stays: checkpoint, LoRAs, compiled networks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ov_backend.batch.executor import OPENVINO, RenderedRow
from ov_backend.batch.row import Row
from ov_backend.batch.row_files import PICTURES
from ov_backend.checkpoint import load_pipeline
from ov_backend.core import devices
from ov_backend.core.errors import OVBackendError
from ov_backend.core.settings import Settings
from ov_backend.hosts.standalone.pipeline_host import PipelineHost
from ov_backend.memory.eviction import budget_bytes
from ov_backend.ui.choices import Choices
from ov_backend.ui.snapshot import PREPARATION, network_label


class PipelineRenderer:
    """Makes pictures with a pipeline of diffusers, one row at a time.

    Args:
        settings: of the engine; the precision is each row's own.
        progress: called at the stages of preparing networks, as ``accelerate`` does.
        step: called after each step, as diffusers' ``callback_on_step_end``.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Callable[[str, str, Any], None] | None = None,
        step: Callable[..., dict[str, Any]] | None = None,
    ) -> None:
        self._settings, self._progress = settings, progress
        self._callback: dict[str, Any] = {} if step is None else {"callback_on_step_end": step}
        self._checkpoint: Path | None = None
        self._broken: dict[Path, OVBackendError] = {}
        #: How often checkpoints were loaded and LoRAs changed.
        self.loads = self.bindings = 0

    def render(self, row: Row) -> RenderedRow:
        """Make the pictures of a row.

        Raises:
            OVBackendError: the checkpoint, a LoRA or the picture to start from cannot be read.
        """
        start = time.perf_counter()
        self._load(row.checkpoint)
        choices = Choices(self._settings.device, row.precision)
        self._host.configure(choices)
        self.bindings += self._host.set_loras(row.loras)
        loaded = time.perf_counter()
        before = self.stats()
        picture = _opened(row.picture) if row.picture is not None else None
        images = self._host.pictures(row.parameters, picture, choices, **self._callback)
        end, after = time.perf_counter(), self.stats()
        prepared = min(_preparation(after) - _preparation(before), end - loaded)  # networks prepare at the same time
        answered = _answered(before, after, row.precision)
        return RenderedRow(images, max(end - loaded - prepared, 0.0), loaded - start + prepared, answered)

    def _load(self, path: Path) -> None:
        """Load a checkpoint; one that cannot be read is not tried again."""
        if path == self._checkpoint:
            return
        if path in self._broken:
            raise self._broken[path]
        self.close()
        devices.check_properties(self._settings)
        try:
            pipe = load_pipeline(path)
        except OVBackendError as error:
            self._broken[path] = error
            raise
        self.loads += 1
        self._host, self._checkpoint = PipelineHost(pipe, settings=self._settings, progress=self._progress), path

    def close(self) -> None:
        """Release the checkpoint and everything compiled."""
        if self._checkpoint is not None:
            if self._host.engine is not None:
                self._host.engine.clear()
            self._host.release()
            del self._host
            self._checkpoint = None

    def stats(self) -> dict[str, dict[str, Any]]:
        """The engine's statistics of the checkpoint that is loaded."""
        engine = self._host.engine if self._checkpoint is not None else None
        return engine.stats() if engine is not None else {}


def renderer_for(settings: Settings, processes: int) -> PipelineRenderer:
    """The renderer of one process, where several processes of a machine share its memory for compiled networks."""
    return PipelineRenderer(settings.replace(memory_mb=max(budget_bytes(settings.memory_mb) // processes >> 20, 1)))


def _opened(path: Path) -> Any:
    """A picture as viewers show it: upright if a camera lay on its side; what is transparent becomes white, as in the WebUI."""
    import numpy as np
    from PIL import Image, ImageOps

    with Image.open(path, formats=PICTURES) as file:
        picture = ImageOps.exif_transpose(file)
        if picture.mode.startswith("I"):  # grey of 16 bits, of which Pillow would cut off all above 255
            picture = Image.fromarray((np.asarray(picture).clip(0, 65535) / 257).round().astype(np.uint8))
        if picture.mode not in ("RGBA", "LA", "PA") and "transparency" not in picture.info:
            return picture.convert("RGB")
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _preparation(stats: Mapping[str, Mapping[str, Any]]) -> float:
    """The seconds for which networks were prepared, by their statistics."""
    return math.fsum(values["seconds"].get(stage, 0.0) for values in stats.values() for stage in PREPARATION)


def _answered(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], precision: str) -> str:
    """What answered the calls between two statistics, and which of it computed in f32 though another precision was asked for."""

    def fallbacks(values: Mapping[str, Any]) -> int:
        return sum(values["fallbacks"].values())

    def in_f32(values: Mapping[str, Any]) -> int:
        return int(values["in_f32"]) if precision != "f32" else 0

    parts = [OPENVINO]
    for count, where in ((fallbacks, "PyTorch"), (in_f32, "f32")):
        names = [name for name, values in after.items() if count(values) > (count(before[name]) if name in before else 0)]
        parts += [f"{', '.join(map(network_label, names))} in {where}"] if names else []
    return "; ".join(parts)
