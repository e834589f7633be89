"""The demo: one picture of a checkpoint file by PyTorch and by OpenVINO, with the difference and the seconds of both."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ov_backend.checkpoint import load_pipeline
from ov_backend.checkpoint.lora import LoraMix
from ov_backend.core import devices
from ov_backend.core.atomic_file import atomic_write
from ov_backend.core.settings import Settings
from ov_backend.hosts.standalone.demo_sheet import sheet
from ov_backend.hosts.standalone.lora_tags import lora_files, plain
from ov_backend.hosts.standalone.pipeline_call import check_finite
from ov_backend.hosts.standalone.prompts import long_embeddings
from ov_backend.hosts.standalone.request import Request, cannot_write, checkpoint_file
from ov_backend.hosts.standalone.samplers import make_sampler, sampler_named
from ov_backend.hosts.standalone.suggestions import Suggestions, suggestions_for
from ov_backend.pipelines.accelerate import Accelerated, accelerate
from ov_backend.pipelines.sizes import own_size, size_hint
from ov_backend.ui.comparison import psnr
from ov_backend.ui.snapshot import PREPARATION, STAGES, network_label

log = logging.getLogger(__name__)

#: From this share of the processors on, other programs make the seconds worth little.
_MUCH = 0.25


@dataclass(frozen=True)
class Seconds:
    """Wall-clock seconds of one generation, without the preparation of networks; ``step`` is the fastest step.

    Other programs only make a step slower, so the fastest one says most about the machine.
    """

    text: float
    step: float
    vae: float
    total: float


@dataclass(frozen=True)
class Result:
    """Both pictures, [height, width, 3] uint8, and the measurements.

    Attributes:
        prepared: seconds of preparation by stage, spent once.
        speedup: PyTorch's seconds divided by OpenVINO's.
        difference: "largest" and "mean" absolute difference of the pictures, 0 to 255, and "psnr_db", which is None for equal
            pictures.
        fallbacks: by network, how often PyTorch answered for which reason.
        other_programs: a sentence where they use so much of the processor that the seconds say little, else "".
    """

    checkpoint: str
    size: tuple[int, int]
    steps: int
    seed: int
    guidance: float
    device: str
    precision: str
    pytorch: Seconds
    openvino: Seconds
    prepared: dict[str, float]
    speedup: dict[str, float]
    difference: dict[str, float | None]
    fallbacks: dict[str, dict[str, int]]
    networks: dict[str, dict[str, Any]]
    out: str
    other_programs: str
    pictures: tuple[np.ndarray, np.ndarray]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, without the pictures."""
        fields = {name: value for name, value in vars(self).items() if name not in ("pictures", "pytorch", "openvino")}
        return {**fields, "pytorch": asdict(self.pytorch), "openvino": asdict(self.openvino)}


def run(request: Request, settings: Settings) -> Result:
    """Generate with PyTorch in f32, then with OpenVINO, and write both and their difference as one PNG.

    Raises:
        CheckpointError: the file is no checkpoint that can be read.
        DeviceError: the device is not there, or cannot compute in that precision.
        SettingsError: the request has both a checkpoint and random weights, or the sheet cannot be written.
    """
    devices.check(settings)
    load = _load()
    path = checkpoint_file(request.checkpoint, request.random)
    pipe = load_pipeline(path)
    _use_sampler(pipe, request.sampler)
    LoraMix(pipe).apply(lora_files(request.prompt, request.lora_folders))
    own = suggestions_for(path.stem)
    seed = request.seed if request.seed >= 0 else random.randrange(1 << 32)
    request = dataclasses.replace(request, steps=request.steps or own.steps, seed=seed)
    size = request.size or own_size(pipe)
    hint = size_hint(pipe, *size)
    if hint:
        log.warning("%s", hint)
    guidance = request.guidance if request.guidance is not None else own.guidance
    generation = _Generation(pipe, request, size, guidance)
    expected, pytorch = generation.run("PyTorch")
    with accelerate(pipe, settings) as accelerated:
        actual, openvino = generation.run("OpenVINO", accelerated)
        networks = accelerated.stats()
    difference = np.abs(expected.astype(int) - actual.astype(int))
    precision, decibels = devices.resolved_precision(settings), psnr(Image.fromarray(expected), Image.fromarray(actual))
    ratio = decibels if math.isfinite(decibels) else None
    _write(sheet(expected, actual, difference, precision), request.out)
    return Result(
        checkpoint=str(path),
        size=size,
        steps=request.steps or own.steps,
        seed=seed,
        guidance=guidance,
        device=settings.device,
        precision=precision,
        pytorch=pytorch,
        openvino=openvino,
        prepared={stage: _sum(networks, stage) for stage in PREPARATION},
        speedup={name: getattr(pytorch, name) / max(getattr(openvino, name), 1e-9) for name in ("step", "vae", "total")},
        difference={"largest": int(difference.max()), "mean": float(difference.mean()), "psnr_db": ratio},
        fallbacks={name: values["fallbacks"] for name, values in networks.items() if values["fallbacks"]},
        networks=networks,
        out=str(request.out),
        other_programs=other_programs(load, _load(), os.cpu_count() or 1),
        pictures=(expected, actual),
    )


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


class _Generation:
    """Generates and times one picture, with a progress bar."""

    def __init__(
        self, pipe: Any, request: Request, size: tuple[int, int], guidance: float = Suggestions.guidance
    ) -> None:
        self._pipe, self._request, self._size, self._guidance = pipe, request, size, guidance

    def run(self, label: str, accelerated: Accelerated | None = None) -> tuple[np.ndarray, Seconds]:
        """Generate in PyTorch, or with ``accelerated`` networks.

        A picture of one step is generated first, which is not timed: on both sides the first call of every network takes longer
        than the others, and in OpenVINO it prepares the network.

        Returns:
            the picture, [height, width, 3] uint8, and the seconds of its parts.
        """
        from tqdm import tqdm

        steps = self._request.steps or Suggestions.steps
        with tqdm(total=steps, desc=f"{label:8}", unit="step") as bar:
            if accelerated is not None:
                accelerated.engine.resources.progress = lambda network, stage, _: bar.set_postfix_str(
                    "" if stage == "ready" else f"{STAGES.get(stage, stage)} {network_label(network)}"
                )
            bar.set_postfix_str("warm-up")
            self._timed(1, lambda: None)
            bar.set_postfix_str("")
            bar.unpause()
            return self._timed(steps, bar.update)

    def _timed(self, steps: int, advance: Callable[[], Any]) -> tuple[np.ndarray, Seconds]:
        marks = [time.perf_counter()]

        def after_step(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            marks.append(time.perf_counter())
            advance()
            return tensors

        with torch.inference_mode():
            embeds = self._prompt_embeds()
            marks.append(time.perf_counter())
            (picture,) = self._pipe(
                **embeds,
                width=self._size[0],
                height=self._size[1],
                num_inference_steps=steps,
                guidance_scale=self._guidance,
                generator=torch.Generator("cpu").manual_seed(self._request.seed),
                callback_on_step_end=after_step,
                output_type="np",
            ).images
        marks.append(time.perf_counter())
        check_finite(picture)
        text, *steps_seconds, vae = (after - before for before, after in itertools.pairwise(marks))
        seconds = Seconds(text, min(steps_seconds), vae, marks[-1] - marks[0])
        return (picture * 255).round().clip(0, 255).astype(np.uint8), seconds

    def _prompt_embeds(self) -> dict[str, torch.Tensor]:
        is_guided, prompt = self._guidance > 1, plain(self._request.prompt)
        chunked = long_embeddings(self._pipe, prompt, self._request.negative, is_guided)
        if chunked:
            return chunked
        embeds = self._pipe.encode_prompt(
            prompt=prompt,
            negative_prompt=self._request.negative or None,  # which SDXL encodes in another way than ""
            device=torch.device("cpu"),
            num_images_per_prompt=1,
            do_classifier_free_guidance=is_guided,
        )
        names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
        return dict(zip(names, embeds))


def _sum(networks: dict[str, dict[str, Any]], stage: str) -> float:
    return float(sum(values["seconds"].get(stage, 0.0) for values in networks.values()))


def _use_sampler(pipe: Any, name: str) -> None:
    pipe.scheduler = make_sampler(sampler_named(name), pipe.scheduler)
    pipe.set_progress_bar_config(disable=True)


def _write(image: Image.Image, out: Path) -> None:
    """Write a picture, whole or not at all: one of this name stays until the new one is complete, and a link leads to it."""
    try:
        # Path.resolve raises RuntimeError for a link that leads to itself, before Python 3.13
        with atomic_write(Path(os.path.realpath(out))) as file:
            image.save(file, format="PNG")
    except OSError as error:
        raise cannot_write(out, error) from error
