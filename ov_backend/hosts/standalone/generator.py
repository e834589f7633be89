"""The diffusers pipeline behind the standalone page, with the networks in OpenVINO that the panel switches on."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from ov_backend.checkpoint import load_pipeline
from ov_backend.checkpoint.lora import LoraMix
from ov_backend.core.errors import Interrupted, SettingsError, short_repr
from ov_backend.core.patching import Patch, patch_forward
from ov_backend.engine.ahead.history import History, kind_of
from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.engine.engine import Engine, Network
from ov_backend.hosts.standalone.comparing import Comparing
from ov_backend.hosts.standalone.generated import Generated, write_pictures
from ov_backend.hosts.standalone.generation_queue import Turns
from ov_backend.hosts.standalone.limits import check
from ov_backend.hosts.standalone.lora_tags import lora_files, plain
from ov_backend.hosts.standalone.pipeline_call import Masked, Start, call_pipeline, decoded
from ov_backend.hosts.standalone.preview import LatentPreview, Steps
from ov_backend.hosts.standalone.readiness import STOPPED, Preparer, request_of
from ov_backend.hosts.standalone.samplers import DEFAULT, make_sampler
from ov_backend.hosts.standalone.upscalers import Upscalers, upscaler_network
from ov_backend.pipelines.accelerate import begin_run, networks_of
from ov_backend.pipelines.forwards import forward_of, network_of
from ov_backend.pipelines.sizes import own_size, size_hint
from ov_backend.store.store import GraphStore
from ov_backend.ui.choices import Choices, switch_of
from ov_backend.ui.controller import Controller, JobControl, Size
from ov_backend.ui.infotext import UPSCALER, Parameters, ran_where
from ov_backend.ui.likely import Likely, likely
from ov_backend.ui.requested_shape import RequestedShape
from ov_backend.ui.snapshot import INTERRUPTED
from ov_backend.ui.status import Status

log = logging.getLogger(__name__)


class PictureGenerator(Comparing):
    """Generates pictures, one generation at a time, in the thread of the caller.

    Args:
        pipe: a text-to-image pipeline of Stable Diffusion 1, 2 or XL.
        model: the checkpoint's name, for the pictures' parameters.
        folder: the pictures are written there.
        cache_dir: folder of the graph store; None is that of the environment, else the user's cache folder.
        lora_folders: of the LoRAs that prompts name.
        choices: what runs where, until a visitor chooses.
        upscaler_folder: of the upscalers for hires fix, or None.
    """

    def __init__(
        self,
        pipe: Any,
        model: str,
        folder: Path,
        cache_dir: str | None = None,
        lora_folders: Sequence[Path] = (),
        choices: Choices | None = None,
        upscaler_folder: Path | None = None,
    ) -> None:
        self.pipe, self.model, self.folder = pipe, model, folder
        #: Those to choose from, by name; none where there is no choice.
        self.checkpoints: dict[str, Path] = {}
        self.status = Status()
        jobs = self._precompile, self._compare, self.interrupt, self._compare_int8
        self._preparer = Preparer(self._prepare_likely, self._drop_prepared)
        self.controller = Controller(self.status, self._store, *jobs, ready=self._preparer.ask)
        #: The files of the last generation.
        self.recent: tuple[Path, ...] = ()
        #: The parameters of the generation that is running, as they were given, and its newest preview.
        self.current: Parameters | None = None
        self.preview: Image.Image | None = None
        self._cache_dir = cache_dir
        self._networks: dict[str, Network] = {}
        self._engine: Engine | None = None
        self.defaults = self._choices = choices or Choices()
        self.lora_folders, self._mix = lora_folders, LoraMix(pipe)
        self.upscalers = Upscalers(upscaler_folder)
        self._turns = Turns()
        self._last_batch = 1
        #: Parameters and the picture to start from of the last generation, which a comparison repeats.
        self._last: tuple[Parameters, Start] | None = None
        self._previews: LatentPreview | None = None
        self._own_sampler = pipe.scheduler
        pipe.set_progress_bar_config(disable=True)

    @property
    def default_size(self) -> int:
        """Side in pixels of the square picture that the model was trained for."""
        return own_size(self.pipe)[0]

    def interrupt(self) -> None:
        """End the generation that is running, at its next step or while a network is prepared."""
        self._turns.interrupt()

    def generate(
        self,
        parameters: Parameters,
        choices: Choices,
        picture: Start = None,
        withdrawn: threading.Event | None = None,
        model: str = "",
    ) -> Generated:
        """Generate pictures. An interruption after the first step keeps what there is of them.

        Args:
            parameters: the prompt and the other parameters; a seed of -1 draws one.
            choices: what runs where.
            picture: the picture to start from (img2img), with a mask where only a part is made anew, or None.
            withdrawn: an event; once it is set, these pictures are interrupted, also while they wait for their turn.
            model: the checkpoint to use, by its name; "" is the one that is loaded.

        Raises:
            Interrupted: the user has interrupted it before its first step was done.
            OVBackendError: a parameter cannot be used; the message says which.
        """
        check(parameters)
        lora_files(parameters.prompt, self.lora_folders)
        if (picture is None and parameters.hires == 1) != (parameters.strength is None):
            raise SettingsError("A picture to start from, or hires fix, and a strength belong together; give both or neither.")
        if picture is not None and parameters.hires != 1:
            raise SettingsError("Hires fix needs a picture made from noise; set it to 1, or remove the picture to start from.")
        with self._turns.taken(withdrawn):
            self._load(model)
            self.upscalers.load(parameters)
            self._last_batch = parameters.batch
            self.current = parameters
            parameters = parameters.with_seed(random.randrange(1 << 32))
            error = ""
            steps = Steps(self.status, parameters.steps, self._turns.is_interrupted, self._show)
            self.status.begin(f"Making {parameters.width}x{parameters.height}", parameters.steps)
            if hint := size_hint(self.pipe, parameters.width, parameters.height):
                self.status.add_message(hint)
            try:
                pictures = self._generate(parameters, choices, picture, steps)
                is_small = self._turns.is_interrupted() and pictures[0].size != parameters.final_size
                cut = (steps.done, steps.steps) if steps.is_cut or is_small else None
                ran = ran_where(self.status.snapshot()["networks"], choices)
                all_of = [parameters, *map(parameters.of_picture, range(parameters.batch))]
                more = ran, cut[0] if cut else None, isinstance(picture, Masked)
                text, *texts = (each.as_text(self.model, choices, *more) for each in all_of)
                self.recent = write_pictures(self.folder, pictures, texts, parameters.seed)
                self._last = parameters, picture
            except Interrupted:
                error = INTERRUPTED
                raise
            except Exception as problem:
                error = str(problem)
                raise
            finally:
                self.current = self.preview = None
                self.status.end(error or (INTERRUPTED if self._turns.is_interrupted() else ""))
            return Generated(self.recent, text, cut)

    def load(self, model: str) -> None:
        """Load one of the checkpoints to choose from, once nothing runs; see :meth:`generate`.

        Raises:
            OVBackendError: there is none of this name, or it cannot be read; the one that was loaded is then kept.
        """
        with self._turns.taken():
            self._load(model)

    def _load(self, model: str) -> None:
        if model in ("", self.model):
            return
        if model not in self.checkpoints:
            raise SettingsError(f"The checkpoint {short_repr(model)} is not here; choose one of {', '.join(self.checkpoints)}.")
        self.status.begin(f"Loading {model}")
        error = ""
        try:
            pipe = load_pipeline(self.checkpoints[model])
        except Exception as problem:
            error = str(problem)
            raise
        finally:
            self.status.end(error)
        for name in self._networks:
            if self._engine is not None:
                self._engine.release(name)
        self.pipe, self.model, self._own_sampler = pipe, model, pipe.scheduler
        self._networks, self._mix, self._previews, self._last = {}, LoraMix(pipe), None, None
        pipe.set_progress_bar_config(disable=True)

    def _generate(self, parameters: Parameters, choices: Choices, picture: Start, steps: Steps) -> list[Image.Image]:
        """The pictures; after an interruption those predicted, decoded by PyTorch if the decoder is not compiled."""
        self._fit_previews()
        try:
            with self._accelerated(choices, request_of(parameters, choices, picture is not None)):
                watching = steps.predicted.watching
                return self._pictures(parameters, picture, watching=watching, callback_on_step_end=steps)
        except Interrupted:
            if steps.latents is None:
                raise
        return decoded(self.pipe, steps.latents)

    def _fit_previews(self) -> None:
        """Fit the previews to the decoder, once; no turn can begin meanwhile, and the decoder is not patched."""
        if self._previews is None:
            self._previews = LatentPreview(self.pipe.vae)

    def _show(self, latents: Any) -> None:
        assert self._previews is not None
        self.preview = self._previews(latents)

    def _pictures(self, parameters: Parameters, picture: Start, **overrides: Any) -> list[Image.Image]:
        self._mix.apply(lora_files(parameters.prompt, self.lora_folders))
        without_tags = dataclasses.replace(parameters, prompt=plain(parameters.prompt))
        pictures = call_pipeline(self.pipe, self._own_sampler, without_tags, picture, **overrides)
        if parameters.hires == 1 or self._turns.is_interrupted():
            return pictures
        pictures = self.upscalers.enlarge(parameters, pictures, self._tile_begins)
        width, height = parameters.final_size
        enlarged = dataclasses.replace(without_tags, width=width, height=height)
        return call_pipeline(self.pipe, self._own_sampler, enlarged, pictures, **overrides)

    def _tile_begins(self, number: int, total: int) -> None:
        self.status.between_steps(f"Enlarging, tile {number} of {total}")
        if self._turns.is_interrupted():
            raise Interrupted("the user has interrupted the upscaler")

    @contextlib.contextmanager
    def _accelerated(self, choices: Choices, request: str = "") -> Iterator[None]:
        """Run the chosen networks in OpenVINO in this block; compiled networks are kept after it.

        Args:
            choices: what runs where.
            request: of the generation in this block, see :meth:`Engine.begin_run`.
        """
        engine = self._configure(choices)
        patches: list[Patch] = []
        completed, networks = False, {}
        try:
            for role, module in {**networks_of(self.pipe), **self.upscalers.modules}.items():
                if getattr(choices, switch_of(role)):
                    patches.append(patch_forward(module, self._replacement(engine, role, module)))
                    networks[role] = self._networks[role]
            if request:
                begin_run(engine, request, networks)
            yield
            completed = True
        finally:
            engine.end_run(completed)
            for patch in patches:
                patch.undo()

    def prepare_likely(self, enabled: bool = True) -> threading.Thread | None:
        """Prepare in the background what the last generation with this kind of model has called; a generation goes first.

        Args:
            enabled: otherwise nothing is prepared, None is returned in place of the thread, and the next start tries it again.
        """
        return self._preparer.start(self._store(), enabled)

    def _prepare_likely(self, marker: CrashSentinel, asked: RequestedShape | None) -> None:
        modules, store = networks_of(self.pipe), self._store()
        if store is None or "unet" not in modules:
            return

        def waits() -> bool:  # a changed size waits for the end of the generation that runs, unless the size changes again
            return asked is not None and not self._preparer.superseded

        with self._turns.spare(waits) as free:  # for the look at weights and code, a moment; nobody waits for a compile
            run = likely(History(store).runs(kind_of(modules["unet"])), asked) if free else None
            if run is None:
                return
            if marker.died():
                self.status.add_message(STOPPED)
                return
            marker.set()
            engine = self._configure(run.choices)
            networks = [self._network(engine, role, module, module.forward) for role, module in modules.items()]
            begun = engine.prepare_ahead(run.calls, networks)
            if self._preparer.superseded:
                engine.resources.ahead.cancel()
        engine.resources.ahead.wait()
        ready = partial(self._show_ready, engine, run, networks, begun > 0)
        traces = partial(engine.trace_ahead, run.calls, networks)
        self._do_early(traces, self._fit_previews, lambda: make_sampler(DEFAULT, self._own_sampler), ready)

    def _show_ready(self, engine: Engine, run: Likely, networks: Sequence[Network], is_new: bool) -> None:
        """Show what is ready, if everything is; no turn can begin meanwhile."""
        may_show = self.status.may_show_ready(run.size, is_new) and self._engine is engine and not self._preparer.superseded
        if may_show and engine.is_prepared(run.calls, networks):
            self.status.job = run.ready()

    def _drop_prepared(self) -> None:
        if self._engine is not None and self._engine.resources.run is None:
            self._engine.resources.ahead.cancel()

    def _do_early(self, *parts: Callable[[], object]) -> None:
        """Do what a first generation would do before its first step; one that is running does it itself.

        A generation that begins meanwhile waits for the part in progress, which it then need not do.
        """
        for part in parts:
            with self._turns.spare() as free:
                if free:
                    part()

    def close(self) -> None:
        """The process ends because somebody ends it: if networks are being prepared, the next start prepares them again."""
        store = self._store()
        if store is not None:
            CrashSentinel(store.folder).remove()

    def _replacement(self, engine: Engine, role: str, module: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda original: forward_of(self._network(engine, role, module, original), module, original)

    def _network(self, engine: Engine, role: str, module: Any, original: Callable[..., Any]) -> Network:
        if role not in self._networks or self._networks[role].module is not module:
            make = upscaler_network if role == UPSCALER else network_of
            self._networks[role] = make(engine, role, module, original)
        return self._networks[role]

    def _configure(self, choices: Choices) -> Engine:
        settings = choices.settings(self._cache_dir)
        if self._engine is None:
            self._engine = Engine(settings, self.status.progress, interrupted=self._turns.is_interrupted)
            self.status.attach(self._engine)
        else:
            self._engine.configure(settings)
        self._choices = choices
        return self._engine

    def _store(self) -> GraphStore | None:
        from ov_backend.model import compiler

        return self._engine.store if self._engine else compiler.open_store(self._choices.settings(self._cache_dir))

    def _precompile(self, sizes: Sequence[Size], batch: int, choices: Choices | None, control: JobControl) -> None:
        """Warm up with a generation of one step for every size: networks are called as the pipeline will really call them."""

        def generate(width: int, height: int, batch: int) -> None:
            self._pictures(Parameters(width=width, height=height, steps=1, batch=batch), None)

        with self._turns.taken(), self._accelerated(choices or self._choices):
            control.prepare(sizes, batch, generate)
