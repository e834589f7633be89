"""``python -m ov_backend serve``: a page to generate in."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ov_backend.errors import OVBackendError


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Serve a page to generate in, with the panel and its live status."
    parser = commands.add_parser("serve", help=text, description=text)
    parser.set_defaults(run=run)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="a Stable Diffusion 1, 2 or XL .safetensors file")
    parser.add_argument("--random", action="store_true", help="a small checkpoint of random weights")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at, default: this machine only")
    parser.add_argument("--port", type=int, default=7865, help="default 7865")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="FOLDER", help="for the pictures, default: out")
    parser.add_argument("--cache-dir", metavar="FOLDER", help="where captured graphs are kept")
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="ask for this login")


def run(options: argparse.Namespace) -> int:
    """Serve until interrupted; the exit code is 0."""
    try:
        from ov_backend.standalone import serve
    except ImportError as error:
        raise OVBackendError(f"The page needs more packages ({error}): pip install 'ov-backend[demo]'") from error
    wanted = serve.Options(**{name: value for name, value in vars(options).items() if name != "run"})
    return serve.serve(wanted, lambda url: print(f"Open {url}", flush=True))
