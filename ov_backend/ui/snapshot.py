"""The status as JSON: the records it is kept in, and what is read of an engine. docs/api.md describes the layout."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ov_backend.core.errors import Interrupted, OVBackendError
from ov_backend.ui.shares import Ledger

if TYPE_CHECKING:  # it loads OpenVINO
    from ov_backend.engine.engine import Engine

#: Version of the snapshot's layout.
VERSION = 1

#: The error of a generation, and the text of a job, that the user has ended; javascript/openvino_text.js knows it too.
INTERRUPTED = "Interrupted."

#: Stages that the panel shows, in their order, with their labels.
STAGES = {"read": "Reading", "capture": "Tracing", "convert": "Converting", "compile": "Compiling"}
_NETWORK_LABELS = {
    "unet": "UNet",
    "transformer": "transformer",
    "vae": "VAE",
    "vae_encode": "VAE encoder",
    "vae_decode": "VAE decoder",
    "text_encoder": "text encoder",
    "text_encoder_2": "second text encoder",
    "text_encoder_3": "third text encoder",
    "image_encoder": "image encoder",
    "controlnet": "ControlNet",
    "adapter": "adapter",
    "upscaler": "upscaler",
}
#: Stages of an engine's statistics that prepare a network, in their order.
PREPARATION = ("read", "load", "capture", "convert", "bind", "compile")
_NETWORK_KEYS = (
    *("captures", "captured_again", "graph_hits", "compiles", "calls", "by_blocks", "block_calls", "blocks_in_pytorch"),
    *("fallbacks", "corrections", "in_pytorch", "int8", "held", "bytes"),
)
#: Pixels per latent along each side, in every Stable Diffusion VAE.
_LATENT_SCALE = 8


@dataclass(frozen=True)
class Stage:
    """One network being prepared; ``started`` is a time of the status's clock."""

    network: str
    stage: str
    size: str
    batch: int
    started: float

    @property
    def label(self) -> str:
        """For the user, e.g. "Compiling UNet 512x512"."""
        return f"{STAGES.get(self.stage, self.stage)} {network_label(self.network)} {self.size}".strip()

    def as_dict(self, now: float, run: Run | None = None) -> dict[str, Any]:
        """For JSON, with the seconds until ``now``; ``run`` is the last generation, which may have been interrupted meanwhile."""
        ended = run.ended if run is not None and run.error == INTERRUPTED else None
        return {
            "network": self.network,
            "stage": self.stage,
            "label": self.label,
            "size": self.size,
            "batch": self.batch,
            "seconds": round(now - self.started, 2),
            "number": [*STAGES].index(self.stage) + 1 if self.stage in STAGES else 0,
            "stages": len(STAGES),
            **({"left_over": True} if ended is not None and self.started < ended else {}),
        }


@dataclass
class Run:
    """One generation: its steps and their seconds, without the time spent preparing networks in between.

    Attributes:
        what: its name for the user.
        number: 1 is the first generation of the process.
        started: when it began, on the status's clock.
        ledger: the seconds that networks have spent since then.
        prepared_before: all seconds of preparation until then.
        step: the last step that is done, of ``steps``.
        timed_steps: how many steps were timed from their beginning, in ``timed_seconds`` together.
        last_step_at: when ``step`` was done.
        prepared_at_last_step: all seconds of preparation until then.
        computed_at_last_step: the seconds that networks have computed until then.
        ended: when it ended, or None; ``error`` says why where it failed.
        shares: how its seconds divide, once it has ended.
        part: what is done between two passes, such as enlarging; "" during steps.
        counts_before: the :class:`Counts` of each network until then, with the statistics that they are of.
    """

    what: str
    number: int
    started: float
    ledger: Ledger
    prepared_before: float = 0.0
    step: int = 0
    steps: int = 0
    timed_steps: int = 0
    timed_seconds: float = 0.0
    last_step_seconds: float | None = None
    last_step_at: float | None = None
    prepared_at_last_step: float = 0.0
    computed_at_last_step: float = 0.0
    ended: float | None = None
    error: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    part: str = ""
    counts_before: dict[str, tuple[Any, Counts]] = field(default_factory=dict)

    def add_step(self, step: int, steps: int, now: float, prepared: float) -> None:
        """Step ``step`` is done; ``prepared`` are all seconds of preparation until now."""
        computed = self.ledger.computed()
        if self.last_step_at is not None and step == self.step + 1:
            seconds = now - self.last_step_at
            waited = seconds - min(seconds, computed - self.computed_at_last_step)  # the rest was spent in networks
            self.last_step_seconds = seconds - min(waited, prepared - self.prepared_at_last_step)
            self.timed_steps, self.timed_seconds = self.timed_steps + 1, self.timed_seconds + self.last_step_seconds
        self.step, self.steps, self.last_step_at, self.part = step, steps, now, ""
        self.prepared_at_last_step, self.computed_at_last_step = prepared, computed

    def shares_until(self, now: float, prepared: float) -> dict[str, float]:
        """How its seconds divide until ``now`` or the end; ``prepared`` are all seconds of preparation until now."""
        if self.ended is not None:
            return self.shares
        return self.ledger.shares(prepared - self.prepared_before, now - self.started)

    def before(self, engine: Engine) -> dict[str, Counts]:
        """What each network had counted when this began; not where another one has taken its name since."""
        now = engine.statistics()
        return {name: counts for name, (own, counts) in self.counts_before.items() if now.get(name, own) is own}

    def as_dict(self, now: float, prepared: float = 0.0) -> dict[str, Any]:
        """For JSON, with the seconds until ``now`` or the end; ``prepared`` are all seconds of preparation until now."""
        average = self.timed_seconds / self.timed_steps if self.timed_steps else None
        shares = self.shares_until(now, prepared)
        return {
            "what": self.part or self.what,
            "number": self.number,
            "active": self.ended is None,
            "seconds": round((self.ended if self.ended is not None else now) - self.started, 3),
            "step": 0 if self.part else self.step,
            "steps": self.steps,
            "seconds_per_step": _rounded(self.last_step_seconds),
            "average_seconds_per_step": _rounded(average),
            "error": self.error,
            "shares": shares,
            "labels": {name: network_label(name) for name in shares if name not in ("preparing", "other")},
        }


@dataclass
class Job:
    """Work started from the panel: precompiling, or comparing with PyTorch; ``number`` 1 is the process's first."""

    kind: str
    number: int = 1
    done: int = 0
    total: int = 0
    state: str = "running"
    text: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self)}


def failure_text(error: BaseException) -> str:
    """What the panel says of an exception: the sentence of one of ours, else its kind too."""
    if isinstance(error, Interrupted):
        return INTERRUPTED
    return str(error) if isinstance(error, OVBackendError) else f"{type(error).__name__}: {error}"


def network_label(name: str) -> str:
    """A network's name for the user; that of another model of the process too ("unet #2")."""
    role, _, number = name.partition(" ")
    return f"{_NETWORK_LABELS.get(role, role)} {number}".strip()


def size_and_batch(network: str, signature: Any) -> tuple[str, int]:
    """The picture's size as "512x768" (width x height), or what else describes a call, and its batch.

    Latents are [B, C, H/8, W/8]; the VAE's encoder takes the picture itself, [B, 3, H, W], and some networks [B, H, W, 3];
    tokens are [B, 77], embedded [B, 77, C].
    """
    tensors = getattr(signature, "tensors", ())
    for spec in () if network.startswith("text_encoder") else tensors:  # an encoder's mask has 4 dimensions too
        if len(spec.shape) == 4:
            batch, *sides = spec.shape
            is_picture = 3 in (sides[0], sides[2])
            height, width = sides[:2] if is_picture and sides[0] != 3 else sides[1:]
            scale = 1 if is_picture else _LATENT_SCALE
            return f"{width * scale}x{height * scale}", batch
    for spec in tensors:
        if len(spec.shape) in (2, 3):
            return f"{spec.shape[1]} tokens", spec.shape[0]
    return "", tensors[0].shape[0] if tensors and tensors[0].shape else 1


def engine_dict(engine: Engine) -> dict[str, Any]:
    """The engine's device and precision, and its memory in bytes."""
    return {
        "device": engine.settings.device,
        "precision": engine.settings.precision,
        "bytes": engine.compiled.bytes,
        "budget_bytes": engine.compiled.budget,
        "compiles": engine.compiles,
        "low_memory": engine.low_memory.as_dict(engine.settings),
    }


class Counts(NamedTuple):
    """A network's calls until some moment: answered by OpenVINO, and by reason those that went another way.

    Attributes:
        calls: answered by OpenVINO, as a whole or by blocks.
        reasons: for "by_blocks", "fallbacks" and "corrections" the number of calls by reason.
    """

    calls: int
    reasons: Mapping[str, Counter[str]]

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Counts:
        """Those of a network's statistics."""
        return cls(stats.get("calls", 0), {key: Counter(stats.get(key)) for key in ("by_blocks", "fallbacks", "corrections")})

    def since(self, before: Counts) -> dict[str, Any]:
        """What came after ``before``, for JSON."""
        reasons = {f"run_{key}": dict(count - before.reasons.get(key, Counter())) for key, count in self.reasons.items()}
        return {"run_calls": self.calls - before.calls, **reasons}


def counts_of(engine: Engine) -> dict[str, tuple[Any, Counts]]:
    """The statistics and the counts of each network that an engine has or had."""
    statistics = engine.statistics()
    return {name: (statistics[name], Counts.of(stats)) for name, stats in engine.stats().items() if name in statistics}


def network_dict(name: str, stats: Mapping[str, Any], before: Counts | None = None) -> dict[str, Any]:
    """One network's label and counts; ``before`` are those when the last generation began."""
    counts = {key: stats[key] for key in _NETWORK_KEYS if key in stats}
    return {"label": network_label(name), **counts, **Counts.of(stats).since(before or Counts.of({}))}


def compiled_networks(engine: Engine) -> list[dict[str, Any]]:
    """One row for each compiled network in memory: its size, device and precision, its cost, how often it was called.

    The blocks of a network that a call of one size needs are one row, too.
    """
    groups: dict[Any, list[tuple[Any, Any]]] = {}
    for key in engine.compiled:
        entry = engine.compiled.peek(key)
        if entry is not None:
            groups.setdefault(key if entry.group is None else entry.group, []).append((key, entry))
    rows = [_compiled_row(group, entries) for group, entries in groups.items()]
    _tell_apart(rows, [_variants(entries[0]) for entries in groups.values()])
    return sorted(rows, key=lambda row: (row["label"], [int(side) for side in re.findall(r"\d+", row["size"])], *_visible(row)))


def _visible(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("label", "size", "batch", "device", "precision"))


def _variants(compiled: tuple[Any, Any]) -> list[str]:
    """What else networks of one name and size may differ in, in words: the length of the prompt, and the weights."""
    key, entry = compiled
    lengths = [spec.shape[1] for spec in getattr(entry.value.signature, "tensors", ()) if len(spec.shape) == 3]
    return [f"{lengths[0]} tokens" if lengths else "", f"weights {str(getattr(key, 'weights', ''))[:6]}"]


def _tell_apart(rows: Sequence[dict[str, Any]], variants: Sequence[Sequence[str]]) -> None:
    """Name what differs between rows that look the same; where nothing nameable does, number them."""
    alike: dict[Any, list[tuple[dict[str, Any], Sequence[str]]]] = {}
    for row, variant in zip(rows, variants):
        alike.setdefault(_visible(row), []).append((row, variant))
    for same in alike.values():
        differs = [len(set(values)) > 1 for values in zip(*(variant for _, variant in same))]
        named = [", ".join(text for text, shown in zip(variant, differs) if shown and text) for _, variant in same]
        for number, ((row, _), text) in enumerate(zip(same, named), 1):
            row["variant"] = "" if len(same) == 1 else text if named.count(text) == 1 else f"{text} no. {number}".strip()


def _compiled_row(group: Any, entries: list[tuple[Any, Any]]) -> dict[str, Any]:
    network, by_blocks = entries[0][1].value.network, any(key != group for key, _ in entries)
    size, batch = size_and_batch(network, group.signature if by_blocks else entries[0][1].value.signature)
    label, in_pytorch = network_label(network), Counter[str]()
    programs = [entry.value.program for _, entry in entries]
    parts = [part for program in programs for part in program.parts.values()]
    for program in programs:
        in_pytorch.update(program.coverage.in_pytorch)
    precisions = {precision for part in parts for precision in part.precision.split(", ")}
    hits = max(entry.hits for _, entry in entries)
    return {
        "network": network,
        "label": f"{label} by its blocks" if by_blocks else label,
        "size": size,
        "batch": batch,
        "device": ",".join(sorted({part.device for part in parts})),
        "precision": ", ".join(sorted(precisions, key=lambda each: (each != "int8", each))),
        "bytes": sum(entry.bytes for _, entry in entries),
        "compile_seconds": round(sum(program.timings.bind + program.timings.compile for program in programs), 3),
        "calls": hits + 1,
        "hits": hits,
        "coverage_percent": round(min(program.coverage.percent for program in programs), 2),
        "in_pytorch": dict(in_pytorch),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
