"""The panel's routes in the WebUI, behind the WebUI's own authentication, and what the panel's buttons do there."""

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
from ov_backend.ui.controller import Controller, JobControl, Size, Unavailable
from ov_backend.ui.hosts import KnownHosts, names_in
from ov_backend.ui.routes import add_routes
from ov_backend.webui.generation import Generation
from ov_backend.webui.session import CACHE_DIR, empty_conditionings, session
from ov_backend.webui.settings_page import ALLOWED_HOSTS, HOSTS_ADVICE, defaults

#: Steps of a comparison; the first one includes the preparation of the networks.
_COMPARED_STEPS = 3


def register() -> None:
    """Register the WebUI's callbacks; it forgets them whenever it loads its scripts."""
    script_callbacks.on_app_started(lambda _, app: _add_routes(app))
    script_callbacks.on_cfg_denoised(lambda _: step_times.add())


def _add_routes(app: Any) -> None:
    names = KnownHosts(_own_names, HOSTS_ADVICE, lambda request: _is_open(app, request))
    add_routes(app, controller, lambda request: _is_allowed(app, request), names)


class StepTimes:
    """When steps end, while a block records it."""

    def __init__(self) -> None:
        self._seconds: list[float] | None = None

    def add(self) -> None:
        """A step has ended."""
        if self._seconds is not None:
            self._seconds.append(time.perf_counter())

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[float]]:
        """The ends of the steps in this block, in seconds of ``perf_counter``."""
        seconds: list[float] = []
        self._seconds = seconds
        try:
            yield seconds
        finally:
            self._seconds = None


def credentials(text: str | None) -> dict[str, str]:
    """Read the WebUI's ``--api-auth user:password,user:password`` into passwords by user."""
    pairs = (each.strip().partition(":") for each in (text or "").split(",") if each.strip())
    return {user: password for user, _, password in pairs}


def _is_allowed(app: Any, request: Any) -> bool:
    """Whether a request is logged in to the page or has the API's password; any is where neither is required."""
    api_credentials = _api_credentials()
    if has_password(request.headers, api_credentials):
        return True
    if getattr(app, "auth", None) is not None:
        token = request.cookies.get("access-token") or request.cookies.get("access-token-unsecure")
        return token is not None and token in getattr(app, "tokens", {})
    return not api_credentials


def _is_open(app: Any, request: Any) -> bool:
    """Whether a request proves no login; a page that everybody may load gives its token to everybody."""
    return getattr(app, "auth", None) is None and not has_password(request.headers, _api_credentials())


def _api_credentials() -> dict[str, str]:
    return credentials(getattr(shared.cmd_opts, "api_auth", None))


def _own_names() -> list[str]:
    """``--server-name``, the share link that is open now, and the names of the settings."""
    share_link = getattr(getattr(shared, "demo", None), "share_url", None)
    texts = (getattr(shared.cmd_opts, "server_name", None), share_link, getattr(shared.opts, ALLOWED_HOSTS, ""))
    return [name for text in texts for name in names_in(text)]


def _store() -> GraphStore | None:
    if session.engine is not None:
        return session.engine.store
    return compiler.open_store(defaults().settings(str(CACHE_DIR)))


def _precompile(sizes: Sequence[Size], batch: int, choices: Choices | None, control: JobControl) -> None:
    """Warm up with a generation of one step for every size: networks are called as the WebUI will really call them."""
    control.prepare(sizes, batch, lambda width, height, batch: _generate(width, height, batch, choices or defaults()))


def _compare(choices: Choices | None, control: JobControl) -> dict[str, Any]:
    """Time one step by PyTorch and by OpenVINO on the loaded model, for one picture of the size it was trained for."""
    side = 1024 if getattr(shared.sd_model, "is_sdxl", False) else 512
    with_unet = dataclasses.replace(choices or defaults(), unet=True)
    return control.compare(side, 1, lambda: _step_seconds(side, None), lambda: _step_seconds(side, with_unet))


class _StepsDone(Exception):
    """The steps are done; the picture is not needed."""


class _StepsOnly(processing.StableDiffusionProcessingTxt2Img):
    """A generation that ends after its steps."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, then end the generation."""
        super().sample(*args, **kwargs)
        raise _StepsDone


def _step_seconds(side: int, choices: Choices | None) -> float:
    """Seconds of the last of a few steps; by PyTorch without choices.

    Raises:
        Interrupted: the user ended the generation before.
    """
    with step_times.recording() as ends:
        _generate(side, side, 1, choices, _StepsOnly, _COMPARED_STEPS)
    if len(ends) < _COMPARED_STEPS:
        raise Interrupted("Ended by the user.")
    return ends[-1] - ends[-2]


def _generate(
    width: int,
    height: int,
    batch: int,
    choices: Choices | None,
    processing_class: type[Any] = processing.StableDiffusionProcessingTxt2Img,
    steps: int = 1,
) -> None:
    """Generate a picture and discard it, as soon as the WebUI is free; by PyTorch without choices."""
    with call_queue.queue_lock, _job():
        p = processing_class(
            sd_model=shared.sd_model, width=width, height=height, batch_size=batch, steps=steps, sampler_name="Euler"
        )
        p.do_not_save_samples = p.do_not_save_grid = True
        with Generation(p, choices) if choices is not None else contextlib.nullcontext():
            for name, cache in empty_conditionings().items():  # a warm-up encodes zeros, which no later prompt may find
                setattr(p, name, cache)
            with contextlib.suppress(_StepsDone):
                processing.process_images(p)


@contextlib.contextmanager
def _job() -> Iterator[None]:
    """One of the WebUI's jobs, without an entry in the prompt history."""
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


#: Process-wide instances.
step_times = StepTimes()
controller = Controller(session.status, _store, _precompile, _compare, lambda: shared.state.interrupt())
