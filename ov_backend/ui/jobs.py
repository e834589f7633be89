"""The jobs of the panel's buttons, in every host: prepare networks for sizes, compare with PyTorch, compare int8."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ov_backend.core.errors import Interrupted, OVBackendError
from ov_backend.ui.choices import Choices
from ov_backend.ui.comparison import Comparison, Measured, int8_sides, measured
from ov_backend.ui.host import Host, Request, Size
from ov_backend.ui.snapshot import INTERRUPTED, Job

#: Steps that are timed where there was no generation; the first one includes the preparation of the networks.
_TIMED_STEPS = 3
#: A recipe of int8 needs 8 calls, and every picture has one at least; the next is made in int8.
_MAX_PICTURES = 9


class Unavailable(OVBackendError):
    """The host cannot do this now; the message says why."""


@dataclass(frozen=True)
class JobControl:
    """What a job reports its progress to, and learns from that the user has cancelled it."""

    job: Job
    cancelled: threading.Event

    def step(self, done: int, text: str) -> None:
        """Report that ``done`` parts are done and that the part described by ``text`` begins.

        Raises:
            Interrupted: the user has cancelled the job.
        """
        if self.cancelled.is_set():
            raise Interrupted(INTERRUPTED)
        self.job.done, self.job.text = done, text


@dataclass
class _Clock:
    """When the steps of one picture end; the job is told of each, and raises ``Interrupted`` if the user has cancelled it."""

    control: JobControl
    ends: list[float] = field(default_factory=list)
    _step: int = 0

    def __call__(self, step: int, steps: int) -> None:
        """A step has ended; samplers of second order say so twice."""
        if self.ends and step == self._step:
            self.ends.pop()
        self.ends.append(time.perf_counter())
        self._step = step
        job = self.control.job
        self.control.step(job.done, f"{job.text.partition(',')[0]}, step {step} of {steps}")


def precompile(host: Host, control: JobControl, sizes: Sequence[Size], batch: int, choices: Choices) -> None:
    """Prepare networks for every size by a generation of one step: they are called as the host will really call them.

    Raises:
        Interrupted: the user has cancelled the job.
    """
    from ov_backend.pipelines.precompile import every, precompile  # here, because it loads OpenVINO

    asked = every(sizes, [batch])
    ready = precompile(
        asked,
        lambda size: host.alone(lambda: host.make(host.request(size[:2], size[2]), choices, lambda *_: None)),
        begin=lambda size: control.step(control.job.done, f"Preparing {size[0]}x{size[1]}"),
        done=lambda size: control.step(control.job.done + 1, ""),
        cancel=lambda: control.cancelled.is_set() or host.interrupted(),
    )
    if len(ready) < len(asked):
        raise Interrupted(INTERRUPTED)
    control.step(len(sizes), "")


def compare(host: Host, control: JobControl, last: Request | None, choices: Choices) -> Comparison:
    """Make the last picture by PyTorch and by OpenVINO; before the first one, time steps. Under the host's lock.

    Raises:
        Interrupted: the user has cancelled the job.
    """
    in_openvino = dataclasses.replace(choices, unet=True)
    control.step(0, "Timing PyTorch")
    first = _measure(host, control, last, None)
    control.step(1, "Timing OpenVINO")
    second = _measure(host, control, last, in_openvino)
    control.step(2, "")
    return Comparison(_size(host, last), 1, first, second)


def compare_int8(host: Host, control: JobControl, last: Request | None, choices: Choices) -> Comparison:
    """Make a picture in int8 and in the device's own precision; before that int8 is calibrated, if it has to be.

    Its seed follows that of the last picture, which may have calibrated: a recipe fits the values that it was made from. A few
    steps, as they are timed where there was no picture, would calibrate badly. Under the host's lock.

    Raises:
        Interrupted: the user has cancelled the job.
        Unavailable: there was no picture, or int8 is not used; the message says why.
    """
    if last is None:
        raise Unavailable("Make a picture first: int8 is compared on one like it.")
    own, int8 = (dataclasses.replace(choices, unet=True, precision=each) for each in ("auto", "int8"))
    engine = host.configure(int8)
    control.step(0, "Timing int8")
    for seed in range(1, _MAX_PICTURES + 1):
        in_int8 = _measure(host, control, last, int8, seed)
        states = {name: forms.statistics.int8 for name, forms in engine.both_forms().items()}
        if not any(state["state"] == "calibrating" for state in states.values()):
            break
    used = {name: forms for name, forms in engine.both_forms().items() if states[name]["state"] == "on"}
    if not used:
        refusals = [state["text"] for state in states.values()] or ["no network was asked for int8"]
        raise Unavailable(f"There is nothing to compare: {', '.join(refusals)}.")
    (first, *_) = used.values()
    control.step(1, f"Timing {first.own}: {first.describe()}")
    for forms in used.values():
        forms.make_room()
    reference = _measure(host, control, last, own, seed)
    for name, forms in used.items():
        forms.statistics.int8 = states[name]  # else it says what the reference was
    control.step(2, "")
    return Comparison(_size(host, last), 1, reference, in_int8, int8_sides(first.own))


def _size(host: Host, last: Request | None) -> Size:
    return (last or host.request()).size


def _measure(host: Host, control: JobControl, last: Request | None, choices: Choices | None, seed: int = 0) -> Measured:
    """Make and time the last picture with a seed so much larger, after a short one that prepares the networks and warms up.

    Before the first picture, time steps. Without choices by PyTorch.
    """
    clock = _Clock(control)
    if last is None:
        host.make(host.request(steps=_TIMED_STEPS), choices, clock, steps_only=True)
        return Measured(clock.ends[-1] - clock.ends[-2])
    request = last.with_seed(seed)
    host.make(request.warm_up(), choices, clock)
    clock.ends.clear()
    start = time.perf_counter()
    picture = host.make(request, choices, clock)
    return measured(clock.ends, time.perf_counter() - start, picture)
