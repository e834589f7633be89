"""The demo: one picture of a checkpoint file by PyTorch and by OpenVINO, with the difference and the seconds of both."""

from __future__ import annotations

import logging
import math
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ov_backend.checkpoint import load_pipeline
from ov_backend.core import devices
from ov_backend.core.atomic_file import atomic_write
from ov_backend.core.errors import SettingsError
from ov_backend.core.settings import Settings
from ov_backend.hosts.standalone.pipeline_host import PictureRequest, PipelineHost
from ov_backend.pipelines.sizes import size_hint
from ov_backend.ui.choices import Choices
from ov_backend.ui.comparison import Comparison, Measured, psnr
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.jobs import JobControl, compare
from ov_backend.ui.snapshot import PREPARATION, STAGES, Job, network_label

log = logging.getLogger(__name__)

#: From this share of the processors on, other programs make the seconds worth little.
_MUCH = 0.25


def run(
    path: Path, parameters: Parameters, loras: tuple[tuple[Path, float], ...], out: Path, settings: Settings
) -> dict[str, Any]:
    """Generate with PyTorch in f32, then with OpenVINO, and write both and their difference as one PNG.

    Returns:
        What there is to tell, for JSON. "pytorch" and "openvino" have the seconds of a "step" and of the whole picture ("total")
        without preparing networks, which "prepared" has by stage; "speedup" has the first divided by the second. "difference"
        has the "largest" and the "mean" absolute one, 0 to 255, and "psnr_db", None for equal pictures. "fallbacks" are counts
        by network and reason. "other_programs" is a sentence where these use much of the processor, else "".

    Raises:
        CheckpointError: the file is no checkpoint that can be read.
        DeviceError: the device is not there, or cannot compute in that precision.
        SettingsError: the sheet cannot be written.
    """
    load = _load()
    compared, networks = _compared(path, parameters, loras, settings)
    pytorch, openvino = _seconds(compared.first), _seconds(compared.second)
    expected, actual = np.asarray(compared.first.picture), np.asarray(compared.second.picture)
    difference, precision = np.abs(expected.astype(int) - actual.astype(int)), devices.resolved_precision(settings)
    decibels = psnr(Image.fromarray(expected), Image.fromarray(actual))
    _write(sheet(expected, actual, difference, precision), out)
    return {
        "checkpoint": str(path),
        "size": [parameters.width, parameters.height],
        "steps": parameters.steps,
        "seed": parameters.seed,
        "guidance": parameters.guidance,
        "device": settings.device,
        "precision": precision,
        "pytorch": pytorch,
        "openvino": openvino,
        "prepared": {stage: _sum(networks, stage) for stage in PREPARATION},
        "speedup": {name: pytorch[name] / max(openvino[name], 1e-9) for name in pytorch},
        "difference": {
            "largest": int(difference.max()),
            "mean": float(difference.mean()),
            "psnr_db": decibels if math.isfinite(decibels) else None,
        },
        "fallbacks": {name: values["fallbacks"] for name, values in networks.items() if values["fallbacks"]},
        "networks": networks,
        "out": str(out),
        "other_programs": other_programs(load, _load(), os.cpu_count() or 1),
    }


def _compared(
    path: Path, parameters: Parameters, loras: tuple[tuple[Path, float], ...], settings: Settings
) -> tuple[Comparison, dict[str, dict[str, Any]]]:
    """Both pictures with their seconds, and the statistics of the networks."""
    from tqdm import tqdm

    pipe = load_pipeline(path)
    if hint := size_hint(pipe, parameters.width, parameters.height):
        log.warning("%s", hint)
    with tqdm(bar_format="{desc} [{elapsed}]{postfix}") as bar:

        def stage(network: str, name: str, signature: Any) -> None:
            bar.set_postfix_str("" if name == "ready" else f"{STAGES.get(name, name)} {network_label(network)}")

        host = PipelineHost(pipe, settings=settings, progress=stage)
        host.set_loras(loras)
        control = _Shown(Job("compare"), threading.Event(), bar)
        compared = compare(host, control, PictureRequest(parameters), Choices(settings.device, settings.precision))
    return compared, host.engine.stats()


@dataclass(frozen=True)
class _Shown(JobControl):
    """Shows in a progress bar what a comparison does."""

    bar: Any

    def step(self, done: int, text: str) -> None:
        """See :class:`JobControl`."""
        super().step(done, text)
        self.bar.set_description_str(text)


def _seconds(side: Measured) -> dict[str, float]:
    assert side.picture_seconds is not None
    return {"step": side.step_seconds, "total": side.picture_seconds}


def _load() -> float:
    """How many threads of all programs have used or awaited a processor in the last minute; 0 where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0


def other_programs(before: float, after: float, processors: int) -> str:
    """A sentence where other programs use the processors, else "".

    Args:
        before: the load before the demo.
        after: the load at its end, with its own threads, of which there are no more than processors.
        processors: how many there are.
    """
    load = max(before, after - processors)
    if load < _MUCH * processors:
        return ""
    used = f"load {load:.1f}, processors {processors}"
    return f"Other programs use the processor ({used}), so these seconds say little; end them and run this again."


def _sum(networks: dict[str, dict[str, Any]], stage: str) -> float:
    return float(sum(values["seconds"].get(stage, 0.0) for values in networks.values()))


def _write(image: Image.Image, out: Path) -> None:
    """Write a picture, whole or not at all: one of this name stays until the new one is complete, and a link leads to it."""
    try:
        # Path.resolve raises RuntimeError for a link that leads to itself, before Python 3.13
        with atomic_write(Path(os.path.realpath(out))) as file:
            image.save(file, format="PNG")
    except OSError as error:
        raise SettingsError(f"{out} cannot be written ({error.strerror or error}); give another file with --out.") from error


_BAR, _GAP = 28, 8
_PAPER, _INK = (255, 255, 255), (20, 20, 20)


def gain(largest: int) -> int:
    """The factor that makes a difference visible: a power of two that keeps the largest within 255, 64 at most."""
    factor = 1
    while factor < 64 and largest * factor * 2 <= 255:
        factor *= 2
    return factor


def sheet(expected: np.ndarray, actual: np.ndarray, difference: np.ndarray, precision: str) -> Image.Image:
    """Draw both pictures and their difference side by side.

    Args:
        expected: PyTorch's picture, [height, width, 3] uint8.
        actual: OpenVINO's picture, of the same shape.
        difference: their absolute difference, 0 to 255.
        precision: the precision that OpenVINO computed in; PyTorch computes in f32.
    """
    largest = int(difference.max())
    factor = gain(largest)
    columns = (
        ("PyTorch, f32", expected),
        (f"OpenVINO, {precision}", actual),
        (f"Difference x{factor}  (largest {largest} of 255)", (difference * factor).clip(0, 255).astype(np.uint8)),
    )
    font = ImageFont.load_default()
    height, width = expected.shape[:2]
    column = max(width, *(int(font.getlength(label)) + _GAP for label, _ in columns))
    image = Image.new("RGB", (3 * column + 4 * _GAP, height + _BAR + _GAP), _PAPER)
    draw = ImageDraw.Draw(image)
    for i, (label, pixels) in enumerate(columns):
        left = _GAP + i * (column + _GAP)
        draw.text((left, _BAR // 3), label, fill=_INK, font=font)
        image.paste(Image.fromarray(pixels), (left, _BAR))
    return image
