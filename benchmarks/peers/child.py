"""Runs one peer; prints every figure as a line of JSON as soon as it is measured.

    python -m benchmarks.peers.child --peer NAME --phase cold|new --work FOLDER --keep FOLDER --size 512 --steps 2 --start TIME

``cold``: draws the sequence of pictures, the last ones with changed weights. ``new``: a process that uses what the first one
stored, and draws pictures of further sizes to measure their memory.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

PEERS = {
    "eager": "torch_peers.Eager",
    "eager_bf16": "torch_peers.EagerBf16",
    "inductor": "torch_peers.Inductor",
    "openvino": "torch_peers.OpenVINO",
    "optimum": "openvino_peers.Optimum",
    "genai": "openvino_peers.GenAI",
    "onnx": "onnx_peers.OnnxRuntime",
    "cpp": "cpp_peers.StableDiffusionCpp",
    "ours": "torch_peers.Ours",
}
#: Further sizes of the second process, as shares of the full size.
SHARES = ((0.5, 0.5), (0.75, 0.5), (0.5, 0.75), (0.75, 0.75))


class Child:
    """Runs a peer, measures it, and compares its pictures with the reference."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        #: Seconds of work that another process did for this one; they are added to the time.
        self.shared_seconds = 0.0
        self.number = 0
        self.work = Path(options.work)
        self.first, self.second = self.work / "first", self.work / "second"
        self.wide = (options.size * 3 // 2, options.size)
        self.square = (options.size, options.size)
        # Libraries print too, also from C++; their output goes to stderr.
        self.out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def now(self) -> float:
        """Seconds since the process was started, including the work of other processes for this one."""
        return time.time() - self.options.start + self.shared_seconds

    def report(self, key: str, **figures: Any) -> None:
        """Print figures for the parent process."""
        if key == "export" and figures["shared"]:
            self.shared_seconds += figures["seconds"]
        memory = {"rss": _status("VmRSS"), "peak": _status("VmHWM")}
        line = {"key": key, "phase": self.options.phase, "at": self.now(), **memory, **figures}
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def run(self) -> None:
        """Run the selected phase."""
        module, name = PEERS[self.options.peer].split(".")
        peer = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)(Path(self.options.keep), self.report)
        if self.options.phase == "new":
            peer.counts_export = False  # the first process has counted it
        peer.load(self.first)
        self.report("loaded", versions=_versions())
        (self.cold if self.options.phase == "cold" else self.new)(peer)
        self.report("done")

    def cold(self, peer: Any) -> None:
        """Draw two pictures, one of another size, one of the first size, and two with other weights."""
        self.picture(peer, "first", self.square)
        keep = Path(self.options.keep)
        exported = keep / self.first.name  # the folder may be shared with another peer
        self.report("disk", bytes=_bytes(exported if exported.is_dir() else keep))
        self.picture(peer, "again", self.square)
        self.picture(peer, "wide", self.wide)
        self.picture(peer, "back", self.square)
        start = self.now()
        peer.second_checkpoint(self.second)
        self.picture(peer, "second checkpoint", self.square, start)
        start = self.now()
        peer.lora(self.work / "lora.safetensors")
        is_current = self.picture(peer, "LoRA", self.square, start)
        start = self.now()
        if not is_current and peer.recompile():
            self.picture(peer, "LoRA", self.square, start, label="LoRA, renewed")

    def new(self, peer: Any) -> None:
        """Draw a picture, then one of each other size."""
        self.picture(peer, "first", self.square)
        for width, height in SHARES:
            sides = [int(share * self.options.size) // 64 * 64 or 64 for share in (width, height)]
            self.picture(peer, None, (sides[0], sides[1]))

    def picture(
        self, peer: Any, expected: str | None, size: tuple[int, int], start: float | None = None, label: str = ""
    ) -> bool:
        """Draw, compare with PyTorch's picture in float32, and report; False if the picture is stale."""
        import numpy as np

        start = self.now() if start is None else start
        drawn = peer.picture(*size, self.options.steps)
        seconds = self.now() - start
        self.number += 1
        error, stale = None, None
        if expected:
            error, stale = self.compare(drawn.pixels, expected)
            if self.options.peer == "eager" and self.options.phase == "cold":
                np.save(self.work / f"{expected}.npy", drawn.pixels)
        self.report(
            "picture",
            label=label or expected or "size",
            number=self.number,
            size=size,
            seconds=seconds,
            steps=drawn.steps,
            decode=drawn.decode,
            error=error,
            stale=stale,
            counts=peer.counts() if hasattr(peer, "counts") else None,
        )
        return not stale

    def compare(self, pixels: Any, name: str) -> tuple[float | None, bool | None]:
        """The relative error to the reference without its mean, and whether the picture before the change is more similar."""
        import numpy as np

        before = {"second checkpoint": "first", "LoRA": "second checkpoint"}.get(name)
        if not (self.work / f"{name}.npy").is_file():
            return None, None

        def distance(other: str) -> float:
            reference = np.load(self.work / f"{other}.npy")
            return float(np.linalg.norm(pixels - reference) / np.linalg.norm(reference - reference.mean()))

        return distance(name), bool(before) and distance(str(before)) < distance(name)


def _status(field: str) -> int:
    """A memory field of this process's status, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) >> 10


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    names = ("torch", "openvino", "diffusers", "transformers", "optimum-intel", "openvino-genai", "optimum-onnx", "onnxruntime")
    for name in (*names, "stable-diffusion-cpp-python"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, choices=list(PEERS))
    parser.add_argument("--phase", required=True, choices=["cold", "new"])
    parser.add_argument("--work", required=True)
    parser.add_argument("--keep", required=True)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--start", type=float, default=time.time())
    Child(parser.parse_args()).run()


if __name__ == "__main__":
    main()
