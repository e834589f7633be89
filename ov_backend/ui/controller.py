"""What the panel's buttons and routes do in every host: show the cache, precompile, compare.

The controller checks requests and runs one job at a time, in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ov_backend.core.errors import Interrupted, OVBackendError, SettingsError, short_repr
from ov_backend.pipelines.sizes import MAX_BATCH, check_batch, check_size
from ov_backend.ui import jobs
from ov_backend.ui.choices import Choices
from ov_backend.ui.host import Host, Request, Size
from ov_backend.ui.jobs import JobControl, Unavailable
from ov_backend.ui.likely import RequestedShape, prepared
from ov_backend.ui.readiness import Readiness
from ov_backend.ui.snapshot import Job, failure_text

log = logging.getLogger(__name__)

MAX_SIZES = 16


class Controller:
    """What the panel of one host shows and does.

    Attributes:
        status: the live status.
        readiness: prepares in the background what was made before.
        pictures: of the last comparison, as PNG, by "pytorch" and "openvino", or by "own" and "int8".
        compared: what these pictures were made from; None before the first generation.
    """

    def __init__(self, host: Host) -> None:
        self.host, self.status, self.readiness = host, host.status, Readiness(host)
        self.pictures: dict[str, bytes] = {}
        self.compared: Request | None = None
        self._jobs = 0
        self._cancelled = threading.Event()
        self._lock = threading.Lock()

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
        store = self.host.store()
        if store is None:
            return {"kept": False, "entries": 0, "bytes": 0, "max_bytes": 0}
        entries = store.entries()
        return {"kept": True, "entries": len(entries), "bytes": sum(e.bytes for e in entries), "max_bytes": store.max_bytes}

    def clear_cache(self) -> int:
        """Remove the graphs on disk and return how many there were; compiled networks stay in memory."""
        store = self.host.store()
        return store.clear() if store is not None else 0

    def start_precompile(self, sizes: Sequence[Size], batch: int, choices: Choices | None = None) -> Job:
        """Prepare networks in the background; without choices, the host's.

        Raises:
            Unavailable: something else is running.
        """

        def run(control: JobControl) -> dict[str, Any]:
            jobs.precompile(self.host, control, sizes, batch, choices or self.host.choices())
            return prepared([f"{width}x{height}" for width, height in sizes], batch, choices)

        return self._start("precompile", len(sizes), run)

    def start_compare(self, choices: Choices | None = None, int8: bool = False) -> Job:
        """Compare PyTorch and OpenVINO in the background; with ``int8`` the device's own precision and int8.

        Raises:
            Unavailable: something else is running.
        """

        def run(control: JobControl) -> dict[str, Any]:
            self.pictures = {}
            return self.host.alone(lambda: self._compare(control, choices or self.host.choices(), int8))

        return self._start("compare", 2, run)

    def _compare(self, control: JobControl, choices: Choices, int8: bool) -> dict[str, Any]:
        self.compared = self.host.last_request()
        comparison = (jobs.compare_int8 if int8 else jobs.compare)(self.host, control, self.compared, choices)
        self.pictures = comparison.pictures()
        return comparison.as_dict()

    def stop(self) -> None:
        """End the job and the generation that are running, each as soon as it can."""
        self._cancelled.set()
        self.host.interrupt()

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
    except Exception as error:  # the thread's last handler: without it the panel would show a job that runs for ever
        if not isinstance(error, OVBackendError):
            log.exception("The %s failed.", job.kind)
        job.text, job.state = failure_text(error), "cancelled" if isinstance(error, Interrupted) else "failed"


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
