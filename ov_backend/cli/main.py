"""``python -m ov_backend COMMAND``: arguments in, text or JSON out. What the commands do is done elsewhere.

Exit codes: 0 done, 1 something to see to was found (``cache verify``, ``precompile``), 2 bad input (one sentence on stderr), 130
interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ov_backend.cli import precompile as precompile_command
from ov_backend.errors import OVBackendError

if TYPE_CHECKING:
    from ov_backend.standalone.demo import Result

PROMPT = "a red apple with a green leaf"


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    try:
        return int(given.run(given))
    except OVBackendError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m ov_backend", description="Stable Diffusion on OpenVINO.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in _COMMANDS:
        add(commands)
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    """A subcommand with ``--json``; its function takes the arguments and returns the exit code."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    return parser


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


# ---------------------------------------------------------------- demo


def _add_demo(commands: Any) -> None:
    text = "Generate one picture with PyTorch and with OpenVINO and hold them against each other."
    parser = _command(commands, "demo", _demo, text)
    parser.add_argument("--prompt", default=PROMPT, help=f"default: {PROMPT}")
    parser.add_argument("--negative", default="", help="what should not be in the picture")
    parser.add_argument("--steps", type=int, default=20, help="sampling steps, default 20")
    parser.add_argument("--size", type=_size, metavar="WxH or N", help="pixels, default: what the checkpoint was made for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guidance", type=float, default=7.0, help="guidance scale, default 7")
    parser.add_argument("--sampler", default="dpmpp-2m", help="dpmpp-2m (default), euler, euler-a, ddim or unipc")
    parser.add_argument("--device", help="an OpenVINO device, default CPU; see the command devices")
    parser.add_argument("--precision", default="auto", help="auto (what the device does best), f32, bf16 or f16")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a Stable Diffusion 1, 2 or XL .safetensors file")
    parser.add_argument("--random", action="store_true", help="a small checkpoint of random weights")
    parser.add_argument("--out", type=Path, default=Path("demo.png"), metavar="PNG", help="default: demo.png")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="where captured graphs are kept")


def _demo(given: argparse.Namespace) -> int:
    from ov_backend.settings import Settings

    device = {"device": given.device} if given.device is not None else {}
    settings = Settings(precision=given.precision, cache_dir=given.cache_dir, **device)
    names = ("prompt", "negative", "steps", "size", "seed", "guidance", "sampler", "checkpoint", "random", "out")
    try:
        from ov_backend.standalone import demo
    except ImportError as error:
        raise OVBackendError(f"The demo needs more packages ({error}): pip install 'ov-backend[demo]'") from error
    result = demo.run(demo.Request(**{name: getattr(given, name) for name in names}), settings)
    _print_json(result.as_dict()) if given.json else print(_table(result))
    return 0


def _size(text: str) -> tuple[int, int]:
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(side.strip().isdecimal() for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 512x768 or 512")
    return int(sides[0]), int(sides[-1])


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


# ---------------------------------------------------------------- devices


def _add_devices(commands: Any) -> None:
    _command(commands, "devices", _devices, "List the devices that OpenVINO finds here.")


def _devices(given: argparse.Namespace) -> int:
    from ov_backend.devices import list_devices

    found = [device.as_dict() for device in list_devices()]
    if given.json:
        _print_json(found)
    for device in [] if given.json else found:
        others = ", ".join(device["precisions"])
        print(f"{device['name']:8}{device['full_name']} ({others}; by default {device['default_precision']})")
    return 0


# ---------------------------------------------------------------- cache


def _add_cache(commands: Any) -> None:
    parser = _command(commands, "cache", _cache, "Look at the captured graphs on disk, check them, or remove them.")
    parser.add_argument("action", choices=("info", "list", "verify", "clear"))
    parser.add_argument("--cache-dir", metavar="FOLDER", help="another folder than the default one")


def _cache(given: argparse.Namespace) -> int:
    from ov_backend import compiler as graphs
    from ov_backend.settings import Settings

    store = graphs.open_store(Settings(cache_dir=given.cache_dir))
    if given.action == "clear":
        removed = store.clear()
        _print_json({"folder": str(store.folder), "removed": removed}) if given.json else print(
            f"{removed} graphs removed from {store.folder}."
        )
        return 0
    entries: list[dict[str, Any]] = [{"key": e.key, "bytes": e.bytes, "used": e.used} for e in store.entries()]
    bad = store.verify() if given.action == "verify" else {}
    info = {"folder": str(store.folder), "graphs": len(entries), "bytes": store.bytes, "bound": store.max_bytes}
    if given.json:
        _print_json({**info, **({"entries": entries} if given.action == "list" else {}), **({"damaged": bad} if bad else {})})
    elif given.action == "list":
        for entry in entries:
            print(f"{entry['key']}  {entry['bytes'] / 1e6:8.2f} MB")
    else:
        print(f"{len(entries)} graphs, {store.bytes / 1e6:.1f} of at most {store.max_bytes / 1e6:.0f} MB, in {store.folder}")
        for key, reason in bad.items():
            print(f"{key} is damaged: {reason}")
    return 1 if bad else 0


# ---------------------------------------------------------------- serve


def _add_serve(commands: Any) -> None:
    text = "Serve a page to generate in, with the panel and its live status."
    parser = commands.add_parser("serve", help=text, description=text)
    parser.set_defaults(run=_serve)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a Stable Diffusion 1, 2 or XL .safetensors file")
    parser.add_argument("--random", action="store_true", help="a small checkpoint of random weights")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at, default: this machine only")
    parser.add_argument("--port", type=int, default=7865, help="default 7865")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="FOLDER", help="for the pictures, default: out")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="where captured graphs are kept")
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this login")


def _serve(given: argparse.Namespace) -> int:
    try:
        from ov_backend.standalone import serve
    except ImportError as error:
        raise OVBackendError(f"The page needs more packages ({error}): pip install 'ov-backend[demo]'") from error
    options = serve.Options(**{name: value for name, value in vars(given).items() if name != "run"})
    return serve.serve(options, lambda url: print(f"Open {url}", flush=True))


# ---------------------------------------------------------------- report


def _add_report(commands: Any) -> None:
    text = "Report how much of a checkpoint's networks, or of a module, runs in OpenVINO."
    parser = _command(commands, "report", _report, text)
    what = "a checkpoint file, or module:callable that returns (model, inputs); inputs are a tuple, or a dict of keywords"
    parser.add_argument("target", metavar="CHECKPOINT|module:callable", help=what)
    parser.add_argument("--size", type=int, default=512, help="width and height of a checkpoint's picture, default 512")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the partitions into this file")


def _report(given: argparse.Namespace) -> int:
    from ov_backend.cli import report as report_command

    return report_command.run(given)


_COMMANDS: tuple[Callable[[Any], None], ...] = (
    _add_demo,
    _add_devices,
    _add_cache,
    precompile_command.add,
    _add_serve,
    _add_report,
)

if __name__ == "__main__":
    sys.exit(main())
