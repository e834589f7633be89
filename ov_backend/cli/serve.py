"""``python -m ov_backend serve``: a web page to generate pictures in."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ov_backend import interrupts
from ov_backend.cli.arguments import (
    CHECKPOINT_HELP,
    add_cache_dir,
    add_command,
    cache_dir,
    check_folder,
    demo_packages,
    folder,
    whole_number,
)
from ov_backend.errors import SettingsError
from ov_backend.standalone.address import listen
from ov_backend.standalone.request import check_checkpoint
from ov_backend.standalone.serve_options import Options, login
from ov_backend.ui.hosts import MalformedHost, host_name


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Serve a web page to generate pictures in, with the panel and its live status."
    parser = add_command(commands, "serve", run, text, with_json=False)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help=CHECKPOINT_HELP)
    parser.add_argument("--random", action="store_true", help="use a small checkpoint of random weights")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at, default: this machine only")
    what = "port to listen at, default 7865; 0 is any free one"
    parser.add_argument("--port", type=whole_number(0, 65535, 7865), default=7865, help=what)
    parser.add_argument("--out", type=folder, default=Path("out"), metavar="FOLDER", help="folder of the pictures, default: out")
    add_cache_dir(parser)
    what = "a name of this machine that others open the page under; may be given several times (addresses need none)"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=what)
    what = "prepare nothing before it is needed, neither at the start nor when the page's size changes"
    parser.add_argument("--no-prepare", dest="prepare", action="store_false", help=what)
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this login")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; the exit code is 0."""
    options.cache_dir = cache_dir(options)
    listen(options.host, options.port).close()
    check_folder(options.out, "--out")
    for name in options.allow_host:
        if not _is_name(name):
            raise SettingsError(f"--allow-host is {name!r}; it must be a name such as pc.example.org or *.example.org.")
    options.allow_host = tuple(options.allow_host)
    login(options.auth)
    check_checkpoint(options.checkpoint, options.random)
    serve_options = Options(**{name: value for name, value in vars(options).items() if name != "run"})
    with demo_packages("The page"):
        from ov_backend.standalone import serve
    with interrupts.work():
        return serve.serve(serve_options, lambda url: print(f"Open {url}", flush=True))


def _is_name(text: str) -> bool:
    try:
        return bool(host_name(text.removeprefix("*.")))
    except MalformedHost:
        return False
