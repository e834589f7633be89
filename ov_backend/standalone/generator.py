"""The diffusers pipeline behind the standalone page, with the networks in OpenVINO that the panel switches on."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from ov_backend.cache.store import GraphStore
from ov_backend.engine.engine import Engine, Network
from ov_backend.errors import Interrupted, SettingsError
from ov_backend.patching import Patch, patch_forward
from ov_backend.pipelines.accelerate import networks_of
from ov_backend.pipelines.sizes import MAX_BATCH, MAX_GUIDANCE, check_batch, check_size, own_size, size_hint
from ov_backend.ui.choices import Choices, switch_of
from ov_backend.ui.controller import Controller, JobControl, Size
from ov_backend.ui.infotext import Parameters
from ov_backend.ui.status import Status

log = logging.getLogger(__name__)

_MAX_STEPS = 1000
_MAX_PROMPT = 10000


@dataclass(frozen=True)
class Generated:
    """One finished generation: its files, and the parameters that they carry as text."""

    files: tuple[Path, ...]
    infotext: str


class PictureGenerator:
    """Generates pictures, one generation at a time, in the thread of the caller.

    Args:
        pipe: a text-to-image pipeline of Stable Diffusion 1, 2 or XL.
        model: the checkpoint's name, for the pictures' parameters.
        folder: the pictures are written there.
        cache_dir: folder of the graph store; None is the user's cache folder.
    """

    def __init__(self, pipe: Any, model: str, folder: Path, cache_dir: str | None = None) -> None:
        self.pipe, self.model, self.folder = pipe, model, folder
        self.status = Status()
        self.controller = Controller(self.status, self._store, self._precompile, self._compare, self.interrupt)
        #: The files of the last generation.
        self.recent: tuple[Path, ...] = ()
        self._cache_dir = cache_dir
        self._networks: dict[str, Network] = {}
        self._engine: Engine | None = None
        self._choices = Choices()
        self._lock = threading.Lock()
        self._interrupted = threading.Event()
        self._last_batch = 1
        pipe.set_progress_bar_config(disable=True)

    @property
    def default_size(self) -> int:
        """Side in pixels of the square picture that the model was trained for."""
        return own_size(self.pipe)[0]

    def interrupt(self) -> None:
        """End the generation that is running, at its next step or while a network is prepared."""
        self._interrupted.set()

    def generate(self, parameters: Parameters, choices: Choices, picture: Image.Image | None = None) -> Generated:
        """Generate pictures.

        Args:
            parameters: the prompt and the other parameters; a seed of -1 draws one.
            choices: what runs where.
            picture: the picture to start from (img2img), or None.

        Raises:
            OVBackendError: a parameter cannot be used, or the user has interrupted it; the message says which.
        """
        check(parameters)
        if (picture is None) != (parameters.strength is None):
            raise SettingsError("A picture to start from and a strength belong together; give both or neither.")
        with self._lock:
            self._interrupted.clear()
            self._last_batch = parameters.batch
            parameters = parameters.with_seed(random.randrange(1 << 32))
            error = ""
            self.status.begin(f"Making {parameters.width}x{parameters.height}", parameters.steps)
            self._warn_about_size(parameters)
            try:
                with self._accelerated(choices):
                    pictures = self._pictures(parameters, picture)
                self.recent = tuple(self._save(p, parameters, choices, i) for i, p in enumerate(pictures))
            except Interrupted:
                error = "Interrupted."
                raise
            except Exception as problem:
                error = str(problem)
                raise
            finally:
                self.status.end(error)
            return Generated(self.recent, parameters.as_text(self.model, choices))

    def _warn_about_size(self, parameters: Parameters) -> None:
        hint = size_hint(self.pipe, parameters.width, parameters.height)
        if hint:
            self.status.add_message(hint)

    def _pictures(self, parameters: Parameters, picture: Image.Image | None, **overrides: Any) -> Any:
        import torch

        arguments: dict[str, Any] = {
            "prompt": parameters.prompt,
            "negative_prompt": parameters.negative_prompt or None,
            "num_inference_steps": parameters.steps,
            "guidance_scale": parameters.guidance,
            "num_images_per_prompt": parameters.batch,
            "generator": torch.Generator().manual_seed(parameters.seed),
            "callback_on_step_end": self._step_callback(parameters),
            **overrides,
        }
        if picture is None:
            return self.pipe(width=parameters.width, height=parameters.height, **arguments).images
        start = picture.convert("RGB").resize((parameters.width, parameters.height), Image.Resampling.LANCZOS)
        return self._image_to_image()(image=start, strength=parameters.strength, **arguments).images

    def _step_callback(self, parameters: Parameters) -> Callable[..., dict[str, Any]]:
        def after_step(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
            self.status.step(step + 1, getattr(pipe, "num_timesteps", None) or parameters.steps)
            if self._interrupted.is_set():
                raise Interrupted("Interrupted.")
            return kwargs

        return after_step

    def _image_to_image(self) -> Any:
        import diffusers

        xl = "XL" in type(self.pipe).__name__
        name = "StableDiffusionXLImg2ImgPipeline" if xl else "StableDiffusionImg2ImgPipeline"
        options = {"add_watermarker": False} if xl else {"requires_safety_checker": False}
        pipe = getattr(diffusers, name)(**self.pipe.components, **options)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    @contextlib.contextmanager
    def _accelerated(self, choices: Choices) -> Iterator[None]:
        """Run the chosen networks in OpenVINO in this block; compiled networks are kept after it."""
        engine = self._configure(choices)
        patches: list[Patch] = []
        try:
            for role, module in networks_of(self.pipe).items():
                if getattr(choices, switch_of(role)):
                    patches.append(patch_forward(module, self._replacement(engine, role, module)))
            yield
        finally:
            for patch in patches:
                patch.undo()

    def _replacement(self, engine: Engine, role: str, module: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def replace(original: Callable[..., Any]) -> Callable[..., Any]:
            if role not in self._networks:
                self._networks[role] = engine.network(role, module, original)
            return self._networks[role]

        return replace

    def _configure(self, choices: Choices) -> Engine:
        settings = choices.settings(self._cache_dir)
        if self._engine is None:
            self._engine = Engine(settings, self.status.progress, interrupted=self._interrupted.is_set)
            self.status.attach(self._engine)
        else:
            self._engine.configure(settings)
        self._choices = choices
        return self._engine

    def _store(self) -> GraphStore | None:
        from ov_backend import compiler

        return self._engine.store if self._engine else compiler.open_store(self._choices.settings(self._cache_dir))

    def _precompile(self, sizes: Sequence[Size], batch: int, choices: Choices | None, control: JobControl) -> None:
        """Warm up with a generation of one step for every size: networks are called as the pipeline will really call them."""

        def generate(width: int, height: int, batch: int) -> None:
            self._pictures(Parameters(width=width, height=height, steps=1, batch=batch), None)

        with self._lock:
            self._interrupted.clear()
            with self._accelerated(choices or self._choices):
                control.prepare(sizes, batch, generate)

    def _compare(self, choices: Choices | None, control: JobControl) -> dict[str, Any]:
        """Time one step by PyTorch and by OpenVINO, for the last batch and the size that the model was trained for."""
        side, batch = self.default_size, self._last_batch

        def openvino_seconds() -> float:
            with self._accelerated(dataclasses.replace(choices or self._choices, unet=True)):
                return self._step_seconds(side, batch, control)

        with self._lock:
            self._interrupted.clear()
            return control.compare(side, batch, lambda: self._step_seconds(side, batch, control), openvino_seconds)

    def _step_seconds(self, side: int, batch: int, control: JobControl) -> float:
        """Seconds of the second of two steps; the first one includes the preparation of the networks."""
        ends: list[float] = []

        def after_step(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
            control.step(control.job.done, control.job.text)  # raises where the user has cancelled the job
            ends.append(time.perf_counter())
            return kwargs

        parameters = Parameters(width=side, height=side, steps=2, batch=batch)
        self._pictures(parameters, None, callback_on_step_end=after_step, output_type="latent")
        return ends[1] - ends[0]

    def _save(self, picture: Image.Image, parameters: Parameters, choices: Choices, index: int) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", parameters.as_text(self.model, choices))
        path = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{parameters.seed}-{time.time_ns() % 10**9:09d}-{index}.png"
        picture.save(path, pnginfo=info)
        return path


def check(parameters: Parameters) -> None:
    """Check that pictures can be generated with these parameters.

    Raises:
        SettingsError: they cannot; the message says what is expected.
    """
    for name, value, low, high in (
        ("Steps", parameters.steps, 1, _MAX_STEPS),
        ("The batch", parameters.batch, 1, MAX_BATCH),
        ("The seed", parameters.seed, -1, (1 << 63) - 1),
    ):
        if not low <= value <= high:
            raise SettingsError(f"{name} is {value}; it must be from {low} to {high}.")
    for name, text in (("The prompt", parameters.prompt), ("The negative prompt", parameters.negative_prompt)):
        if len(text) > _MAX_PROMPT:
            raise SettingsError(f"{name} has {len(text)} characters; at most {_MAX_PROMPT} are read, so shorten it.")
    if not abs(parameters.guidance) <= MAX_GUIDANCE:
        raise SettingsError(f"The guidance is {parameters.guidance}; it must be from {-MAX_GUIDANCE} to {MAX_GUIDANCE}, as 7.")
    check_size(parameters.width, parameters.height)
    check_batch(parameters.width, parameters.height, parameters.batch)
    if parameters.strength is not None and not 0 < parameters.strength <= 1:
        raise SettingsError(f"The strength is {parameters.strength}; it must be above 0 and at most 1.")
