"""Stable Diffusion 1.5 in every implementation that runs on this CPU; times are counted from the start of a process.

    python -m benchmarks.bench_peers [--size 512] [--steps 2] [--peers NAME ...] [--limit 420] [--out FOLDER] [--json] [--tiny]

All peers load the same random weights, from files in diffusers' layout. Each peer runs in two processes. The first one starts
with an empty disk cache and draws six pictures: 512x512 twice, 512x768, 512x512, then with the weights of a second checkpoint,
then with a LoRA. The second one uses what the first stored and draws pictures of five sizes. All start from the same noise (but
stable-diffusion.cpp, which scales it otherwise) and are compared with PyTorch's in float32. Figures that a peer does not reach
within its time limit are missing.
Peers whose packages conflict with this project's have separate environments; ``make bench`` creates them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of, show, write_line
from benchmarks.peers.process import run_phase
from benchmarks.peers.table import LABELS, check, compact, table

ROOT = Path(__file__).parents[1]
#: The environments of peers that do not run in this one.
ENVIRONMENTS = {
    **dict.fromkeys(("optimum", "genai", "cpp"), ".venv-peers"),
    "onnx": ".venv-peers-onnx",
    "openvino": ".venv-peers-openvino",
}
#: Peers that use the folder of another one: openvino-genai runs what optimum-intel exported.
FOLDER_OF = {"genai": "optimum"}
#: The share of a peer's time that its first process may take.
COLD = 0.8
#: Factor of the time limit for the reference, which is slow and is needed for every comparison.
REFERENCE = 1.5


def main() -> None:
    """Run every peer, check the figures, and print them; where they are wrong, they are printed to say what is."""
    options = parse()
    results = measure(options)
    try:
        check(results)
    except AssertionError:
        sys.stderr.write(table(results))
        raise
    figures_of = {name: compact(peer) for name, peer in results["peers"].items()}
    show({"conditions": results["conditions"], "peers": figures_of}, options, lambda *_: write_line(table(results)))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of the selected peers; PyTorch in float32 is the first, because the others are compared with it."""
    results: dict[str, Any] = {"conditions": conditions(options), "peers": {}}
    names = [name for name in LABELS if name in options.peers or name == "eager"]
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-peers-", dir=options.work) as folder:
        work = Path(folder)
        write_weights(work, options.tiny)
        for name in names:
            keep = work / "keep" / FOLDER_OF.get(name, name)
            keep.mkdir(parents=True, exist_ok=True)
            results["peers"][name] = one_peer(name, work, keep, options)
            if not any(FOLDER_OF.get(later) == name for later in names[names.index(name) :]):
                shutil.rmtree(keep)
    return results


def write_weights(work: Path, tiny: bool) -> None:
    """Write two checkpoints and a LoRA, in another process, which returns the memory that they take."""
    command = [sys.executable, "-m", "benchmarks.peers.weights", str(work), *(["--tiny"] if tiny else [])]
    subprocess.run(command, cwd=ROOT, check=True)


def one_peer(name: str, work: Path, keep: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The lines from a peer's two processes, and how these ended."""
    python = Path(sys.executable)
    if name in ENVIRONMENTS:
        python = ROOT / ENVIRONMENTS[name] / "bin" / "python"
        if not python.is_file():
            return {"lines": [], "ends": {"cold": f"no environment {ENVIRONMENTS[name]}: make bench creates it"}}
    command = [str(python), "-m", "benchmarks.peers.child", "--peer", name, "--work", str(work), "--keep", str(keep)]
    command += ["--size", str(options.size), "--steps", str(options.steps)]
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(keep / "inductor"),
        "XDG_CACHE_HOME": str(work / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    figures: dict[str, Any] = {"lines": [], "ends": {}}
    spent, limit = 0.0, options.limit * (REFERENCE if name == "eager" else 1.0)
    for phase, share in (("cold", COLD), ("new", 1.0)):
        sys.stderr.write(f"{name}, {phase}\n")
        run = run_phase([*command, "--phase", phase], environment, limit * share - spent, options.memory)
        spent += run.seconds
        figures["lines"] += run.lines
        figures["ends"][phase] = run.end
    return figures


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run."""
    sizes = {"size": f"{options.size}x{options.size}", "wide": f"{options.size * 3 // 2}x{options.size}"}
    return {**sizes, "steps_count": options.steps, "limit_s": options.limit}


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "small networks")
    parser.add_argument("--size", type=int, help="pixels of the square picture, a multiple of 128; default 512, tiny 256")
    parser.add_argument("--steps", type=int, default=2, help="steps per picture, at least 2 because the first may compile")
    parser.add_argument("--peers", nargs="+", default=list(LABELS), choices=list(LABELS))
    parser.add_argument("--limit", type=float, help="seconds for each peer; default 420, tiny 100")
    parser.add_argument("--memory", type=float, default=0.85, help="share of the machine's memory at which a peer is stopped")
    parser.add_argument("--work", type=Path, help="folder for weights and exports, 30 GB; default: the system's temporary one")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: at least 2, because the first step of a picture may compile")
    options.size = options.size or (256 if options.tiny else 512)
    options.limit = options.limit or (100.0 if options.tiny else 420.0)
    return options


if __name__ == "__main__":
    main()
