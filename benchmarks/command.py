"""What the command lines of benchmarks share: a parser, the results of a process of its own, and how a run is shown and kept."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, Run


def parser_of(description: str | None, tiny: str) -> argparse.ArgumentParser:
    """A parser with ``--json``, ``--out`` and ``--tiny``; the run begins when it is made.

    Args:
        description: the docstring of the benchmark.
        tiny: what is small with ``--tiny``.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help=f"{tiny}, to test the benchmark")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON, instead of the table")
    parser.add_argument("--out", type=Path, help="folder of the run's file; default: benchmarks/results, with --tiny none")
    parser.set_defaults(run=Run.begins(Path(sys.argv[0]).stem.removeprefix("bench_"), sys.argv[1:]))
    return parser


def run_child(benchmark: str, options: argparse.Namespace, *arguments: object) -> Any:
    """What a benchmark writes in a process of its own (:func:`write_result`); it is ``--tiny`` where this one is."""
    command = [sys.executable, "-m", benchmark, *map(str, arguments), *(["--tiny"] if options.tiny else [])]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(process.stdout.splitlines()[-1])


def write_line(text: object) -> None:
    """Write a line at once, so that a process that reads it need not wait."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_result(result: Any) -> None:
    """Write a result as the last line of a process."""
    write_line(json.dumps(result))


def show(
    results: dict[str, Any], options: argparse.Namespace, report: Callable[[Any, argparse.Namespace], None], variant: str = ""
) -> None:
    """Write the run's file, and results as JSON if that was asked for, else by ``report(results, options)``.

    Args:
        results: the figures; the name of each ends in its unit (:data:`benchmarks.results.UNITS`).
        options: of the parser above.
        report: prints them.
        variant: a word for the file's name, where options measure something else.
    """
    keep(results, options, variant)
    if options.json:
        write_line(json.dumps(results, indent=1))
    else:
        report(results, options)


def keep(results: dict[str, Any], options: argparse.Namespace, variant: str = "") -> None:
    """Write the run's file; small networks have none unless a folder is given."""
    run: Run = options.run.ends(results, variant)
    if options.out or not options.tiny:
        sys.stderr.write(f"written: {run.write(options.out or RESULTS)}\n")
