"""Applies mutations one at a time and compares the accelerated answer with eager's after each change and each undo."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ov_backend import Settings
from ov_backend.engine.engine import Engine, Network
from tests.helpers.frozen import freeze
from tests.soundness.answers import HALF_OF_A_NETWORK, Answer, answer, difference
from tests.soundness.case import Case
from tests.soundness.mutations import Mutation, named, sample


@dataclass
class Outcome:
    """What one mutation did.

    Attributes:
        name: of the mutation.
        kind: of the mutation.
        stale: how the accelerated answer was wrong, and when; "" if it was right.
        neutral: eager's answer did not change.
        raised: eager raised, and so did the accelerated call.
        calls: calls that OpenVINO answered.
        compiled: graphs compiled or imported for it.
        reasons: why PyTorch answered, with counts.
        late: a sparse write that was found when the next run began, as docs/staleness.md says of large networks.
    """

    name: str
    kind: str
    stale: str = ""
    neutral: bool = False
    raised: bool = False
    calls: int = 0
    compiled: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    late: bool = False


@dataclass
class Result:
    """All outcomes of one case; ``lost`` are mutations that a process could not find or undo."""

    case: str
    outcomes: list[Outcome] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def stale(self) -> list[Outcome]:
        """The outcomes that were wrong."""
        return [outcome for outcome in self.outcomes if outcome.stale]


#: Bytes of weights up to which a network's are read in full before every call.
_ALL_READ_BYTES = 1 << 20

#: Loggers that say what cannot be traced, which is no news here.
SILENCED = ("ov_backend", "torch._subclasses.fake_tensor")


class Trial:
    """A case with its accelerated network, and a graph store that other processes share.

    ``prepare`` changes every network that is made, for a guard that is broken on purpose.
    """

    def __init__(self, case: Case, folder: str, prepare: Callable[[Network], None] = lambda network: None) -> None:
        for name in SILENCED:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        freeze()
        self.case, self._prepare = case, prepare
        self._engine = Engine(Settings(device="CPU", precision="f32", cache_dir=folder, memory_mb=512))
        self.network = self.new_network()
        self.unchanged = self.eager()

    def new_network(self) -> Network:
        """A network that knows nothing of earlier calls, with the same store."""
        self.network = self._engine.network("net", self.case.module, hooks=self.case.hooks)
        self._prepare(self.network)
        return self.network

    def _follow(self) -> None:
        """Make another network for a module whose own forward was exchanged, as a new call of ``accelerate`` would."""
        if self.network.forward != self.case.module.forward:
            self.new_network()

    def eager(self) -> Answer:
        """PyTorch's answer now; the forward is looked up anew, for it may have been exchanged."""
        return answer(lambda: self.case.call(self.case.module.forward))

    def accelerated(self) -> Answer:
        """The network's answer now."""
        self._follow()
        function = self.case.module.forward if self.case.refused() else self.network
        return answer(lambda: self.case.call(function))

    def wrong(self, when: str, loose: bool = False) -> str:
        """How the network's answer differs from eager's now, or ""; ``loose`` where both round to half precision."""
        words = difference(self.accelerated(), self.eager(), HALF_OF_A_NETWORK if loose else self.case.tolerance)
        return f"{when}: {words}" if words else ""

    def wrong_in_a_run(self, when: str, outcome: Outcome, mutation: Mutation) -> str:
        """The same; a sparse write to a large network may be found only when the next run begins, and is then noted as late."""
        words = self.wrong(when, mutation.loose)
        if words and mutation.sparse and self._weight_bytes() > _ALL_READ_BYTES:
            self.network.begin_run()
            words, outcome.late = self.wrong(f"{when}, in the next run", mutation.loose), True
        return words

    def _weight_bytes(self) -> int:
        """Of all weights that one of the network's graphs has, those beside its parameters and buffers included."""
        sets = [guard.weights.tensors.values() for guard in self.network._lookup.guards._guards.values()]
        return max((sum(tensor.nbytes for tensor in weights) for weights in sets), default=0)


def sampled(
    case: Case, name: str, count: int, seed: str, folder: str, prepare: Callable[[Network], None] = lambda _: None
) -> Result:
    """Mutate one case ``count`` times in this process."""
    trial, result = Trial(case, folder, prepare), Result(name)
    try:
        first = Outcome("nothing", "nothing", trial.wrong("unchanged"))
        result.outcomes.append(first)
        for mutation in sample(case, lambda: trial.accelerated() and None, count, f"{seed} {name}"):
            if first.stale:
                break  # all else would be wrong for the same reason
            _in_process(trial, mutation, result)
    finally:
        case.finish()
    return result


def _in_process(trial: Trial, mutation: Mutation, result: Result) -> None:
    outcome = _tried(trial, mutation, result)
    result.outcomes.append(outcome)
    statistics = trial.network.statistics
    calls = statistics.calls
    for when in ("after the undo", "after the undo, at the second call"):
        outcome.stale = outcome.stale or trial.wrong_in_a_run(when, outcome, mutation)
    if statistics.calls == calls:  # it has given up; the next mutation must be able to show something
        trial.new_network()
        trial.wrong("unchanged")


def _tried(trial: Trial, mutation: Mutation, result: Result, anew: bool = False) -> Outcome:
    """Apply a mutation, compare twice, and undo it; the count of who answered is of these two calls.

    ``result`` notes a mutation whose undo does not restore eager's answer; with ``anew`` another network is made after the
    change.
    """
    outcome = Outcome(mutation.name, mutation.kind)
    undo = mutation.apply()
    if anew:
        trial.new_network()
    statistics = trial.network.statistics
    before = (statistics.calls, statistics.compiles + statistics.blob_hits, Counter(statistics.fallbacks))
    try:
        eager = trial.eager()
        outcome.neutral = not difference(eager, trial.unchanged)
        outcome.raised = eager.error is not None
        times = ("after the change", "after the change, at the second call")
        outcome.stale = next((words for when in times if (words := trial.wrong_in_a_run(when, outcome, mutation))), "")
    finally:
        undo()
    outcome.calls = statistics.calls - before[0]
    outcome.compiled = statistics.compiles + statistics.blob_hits - before[1]
    outcome.reasons = Counter(statistics.fallbacks) - before[2]
    if difference(trial.eager(), trial.unchanged):
        result.lost.append(f"{mutation.name} (its undo does not restore eager's answer)")
        trial.unchanged = trial.eager()
    return outcome


def through_disk(
    case: Case, name: str, names: Iterable[str], folder: str, prepare: Callable[[Network], None] = lambda _: None
) -> Result:
    """Apply mutations by name, each before the first call of a network that has the store of another process."""
    trial, result, wanted = Trial(case, folder, prepare), Result(name), set(names) - {"nothing"}
    try:
        for mutation in named(case, lambda: None, wanted):
            wanted.discard(mutation.name)
            result.outcomes.append(_tried(trial, mutation, result, anew=True))
        trial.new_network()
        last = trial.wrong("through the disk, with every mutation undone")
        if last:
            result.outcomes.append(Outcome("nothing", "nothing", last))
    finally:
        case.finish()
    for outcome in result.stale:
        outcome.stale = f"through the disk, {outcome.stale}"
    result.lost += [f"{each} (not found in the second process)" for each in sorted(wanted)]
    return result


def table(results: Iterable[tuple[Result, Result]]) -> str:
    """Per case: mutations tried, neutral, by OpenVINO, recompiled, in PyTorch, raised, next run, stale; then the reasons."""
    tried = ("tried", "neutral", "OpenVINO", "recompiled", "PyTorch", "raised", "next run", "stale")
    head = ("module", *tried, "2nd process", "stale", "lost")
    rows: list[tuple[Any, ...]] = [head]
    reasons: Counter[str] = Counter()
    for here, there in results:
        rows.append(
            (here.case, *_counts(here), len(here.stale), len(there.outcomes), len(there.stale), len(here.lost + there.lost))
        )
        for outcome in here.outcomes:
            reasons.update(outcome.reasons.keys())
    rows.append(("all", *(sum(row[i] for row in rows[1:]) for i in range(1, len(head)))))
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(str(cell).ljust(width) if not i else str(cell).rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join(
        [*lines, "", "in PyTorch by reason:", *(f"{count:6}  {reason}" for reason, count in reasons.most_common(40))]
    )


def _counts(result: Result) -> tuple[int, ...]:
    outcomes = result.outcomes
    return (
        len(outcomes),
        sum(outcome.neutral for outcome in outcomes),
        sum(outcome.calls > 0 for outcome in outcomes),
        sum(outcome.compiled > 0 for outcome in outcomes),
        sum(outcome.calls == 0 and not outcome.raised for outcome in outcomes),
        sum(outcome.raised for outcome in outcomes),
        sum(outcome.late for outcome in outcomes),
    )
