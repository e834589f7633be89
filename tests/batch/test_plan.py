"""What several processes prepare together: never less and never more than the plan says, however the shares fall."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from ov_backend.batch.plan import largest_kind, ordered, preparations, shares
from ov_backend.batch.row import Row
from ov_backend.ui.infotext import Parameters

LORA = (Path("a.safetensors"), 1.0)


def mixed(chance: random.Random) -> list[Row]:
    """Rows of up to twelve kinds, in order."""
    kinds = list(itertools.product(("x", "y"), ((), (LORA,)), (64, 128, 192)))
    chosen = [chance.choice(kinds[: chance.randrange(1, 13)]) for _ in range(chance.randrange(1, 60))]
    return ordered(
        Row(i, i, Parameters("p", seed=i, width=side, height=64), Path(model), "f32", None, loras)
        for i, (model, loras, side) in enumerate(chosen, 1)
    )


def taken(rows: list[Row], workers: int, chance: random.Random) -> tuple[int, int, int]:
    """Checkpoints, mixes and compiles that processes of random speed have prepared: the first shares go one to each."""
    before: list[dict[str, object]] = [{} for _ in range(workers)]
    counts = dict.fromkeys(("checkpoint", "mix", "kind"), 0)
    for place, share in enumerate(shares(rows, workers)):
        state, row = before[place if place < workers else chance.randrange(workers)], share[0]
        needs: dict[str, object] = {"checkpoint": row.checkpoint, "kind": (row.checkpoint, row.loras, row.shape)}
        needs |= {"mix": (row.checkpoint, row.loras)} if row.loras else {}
        for name, need in needs.items():
            counts[name] += state.get(name) != need
            state[name] = need
    return counts["checkpoint"], counts["mix"], counts["kind"]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_what_processes_prepare_lies_within_what_the_plan_says(workers: int) -> None:
    chance, reached = random.Random(workers), set()
    for _ in range(30):
        rows = mixed(chance)
        says = preparations(rows, workers)
        for _ in range(20):
            for (least, most), count in zip((says.checkpoints, says.lora_mixes, says.compiles), taken(rows, workers, chance)):
                assert least <= count <= most
                reached |= {"least"} if count == least < most else {"most"} if least < most == count else set()
    assert reached == ({"least", "most"} if workers > 1 else set()), "one process knows, several reach both bounds"


def test_one_process_prepares_every_kind_once() -> None:
    rows = mixed(random.Random(3))
    kinds = {(row.checkpoint, row.loras, row.shape) for row in rows}
    assert preparations(rows, 1).compiles == (len(kinds), len(kinds))


def test_the_largest_kind_is_the_one_with_the_most_to_compute() -> None:
    sizes = [Parameters("p", width=64 * side, height=64) for side in (1, 1, 4, 1)]
    rows = [Row(i, i, size, Path("x"), "f32") for i, size in enumerate(sizes)]
    assert largest_kind(ordered(rows)).number == 2
    assert largest_kind(ordered(rows[:2])).number == 0
