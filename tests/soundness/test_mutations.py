"""After any change of what a forward reads, the accelerated answer is eager's: a sample; ``make soundness`` tries thousands."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ov_backend.core import fx_utils
from ov_backend.engine.engine import Network
from ov_backend.engine.request import CompiledEntry, CompileRequest
from tests.helpers.alone import alone
from tests.soundness import options
from tests.soundness.harness import Result, sampled, through_disk
from tests.soundness.modules import NASTY, REAL, build, names
from tests.soundness.processes import run_second, run_second_of_all

#: Of the networks that people use, each mutation of which takes seconds, the suite draws this many.
_REAL = 2
_PER_REAL = 5
#: The small modules are tried in this many tests; the modules of each share a second process.
_PARTS = 4


def assert_right(result: Result) -> None:
    wrong = [f"{outcome.name} [{outcome.kind}]: {outcome.stale}" for outcome in result.stale] + result.lost
    assert not wrong, f"seed {options.seed()}, {result.case}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("part", range(_PARTS))
def test_changed_modules_answer_as_pytorch_does_here_and_in_a_second_process(tmp_path: Path, part: int) -> None:
    count = max(1, (options.mutations() - _REAL * _PER_REAL) // len(NASTY))
    modules = list(NASTY)[part::_PARTS]
    here = {name: sampled(build(name), name, count, str(options.seed()), str(tmp_path / name)) for name in modules}
    wanted = {name: [outcome.name for outcome in result.outcomes] for name, result in here.items()}
    there = alone(run_second_of_all, wanted, str(tmp_path))
    assert here.keys() == there.keys()
    for result in (*here.values(), *there.values()):
        assert_right(result)


@pytest.mark.parametrize("number", range(_REAL))
def test_a_changed_network_answers_as_pytorch_does(tmp_path: Path, number: int) -> None:
    chosen = random.Random(options.seed()).sample([name for name in names() if name in REAL], _REAL)[number]
    here = sampled(build(chosen), chosen, _PER_REAL, str(options.seed()), str(tmp_path))
    there = alone(run_second, chosen, [outcome.name for outcome in here.outcomes], str(tmp_path))
    assert_right(here)
    assert_right(there)


def _never_looks_again(network: Network) -> None:
    """Break a guard: it finds everything untouched for ever."""
    original, first = network._lookup.find, dict[Any, CompiledEntry]()

    def find(call: Any, starts: bool = False) -> CompiledEntry | CompileRequest:
        if call.signature in first:
            return first[call.signature]
        result = original(call, starts)
        if isinstance(result, CompiledEntry):
            first[call.signature] = result
        return result

    network._lookup.find = find  # type: ignore[method-assign]


def test_a_guard_that_misses_changes_is_found(tmp_path: Path) -> None:
    result = sampled(build("config object"), "config object", 25, "planted", str(tmp_path), _never_looks_again)
    assert len(result.stale) > 5
    assert {outcome.kind for outcome in result.stale} >= {"object", "weight"}


def test_a_key_that_misses_the_text_is_found_through_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx_utils, "graph_text", lambda gm: "the same for all")
    name = "config object"
    sampled(build(name), name, 0, "planted", str(tmp_path))
    result = through_disk(build(name), name, ["module.config.scale: larger", "module.config.layers: one more"], str(tmp_path))
    assert len(result.stale) == 2
    assert all("through the disk" in outcome.stale for outcome in result.stale)
