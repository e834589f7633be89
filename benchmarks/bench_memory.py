"""Resident memory of a whole pipeline: PyTorch, ours, and ours with low memory; loaded, at the peak, and afterwards.

    python -m benchmarks.bench_memory [--sdxl] [--limit-gb N] [--more] [--mapped] [--weights FOLDER] [--out FOLDER] [--json]

Stable Diffusion 1.5, or with ``--sdxl`` SDXL, with random weights in float32 as diffusers' classes: text encoders, UNet, VAE.
Each way to run it has a process of its own, with an empty folder for the graphs. Figures are VmRSS and VmHWM of the kernel, so
file pages count. Weights lie in their own memory, as in the WebUI; with ``--mapped`` in the checkpoint's file, as diffusers loads
them. ``--more`` draws two more pictures: with a LoRA in the weights, and of another size. Each is compared with PyTorch's before
anything is printed. With ``--limit-gb`` no process may take more memory; the table says which did not fit. When it is stopped
(SIGTERM), it compares and prints what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of, show, write_line
from benchmarks.memory_limit import KINDS, DidNotFit, Limit

WAYS = ("pytorch", "default", "low memory")
#: Largest relative error of a picture: bf16 in a network of random weights.
TOLERANCE = 0.2
#: MiB of weights that low memory gives back at least: most of SD1.5's 3.9 GiB, and of SDXL's 12.9.
GIVEN_BACK = {"SD1.5": 3 << 10, "SDXL": 11 << 10}
DID_NOT_FIT = "did not fit"


def main() -> None:
    """Run every way, compare the pictures, and print the figures."""
    options = parse()
    if options.child:
        sys.stdout.write(json.dumps(child(options)) + "\n")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.work) as folder, contextlib.ExitStack() as stack:
        work = Path(folder)
        if options.weights is None:
            options.weights = work / "weights"
            write_weights(options)
        limit = stack.enter_context(Limit(options.limit_gb, options.limit_by)) if options.limit_gb else None
        try:
            run_all(results, limit, options, work)
        except KeyboardInterrupt:
            sys.stderr.write(f"Stopped; {', '.join(results) or 'nothing'} had been measured.\n")
        errors = compare(work, results)
    check(results, errors, options)
    conditions = {"network": options.network, "limit": limit.name if limit is not None else ""}
    report = {"conditions": conditions, "ways": results, "relative_error": errors}
    show(report, options, lambda report, _: write_line(table(report)), "sdxl" if options.sdxl else "")


def write_weights(options: argparse.Namespace) -> None:
    """Write the pipeline and a LoRA into ``options.weights``, in a process of its own."""
    kind = ["benchmarks.peers.weights_xl"] if options.sdxl else ["benchmarks.peers.weights", "--one"]
    command = [sys.executable, "-m", *kind, str(options.weights)]
    subprocess.run([*command, *(["--tiny"] if options.tiny else [])], check=True, stdout=subprocess.DEVNULL)


def run_all(results: dict[str, Any], limit: Limit | None, options: argparse.Namespace, work: Path) -> None:
    """Add the figures of every way to ``results``."""
    for way in options.ways:
        try:
            results[way] = in_process(way, limit, options, work)
        except DidNotFit as error:
            results[way] = {DID_NOT_FIT: str(error)}
    if DID_NOT_FIT in results.get("pytorch", {}) and len(results) > 1:
        in_process("pytorch", None, options, work)  # its pictures are needed to compare the others


def in_process(way: str, limit: Limit | None, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """The figures of one way.

    Raises:
        DidNotFit: it died of the limit.
    """
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--child", way, "--work", str(work)]
    command += ["--weights", str(options.weights), "--size", str(options.size), "--steps", str(options.steps)]
    command += ["--precision", options.precision]
    command += [f"--{name}" for name in ("more", "mapped", "sdxl") if getattr(options, name)]
    try:
        if limit is None:
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
        else:
            output = limit.run(command)
    finally:
        shutil.rmtree(work / folder_of(way), ignore_errors=True)  # SDXL's graphs take gigabytes of the disk
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


def folder_of(way: str) -> str:
    """The name of a way's folder for graphs."""
    return way.replace(" ", "-")


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Draw the pictures of one way in this process, and save them for the comparison."""
    import numpy as np

    from benchmarks.peers.torch_peers import Eager

    folder = options.work / folder_of(options.child)
    peer = Eager(folder, lambda key, **figures: None)
    peer.load(options.weights / "first")
    if options.sdxl:
        call_text_encoders(peer.networks)
    if not options.mapped:
        own_memory(peer.networks.values())
    accelerated = None
    if options.child != "pytorch":
        accelerated = accelerate(peer.pipe, folder, options)
    figures: dict[str, Any] = {"loaded": {"peak_mib": status("VmHWM"), "after_mib": status("VmRSS")}}

    def measured(name: str, change: Callable[[], None], width: int, height: int) -> None:
        reset_peak()
        start = time.perf_counter()
        change()
        drawn = peer.picture(width, height, options.steps)
        seconds = time.perf_counter() - start
        figures[name] = {"peak_mib": status("VmHWM"), "after_mib": status("VmRSS")}
        figures[name] |= {"anonymous_mib": status("RssAnon"), "picture_s": seconds}
        np.save(options.work / f"{options.child}-{name}.npy", drawn.pixels)

    size = options.size
    measured("first picture", lambda: None, size, size)
    measured("second picture", lambda: None, size, size)
    if options.more:
        measured("LoRA", lambda: peer.lora(options.weights / "lora.safetensors"), size, size)
        measured("another size", lambda: None, size, size * 3 // 4 // 64 * 64)
    if accelerated is not None:
        stats = accelerated.stats()
        figures["fallbacks_count"] = sum(sum(network["fallbacks"].values()) for network in stats.values())
        figures["compiles_count"] = sum(network["compiles"] for network in stats.values())
        resources = accelerated.engine.resources
        given_back = resources.low_memory.as_dict(resources.settings)["offloaded_bytes"]
        figures["given_back_mib"] = given_back / 2**20
    return figures


def call_text_encoders(networks: dict[str, Any]) -> None:
    """Have transformers put its hooks for hidden states into the text encoders; the first call does that, and sets attributes."""
    import torch

    with torch.no_grad():
        for name, network in networks.items():
            if name.startswith("text_encoder"):
                network(torch.zeros(1, 77, dtype=torch.long), output_hidden_states=True)


def own_memory(networks: Iterable[Any]) -> None:
    """Copy the weights of networks into memory of their own, and reset the peak."""
    for network in networks:
        for parameter in network.parameters():
            parameter.data = parameter.data.clone()
    reset_peak()


def accelerate(pipe: Any, folder: Path, options: argparse.Namespace) -> Any:
    """The pipeline in OpenVINO."""
    import ov_backend

    low_memory = "on" if options.child == "low memory" else "off"
    settings = ov_backend.Settings(
        cache_dir=str(folder), low_memory=low_memory, precision=options.precision, fallback="raise"
    )
    return ov_backend.accelerate(pipe, settings)


def status(field: str) -> int:
    """A memory field of this process's status, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) >> 10


def reset_peak() -> None:
    """Have VmHWM begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def compare(work: Path, results: dict[str, Any]) -> dict[str, float]:
    """The relative error of every picture to PyTorch's, without its mean."""
    import numpy as np

    errors = {}
    for way in fitted(results):
        for path in sorted(work.glob(f"{way}-*.npy")):
            reference = work / path.name.replace(way, "pytorch", 1)
            if way != "pytorch" and reference.is_file():
                pixels, expected = np.load(path), np.load(reference)
                errors[path.stem] = float(np.linalg.norm(pixels - expected) / np.linalg.norm(expected - expected.mean()))
    return errors


def fitted(results: dict[str, Any]) -> dict[str, Any]:
    """The results without those that did not fit under the limit."""
    return {way: figures for way, figures in results.items() if DID_NOT_FIT not in figures}


def check(results: dict[str, Any], errors: dict[str, float], options: argparse.Namespace) -> None:
    """Assert that the pictures are right, that OpenVINO made them, and that low memory gave weights back."""
    assert all(error < TOLERANCE for error in errors.values()), errors
    for way, figures in fitted(results).items():
        if way != "pytorch":
            assert figures["fallbacks_count"] == 0, figures
        if way == "low memory" and not options.tiny:
            assert figures["given_back_mib"] > GIVEN_BACK[options.network], figures


def table(report: dict[str, Any]) -> str:
    """The figures as text, in MiB and as shares of PyTorch's."""
    lines = [", ".join(f"{name} {value}" for name, value in report["conditions"].items())]
    reference = report["ways"].get("pytorch", {})
    for way, figures in report["ways"].items():
        lines += ["", way]
        for name, values in figures.items():
            if not isinstance(values, dict) or "peak_mib" not in values:
                lines.append(f"  {name:16}{values}")
                continue
            keys = ("peak_mib", "after_mib")
            shares = [f" ({values[key] / reference[name][key]:.2f})" if name in reference else "" for key in keys]
            text = ", ".join(f"{key.removesuffix('_mib')} {values[key]:6} MiB{share}" for key, share in zip(keys, shares))
            seconds = f", {values['picture_s']:.1f} s" if "picture_s" in values else ""
            lines.append(f"  {name:16}{text}{seconds}")
    lines += ["", *(f"{name:30}relative error {error:.4f}" for name, error in report["relative_error"].items())]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "small networks")
    parser.add_argument("--sdxl", action="store_true", help="SDXL, which takes four times the memory")
    parser.add_argument("--size", type=int, help="pixels of the square picture: 512, or 1024 with --sdxl")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--more", action="store_true", help="draw with a LoRA, and another size, too")
    parser.add_argument("--mapped", action="store_true", help="leave the weights in the checkpoint's file")
    parser.add_argument("--weights", type=Path, help="a folder that benchmarks.peers.weights has written")
    parser.add_argument("--limit-gb", type=float, help="memory that each process may take, in gigabytes of 2^30 bytes")
    parser.add_argument("--limit-by", choices=KINDS, default=KINDS[0], help="kind of limit; see benchmarks/memory_limit.py")
    parser.add_argument("--work", type=Path, default=Path.cwd(), help="folder for temporary files; it must lie on a disk")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.network = "SDXL" if options.sdxl else "SD1.5"
    options.size = options.size or (1024 if options.sdxl else 512)
    return options


if __name__ == "__main__":
    main()
