"""``python -m ov_backend report``: how much of a checkpoint's networks, or of any module, runs in OpenVINO."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ov_backend.cli.arguments import add_command, check_folder, file, size
from ov_backend.core import interrupts
from ov_backend.core.errors import SettingsError


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Report how much of a checkpoint's networks, or of a module, runs in OpenVINO."
    parser = add_command(commands, "report", run, text)
    what = "a checkpoint file, or module:callable that returns (model, inputs), inputs being a tuple or a dict of keywords"
    parser.add_argument("target", metavar="CHECKPOINT|module:callable", help=what)
    what = "pixels of a checkpoint's picture, default 512x512"
    parser.add_argument("--size", type=size, default=(512, 512), metavar="WxH or N", help=what)
    parser.add_argument("--svg", type=file, metavar="FILE", help="also draw the partitions into this file")


def run(options: argparse.Namespace) -> int:
    """Print the report; the exit code is 0."""
    if options.svg is not None:
        _check_file(options.svg)
    from ov_backend.cli.report_target import of_target

    with interrupts.work():
        report = of_target(options.target, options.size)
        if options.svg is not None:
            options.svg.write_text(report.svg(), encoding="utf-8")
    sys.stdout.write((report.json() if options.json else report.text()) + "\n")
    return 0


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise SettingsError(f"--svg is {str(path)!r}, which is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise SettingsError(f"--svg is {str(path)!r}, and there is no folder {str(path.parent)!r}; make it or give another.")
    check_folder(path.parent, "--svg's folder")
