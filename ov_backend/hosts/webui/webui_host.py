"""The WebUI as a host of the panel; ``protocol.py`` has what differs between the WebUIs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from modules import processing, shared

from ov_backend.core.errors import Interrupted
from ov_backend.hosts.webui import ahead, settings_page
from ov_backend.hosts.webui.detect import host as webui
from ov_backend.hosts.webui.ending import ending
from ov_backend.hosts.webui.generation import Generation
from ov_backend.hosts.webui.last_request import LastRequest
from ov_backend.hosts.webui.session import empty_conditionings, session
from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import Controller
from ov_backend.ui.host import Host, Size, StepEnded
from ov_backend.ui.jobs import Unavailable
from ov_backend.ui.snapshot import INTERRUPTED

#: The WebUI's name of the jobs here.
_JOB = "openvino"


class _StepsDone(Exception):
    """The steps are done; the picture is not needed."""


class WebUIHost(Host):
    """The WebUI that this process is."""

    retry_advice = f'switch Settings > OpenVINO > "{settings_page.PREPARE_AHEAD_LABEL}" off and on'
    # what the other modules here answer
    configure = staticmethod(session.configure)
    choices = staticmethod(settings_page.defaults)
    prepares_ahead = staticmethod(ahead.enabled)
    denoiser = staticmethod(ahead.denoiser)
    networks = staticmethod(ahead.networks_of)
    alone = staticmethod(webui.alone)
    marked = staticmethod(ending.marked)
    lock = property(lambda self: webui.lock)
    engine = property(lambda self: session.engine)

    def __init__(self) -> None:
        self.status, self.cache_dir = session.status, session.cache_dir
        self._ended: StepEnded = session.status.step
        self._denoised = 0

    def last_request(self) -> LastRequest | None:
        """The first picture of the last generation."""
        return session.last_request

    def request(self, size: Size | None = None, batch: int = 1, steps: int = 1) -> LastRequest:
        """See :class:`Host`."""
        side = 1024 if getattr(shared.sd_model, "is_sdxl", False) else 512
        width, height = size or (side, side)
        values = {"width": width, "height": height, "batch_size": batch, "steps": steps, "sampler_name": "Euler"}
        return LastRequest(processing.StableDiffusionProcessingTxt2Img, values)

    def make(self, request: LastRequest, choices: Choices | None, ended: StepEnded, steps_only: bool = False) -> Any:
        """See :class:`Host`."""
        with _job():
            p = request.processing_class(**request.values)
            p.do_not_save_samples = p.do_not_save_grid = True
            p.scripts = webui.runner()
            if steps_only:
                p.sample = _then_end(p.sample)
            self._ended, self._denoised, processed = ended, 0, None
            try:
                with Generation(p, choices, is_reported=False) if choices is not None else contextlib.nullcontext():
                    for name, cache in empty_conditionings().items():  # a warm-up encodes zeros, which no later prompt may find
                        setattr(p, name, cache)
                    with contextlib.suppress(_StepsDone):
                        processed = processing.process_images(p)
            finally:
                self._ended = session.status.step
            if shared.state.interrupted:
                raise Interrupted(INTERRUPTED)
        return processed.images[0] if processed is not None and processed.images else None

    def sampling_begins(self) -> None:
        """A pass of sampling begins."""
        self._denoised = 0

    def after_step(self, params: Any) -> None:
        """A step is denoised; the WebUI counts it only after the next one, and reports 0 for the first two."""
        self._denoised += 1
        done, total = params.sampling_step + (1 if self._denoised == 1 else 2), params.total_sampling_steps
        with contextlib.suppress(Interrupted):  # the WebUI ends its own generation
            self._ended(min(done, total), total)

    def interrupt(self) -> None:
        """As the page's button does."""
        shared.state.interrupt()

    def interrupted(self) -> bool:
        """Whether the page's button was pressed during a job; an earlier one's stays set until the next job."""
        return bool(shared.state.job == _JOB and shared.state.interrupted)


def _then_end(sample: Callable[..., Any]) -> Callable[..., Any]:
    def sample_and_end(*args: Any, **kwargs: Any) -> Any:
        sample(*args, **kwargs)
        raise _StepsDone

    return sample_and_end


@contextlib.contextmanager
def _job() -> Iterator[None]:
    """One of the WebUI's jobs, without an entry in the prompt history."""
    if shared.sd_model is None:
        raise Unavailable("No model is loaded.")
    history = shared.cmd_opts.no_prompt_history
    shared.cmd_opts.no_prompt_history = True
    shared.state.begin(job=_JOB)
    try:
        yield
    finally:
        shared.state.end()
        shared.cmd_opts.no_prompt_history = history


#: Process-wide instances.
webui_host = WebUIHost()
controller = Controller(webui_host)
