"""Kills processes that give weights back, at random moments: the next one answers rightly, and nothing is left on the disk.

    python -m tests.soundness.kills [--count 200] [--seed 0] [--folder FOLDER]

Each process changes its weights as a LoRA does, again and again, and compares OpenVINO's answers with PyTorch's. They all use one
cache folder, so that each meets what the killed ones have left there.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.memory.regions import regions
from tests.helpers.small import Small, inputs
from tests.soundness.picture_kills import Child

#: The longest time in seconds that a process lives after its first answer.
LIFE_S = 0.3
def run(folder: Path, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Kill ``count`` processes; the answers by "right" and "wrong", and what was found in the folder that should not be there."""
    draw, answers, left = random.Random(seed), Counter[str](), list[str]()
    for _ in range(count):
        answers.update(_killed(folder, draw.uniform(0, LIFE_S)))
        left += [path.name for path in folder.rglob("weights-*")]
    return answers, left


def _killed(folder: Path, life: float) -> list[str]:
    """Run one process and kill it ``life`` seconds after its first answer; its answers."""
    child = Child(lambda pipe: _work(folder, pipe))
    child.wait_for({"right", "wrong"}, 1)
    time.sleep(life)
    return child.end(kill=True) or ["none"]


@torch.no_grad()
def _work(folder: Path, pipe: int) -> None:
    torch.set_num_threads(1)
    module = Small()
    settings = Settings(precision="f32", cache_dir=str(folder), low_memory="on", fallback="raise")
    network = Engine(settings).network("net", module)
    while True:
        expected, got = module(*inputs()), network(*inputs())
        right = bool((got - expected).norm() <= 1e-3 * expected.norm()) and regions.offloaded() > 0
        os.write(pipe, b"right " if right else b"wrong ")
        module.matrix.weight.add_(torch.randn(512) * 0.1)


def main() -> int:
    """Kill many, and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="of the cache; the default is a new one in the current folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as new:
        answers, left = run(options.folder or Path(new), options.count, options.seed)
    sys.stdout.write(f"{options.count} kills: {dict(answers)}, left on the disk: {left or 'nothing'}\n")
    return 1 if left or set(answers) != {"right"} else 0


if __name__ == "__main__":
    sys.exit(main())
