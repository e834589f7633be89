"""How rows are divided among processes, and what these prepare together: never less and never more than the plan says."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from ov_backend.batch.job import Job
from ov_backend.batch.plan import Plan, ordered, shares, summary
from ov_backend.batch.row import Row
from ov_backend.ui.infotext import Parameters

LORA = (Path("a.safetensors"), 1.0)


def plan_of(rows: list[Row], processes: int) -> Plan:
    return Plan(Job(rows, len(rows), 0), rows, 0, 0, False, None, processes)


def mixed(chance: random.Random) -> list[Row]:
    """Rows of up to twelve kinds, in order."""
    kinds = list(itertools.product(("x", "y"), ((), (LORA,)), (64, 128, 192)))
    chosen = [chance.choice(kinds[: chance.randrange(1, 13)]) for _ in range(chance.randrange(1, 60))]
    return ordered(
        Row(i, i, Parameters("p", seed=i, width=side, height=64), Path(model), "f32", None, loras)
        for i, (model, loras, side) in enumerate(chosen, 1)
    )


def compiles(rows: list[Row], processes: int, chance: random.Random) -> int:
    """How often processes of random speed have compiled; each keeps what it has compiled last."""
    last: dict[int, object] = {}
    count = 0
    for share in shares(rows, processes):
        process, kind = chance.randrange(processes), (share[0].checkpoint, share[0].loras, share[0].shape)
        count += last.get(process) != kind
        last[process] = kind
    return count


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_what_processes_compile_lies_within_what_the_plan_says(processes: int) -> None:
    chance, reached = random.Random(processes), set()
    for _ in range(30):
        rows = mixed(chance)
        says = summary(plan_of(rows, processes))
        for _ in range(20):
            count = compiles(rows, processes, chance)
            assert says["compiles"] <= count <= says["most_compiles"]
            reached |= {"least"} if count == says["compiles"] else {"most"} if count == says["most_compiles"] else set()
    assert reached == ({"least", "most"} if processes > 1 else {"least"}), "one process knows, several reach both bounds"


def test_one_process_prepares_every_kind_once() -> None:
    rows = mixed(random.Random(3))
    says = summary(plan_of(rows, 1))
    assert says["compiles"] == says["most_compiles"] == len({(row.checkpoint, row.loras, row.shape) for row in rows})
    assert says["checkpoints"] == len({row.checkpoint for row in rows})
    assert says["lora_mixes"] == len({row.checkpoint for row in rows if row.loras})


def of_one_kind(count: int, width: int = 64, first: int = 1) -> list[Row]:
    return [Row(i, i, Parameters("x", seed=i, width=width), Path("a"), "f32") for i in range(first, first + count)]


def test_shares_are_groups_and_large_groups_are_divided() -> None:
    job = of_one_kind(100) + of_one_kind(2, 128, 101) + of_one_kind(2, 192, 103)
    several = list(shares(job, 2))
    assert [row for share in several for row in share] == job
    assert [len(share) for share in several] == [25, 25, 25, 25, 2, 2]
    assert [len(share) for share in shares(job, 1)] == [100, 2, 2]
    assert [len(share) for share in shares(of_one_kind(3), 8)] == [1, 1, 1]
    assert list(shares([], 2)) == []
