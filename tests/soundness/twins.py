"""A changed module beside an equal one that was traced: a trace that holds for every equal module must not answer this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from ov_backend.guards import traced_code
from tests.soundness.case import Case
from tests.soundness.harness import Outcome, Result, Trial
from tests.soundness.modules import build
from tests.soundness.mutations import named, sample


@contextmanager
def as_if_installed() -> Iterator[None]:
    """In this block all code counts as a package's, the nastiest included."""
    with mock.patch.object(traced_code, "is_installed", return_value=True):
        yield


def beside_a_twin(name: str, count: int, seed: str, folder: str) -> Result:
    """Trace a module, then change a second one of the same case ``count`` times, each before its first call.

    An outcome's ``compiled`` counts its traces: where it is 0 and there are calls, the other module's trace has answered them.
    """
    case, result = build(name), Result(name)
    if case.finish is not Case.finish:  # building one changes the process: there cannot be two
        case.finish()
        return result
    first = Trial(case, folder)
    try:
        result.outcomes.append(Outcome("nothing", "nothing", first.wrong("unchanged") or first.wrong("unchanged, again")))
        wanted = [mutation.name for mutation in sample(first.case, lambda: None, count, f"{seed} {name}")]
        for each in wanted:
            result.outcomes.append(_changed_twin(first, name, each, result))
    finally:
        first.case.finish()
    return result


def _changed_twin(first: Trial, name: str, mutation_name: str, result: Result) -> Outcome:
    before, first.case = first.case, build(name)
    try:
        mutation = next(iter(named(first.case, lambda: None, {mutation_name})), None)
        if mutation is None:
            result.lost.append(f"{mutation_name} (not found in the twin)")
            return Outcome(mutation_name, "lost")
        outcome, undo = Outcome(mutation.name, mutation.kind), mutation.apply()
        try:
            statistics = first.new_network().statistics
            traced = statistics.captures
            outcome.stale = first.wrong("in a twin", mutation.loose) or first.wrong("in a twin, again", mutation.loose)
            outcome.calls, outcome.compiled = statistics.calls, statistics.captures - traced
        finally:
            undo()
        return outcome
    finally:
        first.case.finish()
        first.case = before
        first.new_network()
