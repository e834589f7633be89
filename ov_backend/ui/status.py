"""What is happening now, for whoever looks: the stage, how fast the steps go, which network takes the time.

A host feeds a :class:`Status` from the thread that makes pictures; any number of others read :meth:`Status.snapshot`.
Nothing here is called inside a network's call: calls and seconds are read from the engine's own statistics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

#: Version of the snapshot's layout; docs/panel.md describes it.
VERSION = 1

STAGES = {"capture": "Tracing", "convert": "Converting", "compile": "Compiling"}
READY = "ready"
NETWORKS = {
    "unet": "UNet",
    "transformer": "transformer",
    "vae": "VAE",
    "vae_encode": "VAE encoder",
    "vae_decode": "VAE decoder",
    "text_encoder": "text encoder",
    "text_encoder_2": "second text encoder",
    "text_encoder_3": "third text encoder",
    "controlnet": "ControlNet",
}
_PREPARING = ("capture", "convert", "load", "bind", "compile")
#: Pixels per latent along each side, in every Stable Diffusion VAE.
_LATENT_SCALE = 8
_MAX_SAID = 20
_TICK_S = 1.0


class Observed(Protocol):
    """What is read of an engine; see :class:`ov_backend.engine.engine.Engine`."""

    settings: Any
    compiled: Any

    def stats(self) -> dict[str, dict[str, Any]]:
        """Counts and seconds per network."""


@dataclass(frozen=True)
class Stage:
    """One network being prepared; ``started`` is on the status's clock."""

    network: str
    stage: str
    size: str
    batch: int
    started: float

    @property
    def label(self) -> str:
        """In words, e.g. "Compiling UNet 512x512"."""
        return f"{STAGES.get(self.stage, self.stage)} {network_label(self.network)} {self.size}".strip()


@dataclass
class Run:
    """One generation: steps and their seconds, without the time spent preparing networks in between."""

    what: str
    number: int
    started: float
    before: dict[str, dict[str, float]]
    step: int = 0
    steps: int = 0
    timed: int = 0
    timed_seconds: float = 0.0
    last_seconds: float | None = None
    mark: float | None = None
    mark_prepared: float = 0.0
    ended: float | None = None
    error: str = ""


@dataclass
class Job:
    """Work started from the panel: precompiling, or comparing with PyTorch."""

    kind: str
    done: int = 0
    total: int = 0
    state: str = "running"
    text: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {**vars(self)}


class Status:
    """The state of one host, safe to feed and to read from any thread.

    Args:
        clock: seconds that only grow.
        on_stage: told "Compiling UNet 512x512 (12 s)" when a stage starts and every second from then on, "" when none is left.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, on_stage: Callable[[str], None] | None = None) -> None:
        self._clock, self._on_stage = clock, on_stage
        self._lock = threading.Lock()
        self._active: dict[tuple[str, str], Stage] = {}
        self._prepared = 0.0
        self._run: Run | None = None
        self._engine: Observed | None = None
        self._said: list[str] = []
        self._old: list[str] = []
        self._telling = threading.RLock()
        self._ticker: threading.Thread | None = None
        self.job: Job | None = None

    def attach(self, engine: Observed | None) -> None:
        """Read counts and compiled networks from this engine from now on."""
        before = _seconds(engine)  # nobody else's code is called under the lock
        with self._lock:
            self._engine = engine
            if self._run is not None and self._run.ended is None:
                self._run.before = before

    def progress(self, network: str, stage: str, signature: Any) -> None:
        """A stage of preparing one network begins, or all of them are over ("ready"); an engine's ``progress``."""
        key = (network, str(signature))
        now = self._clock()
        with self._lock:
            previous = self._active.pop(key, None)
            if previous is not None:
                self._prepared += now - previous.started
            if stage != READY:
                self._active[key] = Stage(network, stage, *size_of(network, signature), now)
        self._tell()

    def begin(self, what: str, steps: int = 0) -> None:
        """A generation begins, of as many steps as are known to come."""
        before = _seconds(self._engine)
        with self._lock:
            self._said = [sentence for sentence in self._said if sentence not in self._old]
            number = self._run.number + 1 if self._run is not None else 1
            self._run = Run(what, number, self._clock(), before, steps=steps)
        self._tell()

    def step(self, done: int, total: int) -> None:
        """The sampler has finished step ``done`` (1 is the first) of ``total``; a lower number begins another pass."""
        now = self._clock()
        with self._lock:
            run = self._run
            if run is None or run.ended is not None:
                return
            if (done, total) == (run.step, run.steps) and run.mark is not None:
                return  # samplers of second order call twice a step
            follows = run.mark is not None and done == run.step + 1
            if follows and run.mark is not None:
                run.last_seconds = max(0.0, now - run.mark - (self._prepared - run.mark_prepared))
                run.timed, run.timed_seconds = run.timed + 1, run.timed_seconds + run.last_seconds
            run.step, run.steps, run.mark, run.mark_prepared = done, total, now, self._prepared

    def end(self, error: str = "") -> None:
        """The generation is over; ``error`` says why where it did not succeed."""
        with self._lock:  # what is being prepared may go on after an interruption, and is still shown then
            if self._run is not None and self._run.ended is None:
                self._run.ended, self._run.error = self._clock(), error
                self._old = list(self._said)
        self._tell()

    def say(self, sentence: str) -> None:
        """Show a sentence in the panel, e.g. about an argument that made no sense, until another generation begins."""
        with self._lock:
            if sentence not in self._said:
                self._said = [*self._said, sentence][-_MAX_SAID:]

    def sentence(self) -> str:
        """The current stage with its seconds, "Compiling UNet 512x512 (12 s)", or ""."""
        with self._lock:
            current = self._current()
            return f"{current.label} ({self._clock() - current.started:.0f} s)" if current else ""

    @property
    def generating(self) -> bool:
        """Whether a generation is under way."""
        return self._run is not None and self._run.ended is None

    @property
    def busy(self) -> bool:
        """Whether anything goes on: a generation, a stage, a job."""
        return bool(self._active) or self.generating or self._working()

    def snapshot(self) -> dict[str, Any]:
        """Everything, as a dict for JSON; a later change of its layout gets another ``version``."""
        now = self._clock()
        with self._lock:
            current, run, engine = self._current(), self._run, self._engine
            job = self.job.as_dict() if self.job else None
            stage = _stage_dict(current, now) if current else None
            said = list(self._said)
            timing = _run_dict(run, now) if run else None
            before = run.before if run else {}
            ended = run is None or run.ended is not None
        stats = engine.stats() if engine is not None else {}
        if timing is not None:
            timing["shares"] = _shares(before, stats, timing["seconds"])
        state = "preparing" if current else "running" if not ended else "working" if self._working() else "idle"
        return {
            "version": VERSION,
            "state": state,
            "stage": stage,
            "run": timing,
            "job": job,
            "engine": _engine_dict(engine) if engine is not None else None,
            "networks": {name: _network_dict(name, found) for name, found in stats.items()},
            "compiled": compiled_networks(engine) if engine is not None else [],
            "messages": said,
        }

    def _working(self) -> bool:
        return self.job is not None and self.job.state == "running"

    def _current(self) -> Stage | None:
        return max(self._active.values(), key=lambda stage: stage.started, default=None)

    def _tell(self) -> bool:
        """Tell what the stage is now; whether there is one. What is told last is always the newest."""
        if self._on_stage is None:
            return False
        with self._telling:
            sentence = self.sentence()
            self._on_stage(sentence)
            if sentence and self._ticker is None:
                self._ticker = threading.Thread(target=self._tick, name="openvino-status", daemon=True)
                self._ticker.start()
        return bool(sentence)

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK_S)
            with self._telling:
                if not self.sentence():
                    self._ticker = None
                    return
                self._tell()


def network_label(name: str) -> str:
    """A network's name in words; that of another model, "unet #2", too."""
    role, _, number = name.partition(" ")
    return f"{NETWORKS.get(role, role)} {number}".strip()


def size_of(network: str, signature: Any) -> tuple[str, int]:
    """The picture's size as "512x768" (width x height), or what else describes the call, and its batch.

    Latents are [B, C, H/8, W/8]; the VAE's encoder takes the picture itself,
    [B, 3, H, W]; tokens are [B, 77], embedded [B, 77, C].
    """
    tensors = getattr(signature, "tensors", ())
    for spec in () if network.startswith("text_encoder") else tensors:  # an encoder's mask is no picture
        if len(spec.shape) == 4:
            scale = 1 if spec.shape[1] == 3 else _LATENT_SCALE
            return f"{spec.shape[3] * scale}x{spec.shape[2] * scale}", spec.shape[0]
    for spec in tensors:
        if len(spec.shape) in (2, 3):
            return f"{spec.shape[1]} tokens", spec.shape[0]
    return "", tensors[0].shape[0] if tensors and tensors[0].shape else 1


def compiled_networks(engine: Observed) -> list[dict[str, Any]]:
    """One row per compiled network that is held: what it is for, where it runs, what it costs, how often it served."""
    rows = []
    for key in engine.compiled:
        held = engine.compiled.peek(key)
        if held is None:
            continue
        network, signature = key.network, key.signature
        size, batch = size_of(network, signature)
        program = held.value.program
        parts = list(program.parts.values())
        rows.append(
            {
                "network": network,
                "label": network_label(network),
                "size": size,
                "batch": batch,
                "device": ",".join(sorted({part.device for part in parts})),
                "precision": ",".join(sorted({part.precision for part in parts})),
                "bytes": held.bytes,
                "compile_seconds": round(program.timings.bind + program.timings.compile, 3),
                "calls": held.hits + 1,
                "hits": held.hits,
                "coverage_percent": round(program.coverage.percent, 2),
                "in_pytorch": dict(program.coverage.in_pytorch),
            }
        )
    return rows


def _stage_dict(stage: Stage, now: float) -> dict[str, Any]:
    named = {"network": stage.network, "stage": stage.stage, "label": stage.label, "size": stage.size, "batch": stage.batch}
    number = [*STAGES].index(stage.stage) + 1 if stage.stage in STAGES else 0
    return {**named, "seconds": round(now - stage.started, 2), "number": number, "stages": len(STAGES)}


def _run_dict(run: Run, now: float) -> dict[str, Any]:
    return {
        "what": run.what,
        "number": run.number,
        "active": run.ended is None,
        "seconds": round((run.ended if run.ended is not None else now) - run.started, 3),
        "step": run.step,
        "steps": run.steps,
        "seconds_per_step": _rounded(run.last_seconds),
        "average_seconds_per_step": _rounded(run.timed_seconds / run.timed if run.timed else None),
        "error": run.error,
    }


def _engine_dict(engine: Observed) -> dict[str, Any]:
    return {
        "device": engine.settings.device,
        "precision": engine.settings.precision,
        "bytes": engine.compiled.bytes,
        "budget_bytes": engine.compiled.budget,
    }


def _network_dict(name: str, stats: dict[str, Any]) -> dict[str, Any]:
    shown = ("captures", "graph_hits", "compiles", "calls", "fallbacks", "corrections", "in_pytorch", "held", "bytes")
    return {"label": network_label(name), **{key: stats[key] for key in shown if key in stats}}


def _seconds(engine: Observed | None) -> dict[str, dict[str, float]]:
    return {name: dict(found["seconds"]) for name, found in engine.stats().items()} if engine is not None else {}


def _shares(before: dict[str, dict[str, float]], stats: dict[str, dict[str, Any]], whole: float) -> dict[str, float]:
    """Of a generation's seconds, the share (0 to 1) of each network's calls, of preparing them, and of all else."""
    if whole <= 0:
        return {}
    shares: dict[str, float] = {}
    preparing = 0.0
    for name, found in stats.items():
        start = before.get(name, {})
        spent = {stage: max(0.0, seconds - start.get(stage, 0.0)) for stage, seconds in found["seconds"].items()}
        shares[name] = spent.get("infer", 0.0) / whole
        preparing += sum(spent.get(stage, 0.0) for stage in _PREPARING)
    shares["preparing"] = preparing / whole
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    return {name: round(min(1.0, share), 4) for name, share in shares.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
