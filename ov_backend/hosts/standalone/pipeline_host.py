"""The host of a diffusers pipeline, by which the page, ``generate``, ``demo`` and ``batch`` call networks; one after another.

Who waits for the pipeline, and who has asked to end what runs, is in :class:`Turns`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from ov_backend.checkpoint.lora import LoraMix
from ov_backend.core.errors import Interrupted
from ov_backend.core.patching import Patch, patch_forward
from ov_backend.core.settings import Settings
from ov_backend.engine.ahead.history import RememberedCall
from ov_backend.engine.engine import Engine, Network, Progress
from ov_backend.hosts.standalone.lora_tags import plain
from ov_backend.hosts.standalone.pipeline_call import Start, call_pipeline
from ov_backend.hosts.standalone.upscalers import upscaler_network
from ov_backend.pipelines.accelerate import begin_run, networks_of
from ov_backend.pipelines.forwards import forward_of, network_of
from ov_backend.pipelines.sizes import own_size
from ov_backend.ui.choices import Choices, switch_of
from ov_backend.ui.host import Host, Size, StepEnded
from ov_backend.ui.infotext import UPSCALER, Parameters
from ov_backend.ui.likely import RequestedShape, request_of
from ov_backend.ui.status import Status

#: Seconds between two looks whether somebody who waits should go on waiting.
_LOOK_S = 0.1


class Turns:
    """The lock of a pipeline, and whether its holder is asked to stop."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._interrupted = threading.Event()
        #: Set when nobody wants the result of the present turn any more.
        self._withdrawn: threading.Event | None = None

    def interrupt(self) -> None:
        """Ask the holder of the present turn to stop; between two turns this does nothing."""
        self._interrupted.set()

    def is_interrupted(self) -> bool:
        """Whether the user has interrupted the present turn, or has withdrawn the request that it serves."""
        withdrawn = self._withdrawn
        return self._interrupted.is_set() or (withdrawn is not None and withdrawn.is_set())

    @contextlib.contextmanager
    def taken(self, withdrawn: threading.Event | None = None) -> Iterator[None]:
        """Wait for a turn, and have it in this block. What was interrupted before does not count for it.

        Args:
            withdrawn: an event that ends the waiting, and the turn, once it is set.

        Raises:
            Interrupted: the request was withdrawn while it waited.
        """
        while not self.lock.acquire(timeout=_LOOK_S):
            if withdrawn is not None and withdrawn.is_set():
                raise Interrupted("the request was withdrawn while it waited")
        try:
            self._interrupted.clear()
            self._withdrawn = withdrawn
            yield
        finally:
            self._withdrawn = None
            self.lock.release()


T = TypeVar("T")


@dataclass(frozen=True)
class PictureRequest:
    """Parameters, the picture to start from, and the files of what was made with them."""

    parameters: Parameters
    start: Start = None
    files: tuple[Path, ...] = ()

    @property
    def size(self) -> Size:
        """Width and height in pixels, before hires fix."""
        return self.parameters.width, self.parameters.height

    def with_seed(self, more: int) -> PictureRequest:
        """The first picture of a batch, with a seed that is so much larger."""
        seed = (self.parameters.seed + more) % (1 << 63)
        return dataclasses.replace(self, parameters=dataclasses.replace(self.parameters, batch=1, seed=seed))

    def warm_up(self) -> PictureRequest:
        """In one step, of as many as diffusers skips."""
        steps = math.ceil(1 / (self.parameters.strength or 1))
        return dataclasses.replace(self, parameters=dataclasses.replace(self.parameters, steps=steps))


class PipelineHost(Host):
    """One pipeline at a time, and one engine for all.

    Args:
        pipe: a text-to-image pipeline of Stable Diffusion 1, 2 or XL.
        cache_dir: folder of the graph store; None is that of the environment, else the user's cache folder.
        choices: what runs where, until somebody chooses.
        settings: of the engine, where choices change only device and precision; None is what choices say alone.
        progress: called at the stages of preparing networks; None is the status.
    """

    retry_advice = "start once with --no-prepare and then without it"
    engine = property(lambda self: self._engine)
    lock = property(lambda self: self.turns.lock)

    def __init__(
        self,
        pipe: Any,
        cache_dir: str | None = None,
        choices: Choices | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.status, self.turns, self.cache_dir = Status(), Turns(), cache_dir
        self._settings, self._progress = settings, progress or self.status.progress
        self._engine: Engine | None = None
        self._choices = choices or Choices()
        self._networks: dict[str, Network] = {}
        self.use(pipe)

    def release(self) -> None:
        """Release the networks; otherwise their weights could never be freed."""
        for name in self._networks if self._engine is not None else ():
            self._engine.release(name)  # type: ignore[union-attr]
        self._networks = {}

    def use(self, pipe: Any) -> None:
        """Take this pipeline in place of the one before."""
        self.release()
        #: The pipeline, and the scheduler that the checkpoint came with.
        self.pipe, self.own_sampler = pipe, pipe.scheduler
        self._mix = LoraMix(pipe)
        pipe.set_progress_bar_config(disable=True)

    def configure(self, choices: Choices) -> Engine:
        """See :class:`Host`."""
        if self._settings is not None:
            settings = self._settings.replace(device=choices.device, precision=choices.precision)
        else:
            settings = choices.settings(self.cache_dir)
        if self._engine is None:
            self._engine = Engine(settings, self._progress, interrupted=self.turns.is_interrupted)
            self.status.attach(self._engine)
        else:
            self._engine.configure(settings)
        self._choices = choices
        return self._engine

    def choices(self) -> Choices:
        """Those of the last generation."""
        return self._choices

    def denoiser(self) -> Any:
        """The UNet."""
        return networks_of(self.pipe).get("unet")

    def networks(self, calls: Sequence[RememberedCall], choices: Choices) -> list[Network]:
        """All of the pipeline."""
        engine = self._engine or self.configure(choices)
        return [self._network(engine, role, module, module.forward) for role, module in networks_of(self.pipe).items()]

    def alone(self, function: Callable[[], T]) -> T:
        """In a turn of its own, which can be interrupted."""
        with self.turns.taken():
            return function()

    def interrupt(self) -> None:
        """End the generation that is running, at its next step or while a network is prepared."""
        self.turns.interrupt()

    def request(self, size: Size | None = None, batch: int = 1, steps: int = 1) -> PictureRequest:
        """See :class:`Host`."""
        width, height = size or own_size(self.pipe)
        return PictureRequest(Parameters(width=width, height=height, batch=batch, steps=steps))

    def make(self, request: PictureRequest, choices: Choices | None, ended: StepEnded, steps_only: bool = False) -> Image.Image:
        """See :class:`Host`."""

        def after_step(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            ended(step + 1, getattr(pipe, "num_timesteps", None) or request.parameters.steps)
            return tensors

        options: dict[str, Any] = {"output_type": "latent"} if steps_only else {}
        with self.accelerated(choices) if choices is not None else contextlib.nullcontext():
            first, *_ = self._pictures(request.parameters, request.start, callback_on_step_end=after_step, **options)
        return first

    @contextlib.contextmanager
    def accelerated(self, choices: Choices, request: str = "") -> Iterator[None]:
        """Run the chosen networks in OpenVINO in this block; compiled networks are kept after it.

        Args:
            choices: what runs where.
            request: of the generation in this block, see :meth:`Engine.begin_run`; "" is one that nobody repeats.
        """
        engine = self.configure(choices)
        patches: list[Patch] = []
        completed, networks = False, {}
        try:
            for role, module in self._modules().items():
                if getattr(choices, switch_of(role)):
                    patches.append(patch_forward(module, self._replacement(engine, role, module)))
                    networks[role] = self._networks[role]
            if request:
                begin_run(engine, request, networks)
            else:
                for network in networks.values():
                    network.begin_run()  # after a picture that calibrates the next one is made in int8
            yield
            completed = not self.turns.is_interrupted()
        finally:
            engine.end_run(completed)
            for patch in patches:
                patch.undo()

    def set_loras(self, loras: Sequence[tuple[Path, float]]) -> bool:
        """Put these LoRAs into the weights and no others, before they are compiled; whether that changed anything."""
        return self._mix.apply(loras)

    def pictures(self, parameters: Parameters, picture: Start, choices: Choices, **overrides: Any) -> list[Image.Image]:
        """The pictures of one generation; what the last one like this has called is prepared while the prompt is encoded.

        Args:
            parameters: its parameters; tags of LoRAs are for :meth:`set_loras` and left out of the prompt.
            picture: to start from, or None.
            choices: what runs where.
            overrides: see :func:`call_pipeline`.
        """
        shape = RequestedShape(parameters.width, parameters.height, parameters.batch, picture is not None)
        more = {"hires": parameters.hires} if parameters.hires != 1 else {}
        with self.accelerated(choices, request_of(shape, parameters.guidance > 1, choices, **more)):
            return self._pictures(parameters, picture, **overrides)

    def _pictures(self, parameters: Parameters, picture: Start, **overrides: Any) -> list[Image.Image]:
        without_tags = dataclasses.replace(parameters, prompt=plain(parameters.prompt))
        return call_pipeline(self.pipe, self.own_sampler, without_tags, picture, **overrides)

    def _modules(self) -> dict[str, Any]:
        return networks_of(self.pipe)

    def _replacement(self, engine: Engine, role: str, module: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda original: forward_of(self._network(engine, role, module, original), module, original)

    def _network(self, engine: Engine, role: str, module: Any, original: Callable[..., Any]) -> Network:
        if role not in self._networks or self._networks[role].module is not module:
            make = upscaler_network if role == UPSCALER else network_of
            self._networks[role] = make(engine, role, module, original)
        return self._networks[role]
