"""What the panel's live view and routes can do, whichever host they are in: the cache, precompiling, comparing.

The host says how; here is what is common: requests are checked, one job runs at a time, in a thread of its own, and
the status shows it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ov_backend.cache.store import GraphStore
from ov_backend.errors import Interrupted, OVBackendError, SettingsError
from ov_backend.pipelines.sizes import MAX_BATCH, check_size
from ov_backend.ui.choices import Choices
from ov_backend.ui.status import Job, Status

log = logging.getLogger(__name__)

MAX_SIZES = 16

#: Width and height in pixels.
Size = tuple[int, int]


class Unavailable(OVBackendError):
    """The host cannot do this now; the message says why."""


@dataclass(frozen=True)
class Control:
    """How a job tells where it is, and learns that nobody wants it any more."""

    job: Job
    event: threading.Event

    def step(self, done: int, text: str) -> None:
        """``done`` parts are done; ``text`` says what comes now.

        Raises:
            Interrupted: the user has ended the job.
        """
        if self.event.is_set():
            raise Interrupted("Ended by the user.")
        self.job.done, self.job.text = done, text

    def prepare(self, sizes: Sequence[Size], batch: int, generate: Callable[[int, int, int], Any]) -> None:
        """Make networks ready for every size by a warmup of ``generate(width, height, batch)``, a picture of one step.

        Raises:
            Interrupted: the user has ended the job.
        """
        from ov_backend.pipelines.precompile import every, precompile  # not before it is wanted: it loads OpenVINO

        precompile(
            every(sizes, [batch]),
            lambda size: generate(*size),
            begin=lambda size: self.step(self.job.done, f"Preparing {size[0]}x{size[1]}"),
            done=lambda size: self.step(self.job.done + 1, ""),
            cancel=self.event.is_set,
        )
        self.step(len(sizes), "")


#: Makes networks ready for sizes and a batch, with these choices; None are those used last.
Precompile = Callable[[Sequence[Size], int, "Choices | None", Control], None]
#: Times one step of each with these choices.
Compare = Callable[["Choices | None", Control], "dict[str, Any]"]


def _no_store() -> GraphStore | None:
    return None


@dataclass
class Controller:
    """One host's live view.

    Attributes:
        status: what is happening.
        store: the graph store now in use, or None.
        precompile: makes networks ready for sizes and a batch; None where the host cannot.
        compare: one step by PyTorch and one by OpenVINO on the loaded model; returns size, batch and seconds of both.
        interrupt: ends the generation that is running.
    """

    status: Status
    store: Callable[[], GraphStore | None] = _no_store
    precompile: Precompile | None = None
    compare: Compare | None = None
    interrupt: Callable[[], None] | None = None
    _cancel: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def devices(self) -> list[dict[str, Any]]:
        """OpenVINO's devices.

        Raises:
            Unavailable: OpenVINO is not installed or does not start.
        """
        try:
            from ov_backend import devices

            return [device.as_dict() for device in devices.list_devices()]
        except Exception as error:  # a broken installation raises anything
            raise Unavailable(f"OpenVINO cannot be used: {error}. Install it with: pip install openvino") from error

    def cache(self) -> dict[str, Any]:
        """How many graphs are on disk, their bytes and the bound."""
        store = self.store()
        if store is None:
            return {"kept": False, "entries": 0, "bytes": 0, "max_bytes": 0}
        entries = store.entries()
        return {"kept": True, "entries": len(entries), "bytes": sum(e.bytes for e in entries), "max_bytes": store.max_bytes}

    def clear_cache(self) -> int:
        """Remove the graphs on disk; how many there were. What is compiled in memory goes on serving."""
        store = self.store()
        return store.clear() if store is not None else 0

    def start_precompile(self, sizes: Sequence[Size], batch: int, choices: Choices | None = None) -> Job:
        """Make networks ready in the background.

        Raises:
            Unavailable: the host cannot, or something else is running.
        """
        work = self.precompile
        if work is None:
            raise Unavailable("Nothing can be prepared ahead here: no model is loaded.")

        def run(control: Control) -> dict[str, Any]:
            work(sizes, batch, choices, control)
            return {"sizes": [f"{width}x{height}" for width, height in sizes], "batch": batch}

        return self._start("precompile", len(sizes), run)

    def start_compare(self, choices: Choices | None = None) -> Job:
        """Measure one step of both in the background.

        Raises:
            Unavailable: the host cannot, or something else is running.
        """
        work = self.compare
        if work is None:
            raise Unavailable("There is nothing to compare: no model is loaded.")
        return self._start("compare", 2, lambda control: work(choices, control))

    def stop(self) -> None:
        """End the job and the generation that are running, each at its next possible moment."""
        self._cancel.set()
        if self.interrupt is not None:
            self.interrupt()

    def _start(self, kind: str, total: int, work: Callable[[Control], dict[str, Any]]) -> Job:
        with self._lock:
            if self.status.busy:
                raise Unavailable("Something is running already; try again when it is done, or interrupt it.")
            self._cancel = threading.Event()
            job = self.status.job = Job(kind, total=total)
            control = Control(job, self._cancel)
        threading.Thread(target=_work, args=(job, control, work), name=f"openvino-{kind}", daemon=True).start()
        return job


def _work(job: Job, control: Control, work: Callable[[Control], dict[str, Any]]) -> None:
    try:
        job.result = work(control)
        job.done, job.text, job.state = job.total, "", "done"
    except Interrupted as ended:
        job.text, job.state = str(ended), "cancelled"
    except OVBackendError as error:
        job.text, job.state = str(error), "failed"
    except Exception as error:  # the thread's last handler: without it the panel would show a job that runs for ever
        log.exception("The %s failed.", job.kind)
        job.text, job.state = f"{type(error).__name__}: {error}", "failed"


def parse_precompile(body: object) -> tuple[list[Size], int, Choices | None]:
    """Read ``{"sizes": [[512, 768]], "batch": 1, "choices": {"precision": "f32"}}`` (width, height).

    Batch and choices may be left out.

    Raises:
        SettingsError: anything else.
    """
    expected = 'a JSON object such as {"sizes": [[512, 768]], "batch": 1}'
    if not isinstance(body, dict) or not isinstance(body.get("sizes"), list) or set(body) - {"sizes", "batch", "choices"}:
        raise SettingsError(f"The request is not understood; it must be {expected}.")
    sizes, batch = body["sizes"], body.get("batch", 1)
    if not 1 <= len(sizes) <= MAX_SIZES:
        raise SettingsError(f"{len(sizes)} sizes were given; at least 1 and at most {MAX_SIZES} can be prepared at once.")
    if not _whole(batch) or not 1 <= batch <= MAX_BATCH:
        raise SettingsError(f"The batch is {_shown(batch)}; it must be a whole number from 1 to {MAX_BATCH}.")
    return [_size(size) for size in sizes], batch, parse_choices(body)


def parse_choices(body: object) -> Choices | None:
    """Read the ``choices`` of a request, an object of the panel's fields by name; None where there are none.

    Raises:
        SettingsError: a field is unknown or its value makes no sense.
    """
    given = body.get("choices") if isinstance(body, dict) else None
    if given is None:
        return None
    known = vars(Choices())
    if not isinstance(given, dict) or set(given) - set(known):
        raise SettingsError(f"The choices are not understood; they must be an object of {', '.join(known)}.")
    choices, said = Choices.from_args([given.get(name, default) for name, default in known.items()])
    if said:
        raise SettingsError(said[0])
    return choices


def _size(size: Any) -> Size:
    fits = isinstance(size, list) and len(size) == 2 and all(map(_whole, size))
    if not fits:
        raise SettingsError(f"{_shown(size)} is no size that can be prepared; give width and height in pixels, as [512, 768].")
    return check_size(*size)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return repr(value)[:80]
