"""Live status of generation and compilation: the stage, the seconds of the steps, each network's share of the time.

A host reports to a :class:`Status` from the thread that generates; any number of other threads read
:meth:`Status.snapshot`. Nothing here is called inside a network's call: calls and seconds come from the engine's own
statistics.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ov_backend.ui.shares import Ledger
from ov_backend.ui.snapshot import (
    INTERRUPTED,
    VERSION,
    Job,
    Run,
    Stage,
    compiled_networks,
    counts_of,
    engine_dict,
    failure_text,
    network_dict,
    size_and_batch,
)

if TYPE_CHECKING:  # it loads OpenVINO
    from ov_backend.engine.engine import Engine

#: The engine reports this stage when nothing is left to prepare for a network.
_READY = "ready"
_MAX_MESSAGES = 20
_TICK_S = 1.0


class Status:
    """The state of one host; every method may be called from any thread.

    Args:
        clock: seconds that never go back.
        on_stage: called with the stage, "Compiling UNet 512x512 (12 s)", when one starts and every second from then on,
            and with "" when none is left.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, on_stage: Callable[[str], None] | None = None) -> None:
        self._clock, self._on_stage = clock, on_stage
        self._lock = threading.Lock()
        self._stages: dict[tuple[str, str], Stage] = {}
        #: Seconds in which a stage was open, until none was left; and when the first of those that are open now began.
        self._prepared, self._preparing_since = 0.0, 0.0
        self._run: Run | None = None
        self._engine: Engine | None = None
        self._messages: list[str] = []
        self._messages_of_ended_run: list[str] = []
        self._notify_lock = threading.RLock()
        self._ticker: threading.Thread | None = None
        self.job: Job | None = None

    def attach(self, engine: Engine | None) -> None:
        """Read counts and compiled networks from this engine from now on."""
        with self._lock:
            self._engine = engine
            if self._run is not None and self._run.ended is None:
                self._run.ledger.follow(engine, is_new=False)

    def progress(self, network: str, stage: str, signature: Any) -> None:
        """An engine's ``progress``: a stage of preparing one network begins, or all of them are over ("ready")."""
        key = (network, str(signature))
        now = self._clock()
        with self._lock:
            was_preparing = bool(self._stages)
            self._stages.pop(key, None)
            if stage != _READY:
                self._stages[key] = Stage(network, stage, *size_and_batch(network, signature), now)
            if was_preparing and not self._stages:
                self._prepared += now - self._preparing_since
            elif self._stages and not was_preparing:
                self._preparing_since = now
        self._notify()

    def begin(self, what: str, steps: int = 0) -> None:
        """A generation begins; ``steps`` is how many there will be, 0 where nobody can tell.

        The result of a job that is over is removed: it says nothing about this generation.
        """
        now = self._clock()
        self.forget_job()
        engine = self._engine
        before = counts_of(engine) if engine is not None else {}
        with self._lock:
            self._forget_messages()
            self._run = Run(what, self.runs + 1, now, Ledger(self._engine), self._seconds_prepared(now), steps=steps)
            self._run.counts_before = before
        self._notify()

    def begin_job(self, job: Job) -> None:
        """A job that the user has asked for begins; what was said about the last generation is removed."""
        with self._lock:
            self._forget_messages()
            self.job = job

    def forget_job(self) -> None:
        """Remove the result of a job that is over, because it is no longer true: another model is loaded, for example."""
        with self._lock:
            if not self._job_is_running():
                self.job = None

    def step(self, done: int, total: int) -> None:
        """The sampler has finished step ``done`` (1 is the first) of ``total``; a lower number begins another pass."""
        now = self._clock()
        with self._lock:
            run = self._run
            if run is None or run.ended is not None:
                return
            if (done, total) == (run.step, run.steps) and run.last_step_at is not None:
                return  # samplers of second order call twice a step
            run.ledger.follow(self._engine)
            run.add_step(done, total, now, self._seconds_prepared(now))

    def between_steps(self, what: str) -> None:
        """The generation does something between two passes, until its next step."""
        with self._lock:
            if self._run is not None and self._run.ended is None:
                self._run.part, self._run.last_step_at = what, None

    def end(self, error: str = "") -> None:
        """The generation is over; ``error`` says why where it failed."""
        now = self._clock()
        with self._lock:  # after an interruption a network may still be prepared; its stage stays visible
            run = self._run
            if run is not None and run.ended is None:
                run.ledger.follow(self._engine)
                run.shares = run.shares_until(now, self._seconds_prepared(now))
                if error and run.shares.get("other") == 1:  # refused before anything was computed: nothing to divide
                    run.shares = {}
                run.ended, run.error, run.ledger, run.part = now, error, Ledger(None), ""
            self._messages_of_ended_run = list(self._messages)  # also of one that was refused, and so never began
        self._notify()

    @contextlib.contextmanager
    def generation(self, what: str, steps: int = 0, interrupted: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """A generation in this block, see :meth:`begin`; where the block fails or was interrupted, its end says so."""
        self.begin(what, steps)
        error = ""
        try:
            yield
        except BaseException as failure:
            error = failure_text(failure)
            raise
        finally:
            self.end(error or (INTERRUPTED if interrupted() else ""))

    def add_message(self, message: str) -> None:
        """Show a message in the panel, e.g. about an argument that makes no sense, until the next generation begins."""
        with self._lock:
            if message not in self._messages:
                self._messages = [*self._messages, message][-_MAX_MESSAGES:]

    def stage_text(self) -> str:
        """The current stage with its seconds, "Compiling UNet 512x512 (12 s)", or ""."""
        with self._lock:
            stage = self._newest_stage()
            return f"{stage.label} ({self._clock() - stage.started:.0f} s)" if stage else ""

    @property
    def runs(self) -> int:
        """How many generations have begun."""
        return self._run.number if self._run is not None else 0

    @property
    def generating(self) -> bool:
        """Whether a generation is running."""
        return self._run is not None and self._run.ended is None

    @property
    def busy(self) -> bool:
        """Whether anything is running: a generation, a stage, a job."""
        return bool(self._stages) or self.generating or self._job_is_running()

    def may_show_ready(self, size: str, is_new: bool) -> bool:
        """Whether nothing runs, and news of a prepared size would hide neither a comparison nor the last picture's figures.

        Args:
            size: the picture size, "512x512".
            is_new: whether anything was prepared for it just now; if not, a picture of this size has said as much already.
        """
        if self.job is None and not is_new and self._run is not None and self._run.what == f"Making {size}":
            return False
        return not self.busy and (self.job is None or self.job.kind == "precompile")

    def snapshot(self) -> dict[str, Any]:
        """Everything, as a dict for JSON; its layout has the number ``version``."""
        now = self._clock()
        with self._lock:
            stage, run, engine = self._newest_stage(), self._run, self._engine
            job = self.job.as_dict() if self.job else None
            messages = list(self._messages)
            if run is not None and run.ended is None:
                run.ledger.follow(engine)
            run_dict = run.as_dict(now, self._seconds_prepared(now)) if run else None
            generating = self.generating
        before = run.before(engine) if run is not None and engine is not None else {}
        stats = engine.stats() if engine is not None else {}
        state = "preparing" if stage else "running" if generating else "working" if self._job_is_running() else "idle"
        return {
            "version": VERSION,
            "state": state,
            "stage": stage.as_dict(now, run) if stage else None,
            "run": run_dict,
            "job": job,
            "engine": engine_dict(engine) if engine is not None else None,
            "networks": {name: network_dict(name, of_network, before.get(name)) for name, of_network in stats.items()},
            "compiled": compiled_networks(engine) if engine is not None else [],
            "messages": messages,
        }

    def _forget_messages(self) -> None:
        self._messages = [message for message in self._messages if message not in self._messages_of_ended_run]

    def _job_is_running(self) -> bool:
        job = self.job  # another thread may replace it
        return job is not None and job.state == "running"

    def _seconds_prepared(self, now: float) -> float:
        """Seconds until ``now`` in which a stage was open; stages that overlap are counted once."""
        return self._prepared + (now - self._preparing_since if self._stages else 0.0)

    def _newest_stage(self) -> Stage | None:
        return max(self._stages.values(), key=lambda stage: stage.started, default=None)

    def _notify(self) -> None:
        """Call ``on_stage`` with the current stage; the lock keeps the newest stage the last one that is reported."""
        if self._on_stage is None:
            return
        with self._notify_lock:
            text = self.stage_text()
            self._on_stage(text)
            if text and self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, name="openvino-status", daemon=True)
                self._ticker.start()

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_S)
            with self._notify_lock:
                if not self.stage_text():
                    self._ticker = None
                    return
                self._notify()
