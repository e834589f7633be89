"""The panel's routes in the WebUI, with its own authentication, and what the panel's buttons do there."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

from modules import call_queue, processing, script_callbacks, shared

from ov_backend import compiler
from ov_backend.cache.store import GraphStore
from ov_backend.errors import Interrupted
from ov_backend.ui.auth import has_password
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import Control, Controller, Size, Unavailable
from ov_backend.ui.routes import add_routes
from ov_backend.webui.generation import Generation
from ov_backend.webui.session import CACHE_DIR, empty_conditionings, session
from ov_backend.webui.settings_page import defaults

#: Steps of a comparison; the first one has what is prepared in it.
_STEPS = 3


def register() -> None:
    """Ask the WebUI for its calls; it forgets them whenever it loads its scripts."""
    script_callbacks.on_app_started(lambda _, app: add_routes(app, controller, lambda request: _allowed(app, request)))
    script_callbacks.on_cfg_denoised(lambda _: marks.add())


class Marks:
    """When steps ended, while somebody wants to know."""

    def __init__(self) -> None:
        self.seconds: list[float] | None = None

    def add(self) -> None:
        """A step has ended."""
        if self.seconds is not None:
            self.seconds.append(time.perf_counter())

    @contextlib.contextmanager
    def taken(self) -> Iterator[list[float]]:
        """The ends of the steps in this block."""
        found: list[float] = []
        self.seconds = found
        try:
            yield found
        finally:
            self.seconds = None


def credentials(text: str | None) -> dict[str, str]:
    """Password by user, of the WebUI's ``--api-auth user:password,user:password``."""
    pairs = (each.strip().partition(":") for each in (text or "").split(",") if each.strip())
    return {user: password for user, _, password in pairs}


def _allowed(app: Any, request: Any) -> bool:
    """Who is logged in to the page, or has the API's password; everybody where neither is asked for."""
    api = credentials(getattr(shared.cmd_opts, "api_auth", None))
    page = getattr(app, "auth", None) is not None
    if has_password(request.headers, api):
        return True
    if page:
        token = request.cookies.get("access-token") or request.cookies.get("access-token-unsecure")
        return token is not None and token in getattr(app, "tokens", {})
    return not api


def _store() -> GraphStore | None:
    if session.engine is not None:
        return session.engine.store
    return compiler.open_store(defaults().settings(str(CACHE_DIR)))


def _precompile(sizes: Sequence[Size], batch: int, choices: Choices | None, control: Control) -> None:
    """Rehearse a short generation of every size: networks get ready for what the WebUI will really call them with."""
    control.prepare(sizes, batch, lambda width, height, batch: _generate(width, height, batch, choices or defaults()))


def _compare(choices: Choices | None, control: Control) -> dict[str, Any]:
    """Seconds of one step by PyTorch and by OpenVINO on the loaded model, its own size, one picture."""
    side = 1024 if getattr(shared.sd_model, "is_sdxl", False) else 512
    control.step(0, "Timing PyTorch")
    pytorch = _step_seconds(side, None)
    control.step(1, "Timing OpenVINO")
    openvino = _step_seconds(side, dataclasses.replace(choices or defaults(), unet=True))
    control.step(2, "")
    return {"size": f"{side}x{side}", "batch": 1, "pytorch_seconds": pytorch, "openvino_seconds": openvino}


class _Sampled(Exception):
    """The steps are done, and the picture is not wanted."""


class _Timed(processing.StableDiffusionProcessingTxt2Img):
    """A generation that ends after its steps."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Take the steps and end."""
        super().sample(*args, **kwargs)
        raise _Sampled


def _step_seconds(side: int, choices: Choices | None) -> float:
    """Seconds of the last of a few steps; in PyTorch without choices.

    Raises:
        Interrupted: the user ended it before.
    """
    with marks.taken() as ends:
        _generate(side, side, 1, choices, _Timed, _STEPS)
    if len(ends) < _STEPS:
        raise Interrupted("Ended by the user.")
    return ends[-1] - ends[-2]


def _generate(
    width: int,
    height: int,
    batch: int,
    choices: Choices | None,
    kind: type[Any] = processing.StableDiffusionProcessingTxt2Img,
    steps: int = 1,
) -> None:
    """Make a picture that nobody keeps, when the WebUI is free; in PyTorch without choices."""
    with call_queue.queue_lock, _job():
        p = kind(sd_model=shared.sd_model, width=width, height=height, batch_size=batch, steps=steps, sampler_name="Euler")
        p.do_not_save_samples = p.do_not_save_grid = True
        with Generation(p, choices) if choices is not None else contextlib.nullcontext():
            for name, cache in empty_conditionings().items():  # a warm-up encodes nothing but zeros, which no prompt may find
                setattr(p, name, cache)
            with contextlib.suppress(_Sampled):
                processing.process_images(p)


@contextlib.contextmanager
def _job() -> Iterator[None]:
    """A job of the WebUI's that leaves the prompt history alone."""
    if shared.sd_model is None:
        raise Unavailable("No model is loaded.")
    history = shared.cmd_opts.no_prompt_history
    shared.cmd_opts.no_prompt_history = True
    shared.state.begin(job="openvino")
    try:
        yield
    finally:
        shared.state.end()
        shared.cmd_opts.no_prompt_history = history


marks = Marks()
#: What the panel and its routes work with, one for this process.
controller = Controller(session.status, _store, _precompile, _compare, lambda: shared.state.interrupt())
