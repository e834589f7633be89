"""Kills processes that draw pictures with low memory, while they give weights back: a new process draws the right picture.

    python -m tests.soundness.picture_kills [--count 200] [--seed 0] [--folder FOLDER] [--full FOLDER]

A process draws with a pipeline of random weights, and changes them and back between pictures, as a LoRA does. It is killed
with SIGKILL a random moment after it has begun to give weights back for the first, second or a later time. Then another process
draws both pictures. All use one cache folder. The pictures are compared with those of PyTorch in a process of its own.

With ``--full`` the cache lies on a small disk of its own (less than 1 GiB, for example an image that is mounted), which a file
fills so that a random part of the weights fits. Some of the processes then run into the full disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ov_backend import Settings, accelerate
from ov_backend.checkpoint import load_pipeline
from ov_backend.memory import offload_weights
from ov_backend.memory.regions import regions
from tests.helpers.random_checkpoint import write_random_checkpoint

#: The longest time in seconds that a process has for its next mark.
PATIENCE_S = 300.0
#: A process is killed so many seconds after it has begun to give weights back; a network's take some hundredths.
LATEST_S = 0.1
#: How often a process has begun to give weights back when it is killed: three networks, then what has changed.
LAST_GIVING = 6
#: The most bytes of weights that still fit on the full disk.
MOST_FREE = 40 << 20
#: What is needed on the disk is never more than is free.
_NO_LIMIT = -(1 << 40)
#: Largest difference of pictures in f32, of 1.
TOLERANCE = 0.02

_UNET = {
    "block_out_channels": [64, 128],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}
_VAE = {
    "block_out_channels": [64, 128],
    "down_block_types": ["DownEncoderBlock2D"] * 2,
    "up_block_types": ["UpDecoderBlock2D"] * 2,
}

Picture = np.ndarray[Any, Any]


class Painter:
    """A pipeline that draws one picture in two states of its weights."""

    def __init__(self, checkpoint: Path) -> None:
        torch.set_num_threads(1)
        self.pipe = load_pipeline(checkpoint)
        self.pipe.set_progress_bar_config(disable=True)
        weights = [each for each in self.pipe.unet.parameters() if each.nbytes >= offload_weights.MIN_BYTES]
        self._weights = [(each, each.detach().clone()) for each in weights]

    @torch.no_grad()
    def picture(self, changed: bool) -> Picture:
        """The picture [H, W, 3], 0 to 1, with the weights as they were or changed."""
        for weight, own in self._weights:
            weight.copy_(own * 1.3 if changed else own)
        generator = torch.Generator().manual_seed(1)
        answer = self.pipe("a fox", num_inference_steps=2, width=64, height=64, generator=generator, output_type="np")
        return np.asarray(answer.images[0])


def paint_by_pytorch(checkpoint: Path, file: Path) -> None:
    """Write both pictures, by PyTorch alone."""
    painter = Painter(checkpoint)
    np.save(file, np.stack([painter.picture(changed) for changed in (False, True)]))


def paint(checkpoint: Path, folder: Path, expected: Picture, pipe: int, pictures: float) -> None:
    """Draw so many pictures with low memory; tell ``pipe`` of every beginning and end of giving back, and every picture."""
    _tell_of_giving(pipe)
    painter = Painter(checkpoint)
    settings = Settings(precision="f32", cache_dir=str(folder), low_memory="on", fallback="raise")
    with accelerate(painter.pipe, settings) as accelerated:
        drawn = 0
        while drawn < pictures:
            changed = drawn % 2
            difference = np.abs(painter.picture(bool(changed)) - expected[changed]).max()
            os.write(pipe, b"right " if difference <= TOLERANCE else b"wrong ")
            drawn += 1
        os.write(pipe, b"full " if accelerated.engine.low_memory.reason else b"room ")
        os.write(pipe, b"moved " if regions.offloaded() else b"stayed ")


def _tell_of_giving(pipe: int) -> None:
    move_all = offload_weights._move_all

    def told(*args: Any) -> int:
        os.write(pipe, b"begin ")
        try:
            return move_all(*args)
        finally:
            os.write(pipe, b"end ")

    offload_weights._move_all = told


class Child:
    """A forked process that does something and writes words into a pipe."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self._out, into = os.pipe()
        self._text = b""
        self.process = os.fork()
        if not self.process:
            code = 1
            try:
                os.close(self._out)
                work(into)
                code = 0
            finally:
                os._exit(code)
        os.close(into)

    def words(self) -> list[str]:
        """All words so far."""
        return self._text.decode().split()

    def read(self, seconds: float) -> bool:
        """Read what comes within so many seconds; False at the process's end."""
        if not select.select([self._out], [], [], seconds)[0]:
            return True
        text = os.read(self._out, 1 << 16)
        self._text += text
        return bool(text)

    def wait_for(self, words: Container[str], times: int) -> None:
        """Wait until one of these words was written so often, or the process has ended."""
        end = time.monotonic() + PATIENCE_S
        while sum(word in words for word in self.words()) < times and time.monotonic() < end and self.read(1.0):
            pass

    def end(self, kill: bool) -> list[str]:
        """Wait for the end, or kill the process; its words, and "failed" where it failed by itself."""
        if kill:
            os.kill(self.process, signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while self.read(max(0.0, end - time.monotonic())) and time.monotonic() < end:
            pass
        _, status = os.waitpid(self.process, 0)
        os.close(self._out)
        return self.words() + (["failed"] if status and not kill else [])


def run(folder: Path, count: int, seed: int, disk: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Kill ``count`` processes; what was counted, and files that should not be there."""
    draw, counts, left = random.Random(seed), Counter[str](), list[str]()
    torch.set_num_threads(1)  # a forked process has no others
    checkpoint = write_random_checkpoint(folder / "small.safetensors", unet=_UNET, vae=_VAE, text={"num_hidden_layers": 2})
    load_pipeline(checkpoint)  # imports what every process needs
    Child(lambda pipe: paint_by_pytorch(checkpoint, folder / "expected.npy")).end(kill=False)
    expected = np.load(folder / "expected.npy")
    assert np.abs(expected[0] - expected[1]).max() > 5 * TOLERANCE, "the change of the weights changes nothing"
    cache = disk or folder / "cache"
    if disk:  # as when another program fills the disk after its free bytes were counted
        offload_weights.SPARE_BYTES = _NO_LIMIT
    for number in range(count):
        with _filled(disk, draw):
            counts.update(_killed(lambda pipe: paint(checkpoint, cache, expected, pipe, float("inf")), draw))
            after = Child(lambda pipe: paint(checkpoint, cache, expected, pipe, 2)).end(kill=False)
        counts.update(f"{word} after" for word in after if word not in ("begin", "end"))
        left += [path.name for path in cache.rglob("weights-*")]
        if number % 10 == 9:
            _say(f"{number + 1}: {dict(counts)}")
    return counts, left


def _killed(work: Callable[[int], None], draw: random.Random) -> list[str]:
    """Kill a process a random moment after it began to give weights back; its pictures, and in which work it was."""
    child = Child(work)
    child.wait_for({"begin"}, draw.randint(1, LAST_GIVING))
    time.sleep(draw.uniform(0, LATEST_S))
    words = child.end(kill=True)
    giving = words.count("begin") > words.count("end")
    return [*(word for word in words if word in ("right", "wrong")), "killed while giving back" if giving else "killed later"]


@contextlib.contextmanager
def _filled(disk: Path | None, draw: random.Random) -> Iterator[None]:
    """In this block a small disk holds a random part of the weights only."""
    if disk is None:
        yield
        return
    file = disk / "filled"
    with file.open("wb") as handle:
        os.posix_fallocate(handle.fileno(), 0, max(1, shutil.disk_usage(disk).free - draw.randrange(MOST_FREE)))
    try:
        yield
    finally:
        file.unlink()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Kill many, and say what was seen; 1 if a picture was wrong, or a process failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="of checkpoint and cache; the default is a new one in the current folder")
    parser.add_argument("--full", type=Path, help="a folder on a small disk, which is filled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as new:
        counts, left = run(options.folder or Path(new), options.count, options.seed, options.full)
    _say(f"{options.count} kills: {dict(counts)}, left on the disk: {left or 'nothing'}")
    bad = {"wrong", "wrong after", "failed after"} & set(counts)
    return 1 if left or bad or counts["right after"] != 2 * options.count else 0


if __name__ == "__main__":
    sys.exit(main())
