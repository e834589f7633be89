"""``python -m ov_backend demo``: one picture by PyTorch and by OpenVINO, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ov_backend.cli import arguments, picture
from ov_backend.core import interrupts
from ov_backend.core.amounts import counted
from ov_backend.core.errors import SettingsError
from ov_backend.ui.snapshot import STAGES, network_label

PROMPT = "a red apple with a green leaf"
#: What the stages of preparation are for the user.
_STAGES = {
    **{name: label.lower() for name, label in STAGES.items()},
    "read": "reading code",
    "load": "reading graphs",
    "bind": "binding weights",
}


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Generate one picture with PyTorch and with OpenVINO and compare them."
    parser = arguments.add_command(commands, "demo", run, text)
    picture.add(parser, 0, PROMPT)
    parser.add_argument("--out", type=arguments.file, default=Path("demo.png"), metavar="PNG", help="file, default: demo.png")


def run(options: argparse.Namespace) -> int:
    """Generate both pictures; the exit code is 0."""
    settings = arguments.settings_of(options)
    arguments.check_uncalibrated(settings)
    arguments.check_file(options.out, "--out")
    if options.out.suffix.lower() != ".png":
        raise SettingsError(f"--out is {options.out}; it must be the name of a .png file.")
    wanted = picture.read(options, PROMPT)
    arguments.check_device(settings)
    from ov_backend.hosts.standalone import demo

    with interrupts.work():
        result = demo.run(wanted.checkpoint, wanted.parameters, wanted.loras, options.out, settings)
    arguments.print_json(result) if options.json else print(_table(result))
    return 0


def _table(result: dict[str, Any]) -> str:
    pytorch, openvino, (width, height) = result["pytorch"], result["openvino"], result["size"]
    lines = [f"{'seconds':10}{'PyTorch':>10}{'OpenVINO':>10}{'speed-up':>10}"]
    for label, name in (("a step", "step"), ("picture", "total")):
        lines.append(f"{label:10}{pytorch[name]:>10.3f}{openvino[name]:>10.3f}{result['speedup'][name]:>9.1f}x")
    hits = sum(values["graph_hits"] for values in result["networks"].values())
    prepared = ", ".join(f"{_STAGES.get(stage, stage)} {seconds:.2f} s" for stage, seconds in result["prepared"].items())
    fallbacks = [f"{network_label(name)}: {reason}" for name, reasons in result["fallbacks"].items() for reason in reasons]
    computed = f"on {result['device']} in {result['precision']}, {width}x{height}, {counted(result['steps'], 'step')}"
    largest, mean, psnr = (result["difference"][name] for name in ("largest", "mean", "psnr_db"))
    similarity = f"PSNR {psnr:.1f} dB" if psnr is not None else "the pictures are equal"
    lines += [
        "",
        f"Once         {prepared} ({counted(hits, 'graph')} found on disk)",
        f"Difference   largest {largest} of 255, mean {mean:.3f}, {similarity}",
        f"Fallbacks    {'; '.join(fallbacks) or 'none'}",
        f"Computed     {computed}, guidance {result['guidance']:g}, seed {result['seed']}",
        f"Checkpoint   {result['checkpoint']}",
        f"Pictures     {result['out']}",
        *([result["other_programs"]] if result["other_programs"] else []),
    ]
    return "\n".join(lines)
