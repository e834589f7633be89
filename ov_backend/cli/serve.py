"""``python -m ov_backend serve``: a web page to generate pictures in."""

from __future__ import annotations

import argparse
import errno
import socket
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
from ov_backend.errors import SettingsError, short_repr
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
    what = "do not prepare at the start what was generated last"
    parser.add_argument("--no-prepare", dest="prepare", action="store_false", help=what)
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this login")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; the exit code is 0."""
    options.cache_dir = cache_dir(options)
    _check_address(options.host, options.port)
    with demo_packages("The page"):
        from ov_backend.standalone import serve
    check_folder(options.out, "--out")
    for name in options.allow_host:
        if not _is_name(name):
            raise SettingsError(f"--allow-host is {name!r}; it must be a name such as pc.example.org or *.example.org.")
    options.allow_host = tuple(options.allow_host)
    serve_options = serve.Options(**{name: value for name, value in vars(options).items() if name != "run"})
    with interrupts.work():
        return serve.serve(serve_options, lambda url: print(f"Open {url}", flush=True))


def _check_address(host: str, port: int) -> None:
    """Check that this machine can be listened to at an address, before packages are imported.

    Raises:
        SettingsError: nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = "give 127.0.0.1 for this machine only, 0.0.0.0 for every address that it has, or one of them"
    try:
        socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # a ValueError for what is no name of a host
        raise SettingsError(f"--host is {short_repr(host)}, which is no address and no name of a machine; {own}.") from error
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise SettingsError(_address_problem(host, port, error, own)) from error


def _address_problem(host: str, port: int, error: OSError, own: str) -> str:
    """Why nobody can listen at an address; ``own`` says which addresses are this machine's."""
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host is {host!r}, which is no address of this machine; {own}."
    reasons = {errno.EADDRINUSE: "something else listens at", errno.EACCES: "this user may not listen at"}
    if error.errno not in reasons:
        return f"--host is {host!r}, where nobody can listen ({error.strerror or error}); {own}."
    reason = reasons[error.errno]
    return f"--port is {port}, which {reason} on {host}; give another, or 0 for any free one."


def _is_name(text: str) -> bool:
    try:
        return bool(host_name(text.removeprefix("*.")))
    except MalformedHost:
        return False
