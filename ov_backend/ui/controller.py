"""What the panel's buttons and routes do in either host: show the cache, precompile, compare.

A host provides the functions; the controller checks requests and runs one job at a time, in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ov_backend.core.errors import Interrupted, OVBackendError, SettingsError, short_repr
from ov_backend.pipelines.sizes import MAX_BATCH, check_batch, check_size
from ov_backend.store.store import GraphStore
from ov_backend.ui.choices import Choices
from ov_backend.ui.comparison import WITH_PYTORCH, Comparison, Measured
from ov_backend.ui.requested_shape import RequestedShape
from ov_backend.ui.snapshot import INTERRUPTED, Job
from ov_backend.ui.status import Status

log = logging.getLogger(__name__)

MAX_SIZES = 16

#: Width and height in pixels.
Size = tuple[int, int]


class Unavailable(OVBackendError):
    """The host cannot do this now; the message says why."""


@dataclass(frozen=True)
class JobControl:
    """What a job's function reports its progress to, and learns from that the user has cancelled it."""

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

    def part(self, step: int, steps: int) -> None:
        """Report that step ``step`` of ``steps`` of the part that runs now is done.

        Raises:
            Interrupted: the user has cancelled the job.
        """
        title = self.job.text.partition(",")[0]
        self.step(self.job.done, f"{title}, step {step} of {steps}")

    def prepare(
        self,
        sizes: Sequence[Size],
        batch: int,
        generate: Callable[[int, int, int], Any],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Prepare networks for every size by a warm-up of ``generate(width, height, batch)``, a generation of one step.

        ``interrupted`` says whether the user has ended it by the host's own means.

        Raises:
            Interrupted: the user has cancelled the job.
        """
        from ov_backend.pipelines.precompile import every, precompile  # here, because it loads OpenVINO

        asked = every(sizes, [batch])
        ready = precompile(
            asked,
            lambda size: generate(*size),
            begin=lambda size: self.step(self.job.done, f"Preparing {size[0]}x{size[1]}"),
            done=lambda size: self.step(self.job.done + 1, ""),
            cancel=lambda: self.cancelled.is_set() or interrupted(),
        )
        if len(ready) < len(asked):
            raise Interrupted(INTERRUPTED)
        self.step(len(sizes), "")

    def compare(
        self,
        size: Size,
        batch: int,
        first: Callable[[], Measured],
        second: Callable[[], Measured],
        sides: Mapping[str, str] = WITH_PYTORCH,
    ) -> Comparison:
        """Time both sides at a size, whose names are ``sides``; returns the job's result.

        Raises:
            Interrupted: the user has cancelled the job.
        """
        labels = list(sides.values())
        self.step(0, f"Timing {labels[0]}")
        measured = first()
        self.step(1, f"Timing {labels[1]}")
        other = second()
        self.step(2, "")
        return Comparison(size, batch, measured, other, sides)


#: Prepares networks for sizes and a batch with these choices; None are those used last.
Precompile = Callable[[Sequence[Size], int, "Choices | None", JobControl], None]
#: Compares both sides with these choices.
Compare = Callable[["Choices | None", JobControl], Comparison]


def _no_store() -> GraphStore | None:
    return None


@dataclass
class Controller:
    """What one host shows and does.

    Attributes:
        status: the live status.
        store: returns the graph store in use, or None.
        precompile: prepares networks for sizes and a batch; None where the host cannot.
        compare: makes the last picture by PyTorch and by OpenVINO on the loaded model, or times one step of both.
        interrupt: ends the generation that is running.
        compare_int8: makes a picture as the last one in the device's own precision and in int8, or times one step of both.
        ready: prepares in the background what was made before like this, and returns at once; None where the host cannot.
        pictures: of the last comparison, as PNG, by "pytorch" and "openvino", or by "own" and "int8".
    """

    status: Status
    store: Callable[[], GraphStore | None] = _no_store
    precompile: Precompile | None = None
    compare: Compare | None = None
    interrupt: Callable[[], None] | None = None
    compare_int8: Compare | None = None
    ready: Callable[[RequestedShape], object] | None = None
    pictures: dict[str, bytes] = field(default_factory=dict)
    _jobs: int = 0
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def devices(self) -> list[dict[str, Any]]:
        """The devices that OpenVINO finds now.

        Raises:
            Unavailable: OpenVINO is not installed or does not start.
        """
        try:
            from ov_backend.core import devices

            devices.look_again()
            return [device.as_dict() for device in devices.list_devices()]
        except Exception as error:  # a broken installation raises anything
            command = "" if "pip install" in str(error) else " Install it with: pip install openvino"
            raise Unavailable(f"OpenVINO cannot be used: {error}.{command}") from error

    def cache(self) -> dict[str, Any]:
        """How many graphs are on disk, their bytes and the most bytes allowed."""
        store = self.store()
        if store is None:
            return {"kept": False, "entries": 0, "bytes": 0, "max_bytes": 0}
        entries = store.entries()
        return {"kept": True, "entries": len(entries), "bytes": sum(e.bytes for e in entries), "max_bytes": store.max_bytes}

    def clear_cache(self) -> int:
        """Remove the graphs on disk and return how many there were; compiled networks stay in memory."""
        store = self.store()
        return store.clear() if store is not None else 0

    def start_precompile(self, sizes: Sequence[Size], batch: int, choices: Choices | None = None) -> Job:
        """Prepare networks in the background.

        Raises:
            Unavailable: the host cannot, or something else is running.
        """
        precompile = self.precompile
        if precompile is None:
            raise Unavailable("Nothing can be prepared ahead here: no model is loaded.")

        def run(control: JobControl) -> dict[str, Any]:
            precompile(sizes, batch, choices, control)
            return prepared([f"{width}x{height}" for width, height in sizes], batch, choices)

        return self._start("precompile", len(sizes), run)

    def size_changed(self, asked: RequestedShape) -> None:
        """The page shows another size: prepare it in the background if it was made before; a job this is not.

        Raises:
            Unavailable: the host cannot.
        """
        if self.ready is None:
            raise Unavailable("Nothing can be prepared ahead here: no model is loaded.")
        self.ready(asked)

    def start_compare(self, choices: Choices | None = None, int8: bool = False) -> Job:
        """Compare PyTorch and OpenVINO in the background; with ``int8`` the device's own precision and int8.

        Raises:
            Unavailable: the host cannot, or something else is running.
        """
        compare = self.compare_int8 if int8 else self.compare
        if compare is None:
            raise Unavailable("There is nothing to compare: no model is loaded.")

        def run(control: JobControl) -> dict[str, Any]:
            self.pictures = {}
            comparison = compare(choices, control)
            self.pictures = comparison.pictures()
            return comparison.as_dict()

        return self._start("compare", 2, run)

    def stop(self) -> None:
        """End the job and the generation that are running, each as soon as it can."""
        self._cancelled.set()
        if self.interrupt is not None:
            self.interrupt()

    def _start(self, kind: str, total: int, run: Callable[[JobControl], dict[str, Any]]) -> Job:
        with self._lock:
            if self.status.busy:
                raise Unavailable("Something is running already; try again when it is done, or interrupt it.")
            self._cancelled = threading.Event()
            self._jobs += 1
            job = Job(kind, self._jobs, total=total)
            self.status.begin_job(job)
            control = JobControl(job, self._cancelled)
        threading.Thread(target=_run_job, args=(job, control, run), name=f"openvino-{kind}", daemon=True).start()
        return job


def _run_job(job: Job, control: JobControl, run: Callable[[JobControl], dict[str, Any]]) -> None:
    try:
        job.result = run(control)
        job.done, job.text, job.state = job.total, "", "done"
    except Interrupted:
        job.text, job.state = INTERRUPTED, "cancelled"
    except OVBackendError as error:
        job.text, job.state = str(error), "failed"
    except Exception as error:  # the thread's last handler: without it the panel would show a job that runs for ever
        log.exception("The %s failed.", job.kind)
        job.text, job.state = f"{type(error).__name__}: {error}", "failed"


def prepared(sizes: Sequence[str], batch: int, choices: Choices | None, guided: bool = True) -> dict[str, Any]:
    """The result of a job that has prepared networks; the page shows it while it asks for the same.

    Args:
        sizes: as "512x768".
        batch: pictures at once.
        choices: what ran where; None where nobody knows.
        guided: whether the CFG scale was above 1, which doubles the UNet's batch.
    """
    known = {"choices": vars(choices).copy()} if choices is not None else {}
    return {"sizes": list(sizes), "batch": batch, "guided": guided, **known}


def parse_precompile(body: object) -> tuple[list[Size], int, Choices | None]:
    """Read ``{"sizes": [[512, 768]], "batch": 1, "choices": {"precision": "f32"}}`` (width, height).

    Batch and choices may be left out.

    Raises:
        SettingsError: the body is anything else.
    """
    expected = 'a JSON object such as {"sizes": [[512, 768]], "batch": 1}'
    if not isinstance(body, dict) or not isinstance(body.get("sizes"), list) or set(body) - {"sizes", "batch", "choices"}:
        raise SettingsError(f"The request is not understood; it must be {expected}.")
    sizes, batch = body["sizes"], body.get("batch", 1)
    if not 1 <= len(sizes) <= MAX_SIZES:
        raise SettingsError(f"{len(sizes)} sizes were given; at least 1 and at most {MAX_SIZES} can be prepared at once.")
    if not _is_int(batch) or not 1 <= batch <= MAX_BATCH:
        raise SettingsError(f"Batch size is {short_repr(batch)}; it must be a whole number from 1 to {MAX_BATCH}.")
    checked = [_parse_size(size) for size in sizes]
    for width, height in checked:
        check_batch(width, height, batch)
    return checked, batch, parse_choices(body)


def parse_asked(body: object) -> RequestedShape:
    """Read ``{"size": [512, 768], "batch": 1, "from_picture": false}`` (width, height); all but the size may be left out.

    Raises:
        SettingsError: the body is anything else.
    """
    if not isinstance(body, dict) or "size" not in body or set(body) - {"size", "batch", "from_picture"}:
        raise SettingsError('The request is not understood; it must be a JSON object such as {"size": [512, 768], "batch": 1}.')
    batch, from_picture = body.get("batch", 1), body.get("from_picture", False)
    if not _is_int(batch):
        raise SettingsError(f"Batch size is {short_repr(batch)}; it must be a whole number from 1 to {MAX_BATCH}.")
    if not isinstance(from_picture, bool):
        raise SettingsError(f"from_picture is {short_repr(from_picture)}; it must be true or false.")
    width, height = _parse_size(body["size"])
    return RequestedShape(width, height, check_batch(width, height, batch), from_picture)


def parse_choices(body: object) -> Choices | None:
    """Read the ``choices`` of a request, an object of the panel's fields by name; None where there are none.

    Raises:
        SettingsError: a field is unknown or its value makes no sense.
    """
    if not isinstance(body, dict) or set(body) - {"sizes", "batch", "choices"}:
        raise SettingsError(f'The request is {short_repr(body)}; it must be a JSON object such as {{"choices": {{}}}}.')
    fields = body.get("choices")
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise SettingsError(f"The choices are {short_repr(fields)}; they must be an object of {', '.join(vars(Choices()))}.")
    return Choices.from_fields(fields)


def _parse_size(size: Any) -> Size:
    is_pair = isinstance(size, list) and len(size) == 2 and all(map(_is_int, size))
    if not is_pair:
        raise SettingsError(
            f"{short_repr(size)} is no size that can be prepared; give width and height in pixels, as [512, 768]."
        )
    return check_size(*size)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
