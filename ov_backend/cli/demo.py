"""``python -m ov_backend demo``: one picture by PyTorch and by OpenVINO, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.cli import arguments
from ov_backend.core import interrupts
from ov_backend.core.errors import SettingsError
from ov_backend.hosts.standalone.request import Request
from ov_backend.torch_compile.report.amounts import counted
from ov_backend.ui.snapshot import STAGES, network_label

if TYPE_CHECKING:
    from ov_backend.hosts.standalone.demo import Result

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
    arguments.add_prompt(parser, PROMPT)
    parser.add_argument("--negative", default="", help="what should not be in the picture")
    arguments.add_picture(parser, 0)
    what = f"{arguments.CHECKPOINT_HELP}; default: the project's own"
    parser.add_argument("--checkpoint", type=arguments.file, metavar="FILE", help=what)
    arguments.add_lora_dir(parser)
    parser.add_argument("--random", action="store_true", help="use a small checkpoint of random weights")
    parser.add_argument("--out", type=arguments.file, default=Path("demo.png"), metavar="PNG", help="file, default: demo.png")
    arguments.add_cache_dir(parser)


def run(options: argparse.Namespace) -> int:
    """Generate both pictures; the exit code is 0."""
    settings = arguments.settings_of(options)
    if settings.precision == "int8":
        offered = ", ".join(arguments.UNCALIBRATED)
        raise SettingsError(
            f"--precision int8 is learnt from a first picture, and the demo makes only one. Give one of {offered}; for"
            " int8 make pictures in the WebUI, in the page of 'serve', or with ov_backend.accelerate."
        )
    names = ("negative", "steps", "size", "seed", "guidance", "sampler", "checkpoint", "random", "out", "lora_dir")
    given = {name: getattr(options, name) for name in names}
    request = Request(prompt=arguments.one_prompt(options, PROMPT), **given)
    arguments.check_device(settings)
    with arguments.demo_packages("The demo"):
        from ov_backend.hosts.standalone import demo
    with interrupts.work():
        result = demo.run(request, settings)
    arguments.print_json(result.as_dict()) if options.json else print(_table(result))
    return 0


def _table(result: Result) -> str:
    rows = [("seconds", "PyTorch", "OpenVINO", "speed-up")]
    for label, name in (("a step", "step"), ("text", "text"), ("VAE", "vae"), ("picture", "total")):
        openvino, pytorch = getattr(result.openvino, name), getattr(result.pytorch, name)
        rows.append((label, f"{pytorch:.3f}", f"{openvino:.3f}", f"{pytorch / max(openvino, 1e-9):.1f}x"))
    lines = [f"{a:10}{b:>10}{c:>10}{d:>10}" for a, b, c, d in rows]
    hits = sum(values["graph_hits"] for values in result.networks.values())
    prepared = ", ".join(f"{_STAGES.get(stage, stage)} {seconds:.2f} s" for stage, seconds in result.prepared.items())
    fallbacks = "; ".join(f"{network_label(name)}: {reason}" for name, reasons in result.fallbacks.items() for reason in reasons)
    computed = f"on {result.device} in {result.precision}, {result.size[0]}x{result.size[1]}, {counted(result.steps, 'step')}"
    computed += f", guidance {result.guidance:g}, seed {result.seed}"
    psnr = result.difference["psnr_db"]
    similarity = f"PSNR {psnr:.1f} dB" if psnr is not None else "the pictures are equal"
    lines += [
        "",
        f"Once         {prepared} ({counted(hits, 'graph')} found on disk)",
        f"Difference   largest {result.difference['largest']} of 255, mean {result.difference['mean']:.3f}, {similarity}",
        f"Fallbacks    {fallbacks or 'none'}",
        f"Computed     {computed}",
        f"Checkpoint   {result.checkpoint}",
        f"Pictures     {result.out}",
        *([result.other_programs] if result.other_programs else []),
    ]
    return "\n".join(lines)
