"""What the panel's buttons do in the WebUI: prepare networks for sizes, and compare."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from modules import processing, shared

from ov_backend.core.errors import Interrupted
from ov_backend.hosts.webui.detect import host
from ov_backend.hosts.webui.generation import Generation
from ov_backend.hosts.webui.last_request import LastRequest
from ov_backend.hosts.webui.session import CACHE_DIR, empty_conditionings, session
from ov_backend.hosts.webui.settings_page import defaults
from ov_backend.ui.choices import Choices
from ov_backend.ui.compare_int8 import compare_int8 as int8_comparison
from ov_backend.ui.comparison import Comparison, Measured, measured
from ov_backend.ui.controller import JobControl, Size, Unavailable
from ov_backend.ui.snapshot import INTERRUPTED

#: The WebUI's name of the jobs here.
_JOB = "openvino"
#: Steps that are timed where there was no generation; the first one includes the preparation of the networks.
_TIMED_STEPS = 3


class StepTimes:
    """When steps end, while a block records it."""

    def __init__(self) -> None:
        self._seconds: list[float] | None = None
        self._control: JobControl | None = None

    def add(self, params: Any) -> None:
        """A step has ended."""
        if self._seconds is None:
            return
        self._seconds.append(time.perf_counter())
        if self._control is not None:
            with contextlib.suppress(Interrupted):  # the WebUI ends its own generation
                self._control.part(min(len(self._seconds), params.total_sampling_steps), params.total_sampling_steps)

    @contextlib.contextmanager
    def recording(self, control: JobControl | None = None) -> Iterator[list[float]]:
        """The ends of the steps in this block, in seconds of ``perf_counter``; ``control`` is told of each."""
        seconds: list[float] = []
        self._seconds, self._control = seconds, control
        try:
            yield seconds
        finally:
            self._seconds = self._control = None


def precompile(sizes: Sequence[Size], batch: int, choices: Choices | None, control: JobControl) -> None:
    """Warm up with a generation of one step for every size: networks are called as the WebUI will really call them."""

    def generate(width: int, height: int, batch: int) -> None:
        _generate(_text_to_image(width, height, batch, steps=1), choices or defaults())

    control.prepare(sizes, batch, generate, _interrupted)


def compare(choices: Choices | None, control: JobControl) -> Comparison:
    """Make the last picture by PyTorch and by OpenVINO; where there is none, time steps at the checkpoint's own size."""
    with_unet = dataclasses.replace(choices or defaults(), unet=True)
    size, measure = _compared(control)
    return control.compare(size, 1, lambda: measure(None, 0), lambda: measure(with_unet, 0))


def compare_int8(choices: Choices | None, control: JobControl) -> Comparison:
    """Make a picture as the last one, of another seed, in the device's own precision and in int8, or time steps of both."""
    own, int8 = (dataclasses.replace(choices or defaults(), unet=True, precision=each) for each in ("auto", "int8"))
    size, measure = _compared(control)
    engine = session.configure(int8.settings(str(CACHE_DIR)))
    return int8_comparison(control, size, 1, engine.both_forms, lambda seed: measure(own, seed), lambda seed: measure(int8, seed))


def _compared(control: JobControl) -> tuple[Size, Callable[[Choices | None, int], Measured]]:
    """The size of what is compared, and what makes and times it, with a seed so much larger than that of the last picture."""
    last = session.last_request
    if last is not None:
        return last.size, lambda choices, seed: _measure_picture(last.with_seed(seed), choices, control)
    side = 1024 if getattr(shared.sd_model, "is_sdxl", False) else 512
    return (side, side), lambda choices, seed: _measure_steps(side, choices)


def _measure_steps(side: int, choices: Choices | None) -> Measured:
    """Time a few steps of a picture; by PyTorch without choices.

    Raises:
        Interrupted: the user ended the generation before.
    """
    with step_times.recording() as ends:
        _generate(_text_to_image(side, side, 1, _TIMED_STEPS, _StepsOnly), choices)
    if len(ends) < _TIMED_STEPS:
        raise Interrupted(INTERRUPTED)
    return Measured(ends[-1] - ends[-2])


def _measure_picture(request: LastRequest, choices: Choices | None, control: JobControl) -> Measured:
    """Make a picture, after one of a single step that prepares and warms up; by PyTorch without choices.

    Raises:
        Interrupted: the user ended the generation before.
    """
    _generate(_again(request, steps=1), choices)
    with step_times.recording(control) as ends:
        start = time.perf_counter()
        picture = _generate(_again(request), choices)
        seconds = time.perf_counter() - start
    return measured(ends, seconds, picture)


class _StepsDone(Exception):
    """The steps are done; the picture is not needed."""


class _StepsOnly(processing.StableDiffusionProcessingTxt2Img):
    """A generation that ends after its steps."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, then end the generation."""
        super().sample(*args, **kwargs)
        raise _StepsDone


def _text_to_image(width: int, height: int, batch: int, steps: int, processing_class: type[Any] | None = None) -> Any:
    values = {"width": width, "height": height, "batch_size": batch, "steps": steps, "sampler_name": "Euler"}
    return LastRequest(processing_class or processing.StableDiffusionProcessingTxt2Img, values)


def _again(request: LastRequest, steps: int | None = None) -> LastRequest:
    return request if steps is None else dataclasses.replace(request, values={**request.values, "steps": steps})


def _generate(request: LastRequest, choices: Choices | None) -> Any:
    """Make the picture of a request as soon as the WebUI is free, and return it unsaved; by PyTorch without choices.

    Raises:
        Interrupted: the user ended the generation before.
        Unavailable: no model is loaded.
    """
    return host.alone(lambda: _generate_alone(request, choices))


def _generate_alone(request: LastRequest, choices: Choices | None) -> Any:
    with _job():
        p = request.processing_class(**request.values)
        p.do_not_save_samples = p.do_not_save_grid = True
        p.scripts = host.runner()
        with Generation(p, choices, is_reported=False) if choices is not None else contextlib.nullcontext():
            for name, cache in empty_conditionings().items():  # a warm-up encodes zeros, which no later prompt may find
                setattr(p, name, cache)
            processed = None
            with contextlib.suppress(_StepsDone):
                processed = processing.process_images(p)
        if shared.state.interrupted:
            raise Interrupted(INTERRUPTED)
    return processed.images[0] if processed is not None and processed.images else None


def _interrupted() -> bool:
    """Whether the user has pressed the WebUI's own Interrupt during a job; an earlier one's stays set until the next job."""
    return bool(shared.state.job == _JOB and shared.state.interrupted)


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


#: Process-wide instance.
step_times = StepTimes()
