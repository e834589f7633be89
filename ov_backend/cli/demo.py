"""``python -m ov_backend demo``: one prompt by PyTorch and by OpenVINO, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_backend.cli.arguments import add_command, print_json, size
from ov_backend.errors import OVBackendError
from ov_backend.settings import Settings

if TYPE_CHECKING:
    from ov_backend.standalone.demo import Result

PROMPT = "a red apple with a green leaf"


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Generate one picture with PyTorch and with OpenVINO and compare them."
    parser = add_command(commands, "demo", run, text)
    parser.add_argument("--prompt", default=PROMPT, help=f"default: {PROMPT}")
    parser.add_argument("--negative", default="", help="what should not be in the picture")
    parser.add_argument("--steps", type=int, default=20, help="sampling steps, default 20")
    parser.add_argument("--size", type=size, metavar="WxH or N", help="pixels, default: what the checkpoint was made for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guidance", type=float, default=7.0, help="guidance scale, default 7")
    parser.add_argument("--sampler", default="dpmpp-2m", help="dpmpp-2m (default), euler, euler-a, ddim or unipc")
    parser.add_argument("--device", help="an OpenVINO device, default CPU; see the command devices")
    parser.add_argument("--precision", default="auto", help="auto (what the device does best), f32, bf16 or f16")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a Stable Diffusion 1, 2 or XL .safetensors file")
    parser.add_argument("--random", action="store_true", help="a small checkpoint of random weights")
    parser.add_argument("--out", type=Path, default=Path("demo.png"), metavar="PNG", help="default: demo.png")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="where captured graphs are kept")


def run(options: argparse.Namespace) -> int:
    """Make both pictures; the exit code is 0."""
    device = {"device": options.device} if options.device is not None else {}
    settings = Settings(precision=options.precision, cache_dir=options.cache_dir, **device)
    names = ("prompt", "negative", "steps", "size", "seed", "guidance", "sampler", "checkpoint", "random", "out")
    try:
        from ov_backend.standalone import demo
    except ImportError as error:
        raise OVBackendError(f"The demo needs more packages ({error}): pip install 'ov-backend[demo]'") from error
    result = demo.run(demo.Request(**{name: getattr(options, name) for name in names}), settings)
    print_json(result.as_dict()) if options.json else print(_table(result))
    return 0


def _table(result: Result) -> str:
    rows = [("seconds", "PyTorch", "OpenVINO", "speed-up")]
    for label, name in (("a step", "step"), ("text", "text"), ("VAE", "vae"), ("picture", "total")):
        ours, theirs = getattr(result.openvino, name), getattr(result.pytorch, name)
        rows.append((label, f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / max(ours, 1e-9):.1f}x"))
    lines = [f"{a:10}{b:>10}{c:>10}{d:>10}" for a, b, c, d in rows]
    hits = sum(values["graph_hits"] for values in result.networks.values())
    prepared = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in result.prepared.items())
    fallbacks = "; ".join(f"{name}: {reason}" for name, reasons in result.fallbacks.items() for reason in reasons)
    lines += [
        "",
        f"Once         {prepared} s ({hits} graphs were on disk)",
        f"Difference   largest {result.difference['largest']} of 255, mean {result.difference['mean']:.3f}",
        f"Fallbacks    {fallbacks or 'none'}",
        f"Computed     on {result.device} in {result.precision}, {result.size[0]}x{result.size[1]}, {result.steps} steps",
        f"Checkpoint   {result.checkpoint}",
        f"Pictures     {result.out}",
    ]
    return "\n".join(lines)
