"""``python -m ov_backend serve``: a web page to generate pictures in."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from ov_backend.cli import arguments
from ov_backend.core import interrupts
from ov_backend.core.errors import SettingsError
from ov_backend.core.settings import Settings
from ov_backend.hosts.standalone.checkpoint_files import checked, checkpoints_of
from ov_backend.hosts.standalone.lora_tags import lora_folders
from ov_backend.hosts.standalone.serve_options import Options, listen, login
from ov_backend.hosts.standalone.upscaler_files import upscaler_folder
from ov_backend.ui.access import MalformedHost, host_name


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Serve a web page to generate pictures in, with the panel and its live status."
    parser = arguments.add_command(commands, "serve", run, text, with_json=False)
    arguments.add_checkpoint(parser, "; of a folder of them, the page lets you choose")
    parser.add_argument("--host", default=Options.host, help="address to listen at, default: this machine only")
    what = f"port to listen at, default {Options.port}; 0 is any free one"
    parser.add_argument("--port", type=arguments.whole_number(0, 65535, Options.port), default=Options.port, help=what)
    what = "folder of the pictures, default: out"
    parser.add_argument("--out", type=arguments.folder, default=Path("out"), metavar="FOLDER", help=what)
    arguments.add_lora_dir(parser)
    what = "folder of the upscalers for hires fix, default: the folder upscaler beside the checkpoint"
    parser.add_argument("--upscaler-dir", type=arguments.folder, metavar="FOLDER", help=what)
    arguments.add_device_options(parser, low_memory=False)
    arguments.add_cache_dir(parser)
    what = "a name of this machine that others open the page under; may be given several times (addresses need none)"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=what)
    what = "prepare nothing before it is needed, neither at the start nor when the page's size changes"
    parser.add_argument("--no-prepare", dest="prepare", action="store_false", help=what)
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this login")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; the exit code is 0."""
    options.cache_dir = arguments.cache_dir(options)
    listen(options.host, options.port).close()
    arguments.check_folder(options.out, "--out")
    for name in options.allow_host:
        if not _is_name(name):
            raise SettingsError(f"--allow-host is {name!r}; it must be a name such as pc.example.org or *.example.org.")
    options.allow_host = tuple(options.allow_host)
    login(options.auth)
    path = arguments.one_checkpoint(options)
    options.checkpoints = checkpoints_of(path)
    if options.checkpoints:
        path = options.checkpoints[0]
    path, _ = checked(path)
    lora_folders(Path(), options.lora_dir)
    upscaler_folder(Path(), options.upscaler_dir)
    settings = Settings(precision=options.precision, **({"device": options.device} if options.device is not None else {}))
    arguments.check_device(settings)
    names = [each.name for each in dataclasses.fields(Options)]
    serve_options = Options(**{**{name: getattr(options, name) for name in names}, "checkpoint": path, "device": settings.device})
    print(f"Loading {path}; this takes some seconds.", flush=True)
    from ov_backend.hosts.standalone import serve

    with interrupts.work():
        return serve.serve(serve_options, lambda url: _announce(url, options.out))


def _announce(url: str, out: Path) -> None:
    print(f"Pictures are written to {out.resolve()}. Ctrl+C ends the server.\nOpen {url}", flush=True)


def _is_name(text: str) -> bool:
    try:
        return bool(host_name(text.removeprefix("*.")))
    except MalformedHost:
        return False
