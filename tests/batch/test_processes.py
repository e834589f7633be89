"""The number of processes of a machine: as many as make more pictures and have memory, measured once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ov_backend.batch.processes import Machine, Results, Speed, best
from ov_backend.batch.row import Row
from ov_backend.cache.store import run_store
from ov_backend.ui.infotext import Parameters

GIB = 1 << 30
MACHINE = Machine("a processor", cores=8, memory=64 * GIB)


def chosen(rates: dict[int, float], cores: int = 8, memory: int = GIB) -> tuple[int, list[int]]:
    """The number that is chosen where so many processes together make so much, and the numbers that were tried."""

    def speeds(count: int) -> list[Speed]:
        return [Speed(rates[count] / count, memory)] * count if rates[count] else []

    count, tried = best(Machine("a processor", cores, 64 * GIB), speeds)
    return count, [*tried]


@pytest.mark.parametrize(
    "rates,count,tried",
    [
        ({1: 10, 2: 19, 4: 30, 8: 31}, 4, [1, 2, 4, 8]),
        ({1: 10, 2: 10.2}, 1, [1, 2]),
        ({1: 10, 2: 15, 4: 20, 8: 30}, 8, [1, 2, 4, 8]),
        ({1: 10, 2: 0}, 1, [1, 2]),  # two did not start
        ({1: 0}, 1, [1]),  # the row fails
    ],
)
def test_more_processes_are_used_while_they_make_more_pictures(rates: dict[int, float], count: int, tried: list[int]) -> None:
    assert chosen(rates) == (count, tried)


def test_no_more_processes_than_cores_or_memory_are_tried() -> None:
    rates = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}
    assert chosen(rates, cores=2) == (2, [1, 2])
    assert chosen(rates, memory=20 * GIB) == (2, [1, 2])
    assert chosen(rates, memory=40 * GIB) == (1, [1])


def test_a_result_is_remembered_by_machine_and_kind_of_row(checkpoint: Path, tmp_path: Path) -> None:
    row = Row(1, 1, Parameters("x", seed=1, width=64, height=64), checkpoint, "f32")
    assert Results(tmp_path / "new").get(MACHINE, row) is None
    Results(tmp_path / "new").put(MACHINE, row, 4)
    results = Results(tmp_path / "new")
    other = Row(7, 3, Parameters("y", seed=2, width=64, height=64), checkpoint, "f32")
    assert results.get(MACHINE, other) == 4, "prompt and seed do not matter"
    assert results.get(Machine("a processor", 4, 64 * GIB), row) is None
    wide = Row(1, 1, Parameters("x", seed=1, width=128, height=64), checkpoint, "f32")
    assert results.get(MACHINE, wide) is None
    results.put(MACHINE, wide, 2)
    assert (results.get(MACHINE, row), results.get(MACHINE, wide)) == (4, 2)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": 1}', b"[" * 100_000, b"\x00", b"9", b'"2"', b"true", b"0", b"1e3"])
def test_a_note_that_is_no_number_of_processes_counts_as_none(content: bytes, checkpoint: Path, tmp_path: Path) -> None:
    row = Row(1, 1, Parameters("x", seed=1, width=64, height=64), checkpoint, "f32")
    Results(tmp_path).put(MACHINE, row, 2)
    (entry,) = run_store(tmp_path).entries()
    run_store(tmp_path).put(entry.key, {"processes.json": content})
    assert Results(tmp_path).get(MACHINE, row) is None
    Results(tmp_path).put(MACHINE, row, 2)
    assert Results(tmp_path).get(MACHINE, row) == 2
