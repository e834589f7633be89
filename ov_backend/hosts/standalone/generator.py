"""The diffusers pipeline behind the standalone page, with the networks in OpenVINO that the panel switches on."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ov_backend.checkpoint import load_pipeline
from ov_backend.core.errors import Interrupted, SettingsError, short_repr
from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.hosts.standalone.generated import Generated, write_pictures
from ov_backend.hosts.standalone.limits import check
from ov_backend.hosts.standalone.lora_tags import lora_files
from ov_backend.hosts.standalone.pipeline_call import Masked, Start, decoded
from ov_backend.hosts.standalone.pipeline_host import PictureRequest, PipelineHost
from ov_backend.hosts.standalone.preview import LatentPreview, Steps
from ov_backend.hosts.standalone.samplers import DEFAULT, make_sampler
from ov_backend.hosts.standalone.upscalers import Upscalers
from ov_backend.pipelines.sizes import own_size, size_hint
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import Controller
from ov_backend.ui.host import StepEnded
from ov_backend.ui.infotext import Parameters, ran_where

log = logging.getLogger(__name__)


class PictureGenerator(PipelineHost):
    """The host of the page: generates pictures, one generation at a time, in the thread of the caller.

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
        super().__init__(pipe, cache_dir, choices)
        self.model, self.folder = model, folder
        #: Those to choose from, by name; none where there is no choice.
        self.checkpoints: dict[str, Path] = {}
        self.controller = Controller(self)
        #: The files of the last generation.
        self.recent: tuple[Path, ...] = ()
        #: The parameters of the generation that is running, as they were given, and its newest preview.
        self.current: Parameters | None = None
        self.preview: Image.Image | None = None
        self.defaults = self.choices()
        self.lora_folders = lora_folders
        self.upscalers = Upscalers(upscaler_folder)
        self._prepares = False
        self._last: PictureRequest | None = None
        self._previews: LatentPreview | None = None

    @property
    def default_size(self) -> int:
        """Side in pixels of the square picture that the model was trained for."""
        return own_size(self.pipe)[0]

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
        with self.turns.taken(withdrawn):
            self._load(model)
            check(parameters, self.pipe.scheduler.config.num_train_timesteps)
            self.upscalers.load(parameters)
            self.current = parameters
            parameters = parameters.with_seed(random.randrange(1 << 32))
            steps = Steps(self.status, parameters.steps, self.turns.is_interrupted, self._show)
            what = f"Making {parameters.width}x{parameters.height}"
            try:
                with self.status.generation(what, parameters.steps, self.turns.is_interrupted):
                    if hint := size_hint(self.pipe, parameters.width, parameters.height):
                        self.status.add_message(hint)
                    pictures = self._generate(parameters, choices, picture, steps)
                    is_small = self.turns.is_interrupted() and pictures[0].size != parameters.final_size
                    cut = (steps.done, steps.steps) if steps.is_cut or is_small else None
                    ran = ran_where(self.status.snapshot()["networks"], choices)
                    all_of = [parameters, *map(parameters.of_picture, range(parameters.batch))]
                    more = ran, cut[0] if cut else None, isinstance(picture, Masked)
                    text, *texts = (each.as_text(self.model, choices, *more) for each in all_of)
                    self.recent = write_pictures(self.folder, pictures, texts, parameters.seed)
                    self._last = PictureRequest(parameters, picture, self.recent)
            finally:
                self.current = self.preview = None
            return Generated(self.recent, text, cut)

    def load(self, model: str) -> None:
        """Load one of the checkpoints to choose from, once nothing runs; see :meth:`generate`.

        Raises:
            OVBackendError: there is none of this name, or it cannot be read; the one that was loaded is then kept.
        """
        before = self.pipe
        with self.turns.taken():
            self._load(model)
        if self.pipe is not before:
            self.controller.readiness.model_loaded()

    def _load(self, model: str) -> None:
        if model in ("", self.model):
            return
        if model not in self.checkpoints:
            raise SettingsError(f"The checkpoint {short_repr(model)} is not here; choose one of {', '.join(self.checkpoints)}.")
        with self.status.generation(f"Loading {model}"):
            pipe = load_pipeline(self.checkpoints[model])
        self.use(pipe)
        self.model, self._previews, self._last = model, None, None

    def _generate(self, parameters: Parameters, choices: Choices, picture: Start, steps: Steps) -> list[Image.Image]:
        """The pictures; after an interruption those predicted, decoded by PyTorch if the decoder is not compiled."""
        self._fit_previews()
        self.set_loras(lora_files(parameters.prompt, self.lora_folders))
        try:
            watching = steps.predicted.watching
            return self.pictures(parameters, picture, choices, watching=watching, callback_on_step_end=steps)
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

    def _modules(self) -> dict[str, Any]:
        return {**super()._modules(), **self.upscalers.modules}

    def _pictures(self, parameters: Parameters, picture: Start, **overrides: Any) -> list[Image.Image]:
        pictures = super()._pictures(parameters, picture, **overrides)
        if parameters.hires == 1 or self.turns.is_interrupted():
            return pictures
        pictures = self.upscalers.enlarge(parameters, pictures, self._tile_begins)
        width, height = parameters.final_size
        return super()._pictures(dataclasses.replace(parameters, width=width, height=height), pictures, **overrides)

    def _tile_begins(self, number: int, total: int) -> None:
        self.status.between_steps(f"Enlarging, tile {number} of {total}")
        if self.turns.is_interrupted():
            raise Interrupted("the user has interrupted the upscaler")

    def make(self, request: PictureRequest, choices: Choices | None, ended: StepEnded, steps_only: bool = False) -> Image.Image:
        """See :class:`ov_backend.ui.host.Host`; with the upscaler and the LoRAs that the request names."""
        self.upscalers.load(request.parameters)
        self.set_loras(lora_files(request.parameters.prompt, self.lora_folders))
        return super().make(request, choices, ended, steps_only)

    def last_request(self) -> PictureRequest | None:
        """With the generation's files."""
        return self._last

    def prepare_likely(self, enabled: bool = True) -> None:
        """The process has started, and prepares ahead from now on; or it does not, and the next start tries it again."""
        self._prepares = enabled
        (self.controller.readiness.model_loaded if enabled else self.controller.readiness.try_again)()

    def prepares_ahead(self) -> bool:
        """Whether the start was to prepare."""
        return self._prepares

    def before_first_step(self) -> Sequence[Callable[[], object]]:
        """Fit the previews, and import the sampler."""
        return self._fit_previews, lambda: make_sampler(DEFAULT, self.own_sampler)

    def close(self) -> None:
        """The process ends because somebody ends it: if networks are being prepared, the next start prepares them again."""
        store = self.store()
        if store is not None:
            CrashSentinel(store.folder).remove()
