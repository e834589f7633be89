"""Runs the short suite in one environment after the other.

    python -m tests.matrix [TORCH/PYTHON ...] [--list] [--folder FOLDER] [--keep]

Each cell installs torch and OpenVINO into an environment of its own, runs the tests and removes the environment. Builds of torch
for CUDA take some 5 GB, of which one is there at a time. The exit code is 1 if a test has failed in any cell, or if a cell could
not be tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.matrix.cells import CELLS, REQUIREMENTS, TESTS, WITHOUT_DEPENDENCIES, Cell

ROOT = Path(__file__).parents[2]
#: Seconds after which a cell's tests are ended.
LIMIT_S = 1200
#: Bytes that must be free for an environment.
FREE_BYTES = 12 << 30


@dataclass(frozen=True)
class Result:
    """What became of a cell: counts of tests, seconds of the tests, or why there are none."""

    cell: Cell
    version: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def good(self) -> bool:
        """Whether tests ran and none failed."""
        return not self.problem and not self.failed and self.passed > 0

    def row(self) -> str:
        """A row of a Markdown table."""
        outcome = self.problem or f"{self.passed} | {self.failed} | {self.skipped} | {self.seconds:.0f} s"
        return f"| {self.version or self.cell.torch} | {self.cell.python} | {outcome} |"


def interpreter(version: str) -> Path | None:
    """A Python of this minor version, from pyenv or from the path."""
    homes = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}"))
    found = str(homes[-1]) if homes else shutil.which(f"python{version}")
    return Path(found) if found else None


def run(cell: Cell, folder: Path, keep: bool) -> Result:
    """Make one environment, run the tests in it, and remove it."""
    base = interpreter(cell.python)
    if base is None:
        return Result(cell, problem=f"there is no Python {cell.python} on this machine")
    if shutil.disk_usage(folder.parent).free < FREE_BYTES:
        return Result(cell, problem=f"less than {FREE_BYTES >> 30} GB of the disk are free")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        problem = _install(cell, base, folder)
        return Result(cell, problem=problem) if problem else _test(cell, folder)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _install(cell: Cell, base: Path, folder: Path) -> str:
    """Install a cell's packages; what pip said last if that failed, else ""."""
    pip = [str(_python(folder)), "-m", "pip", "install", "--quiet", "--no-compile", "--no-cache-dir"]
    commands = [
        [str(base), "-m", "venv", str(folder)],
        [*pip, f"torch=={cell.torch}", *cell.also, *REQUIREMENTS, "--editable", str(ROOT)],
        [*pip, "--no-deps", *WITHOUT_DEPENDENCIES],
    ]
    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            return f"not installed: {said[-1] if said else done.returncode}"
    return ""


def _test(cell: Cell, folder: Path) -> Result:
    report = folder / "report.xml"
    version = _output([str(_python(folder)), "-c", "import torch; print(torch.__version__)"])
    command = [str(_python(folder)), "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Result(cell, version, problem=f"the tests did not end within {LIMIT_S} s")
    seconds = time.monotonic() - start
    if not report.exists():
        return Result(cell, version, problem=f"the tests ended with {done.returncode} before their report")
    return counted(cell, version, report, seconds)


def counted(cell: Cell, version: str, report: Path, seconds: float) -> Result:
    """The counts in a report of pytest's."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return Result(cell, version, total - failed - skipped, failed, skipped, seconds)


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def chosen(names: Sequence[str]) -> list[Cell]:
    """The cells of the table by names such as ``2.13.0/3.12``, ``2.13.0`` or ``/3.12``; all of them without names.

    Raises:
        SystemExit: a name fits no cell.
    """
    found = []
    for name in names:
        torch, _, python = name.partition("/")
        fitting = [cell for cell in CELLS if torch in ("", cell.torch) and python in ("", cell.python)]
        if not fitting:
            raise SystemExit(f"{name!r} is no cell of the matrix; --list shows all.")
        found += fitting
    return found if names else list(CELLS)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="TORCH/PYTHON")
    parser.add_argument("--list", action="store_true", help="show the cells and do nothing")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-matrix", help="the environment is made there")
    parser.add_argument("--keep", action="store_true", help="keep the last environment")
    given = parser.parse_args()
    cells = chosen(given.cells)
    if given.list:
        sys.stdout.write("".join(f"{cell}\n" for cell in cells))
        return 0
    rows = ["| torch | Python | passed | failed | skipped | time |", "|---|---|---|---|---|---|"]
    results = []
    for cell in cells:
        sys.stdout.write(f"== {cell}\n")
        sys.stdout.flush()
        results.append(run(cell, given.folder.absolute(), given.keep))
        sys.stdout.write(f"{results[-1].row()}\n")
    sys.stdout.write("\n".join([*rows, *(result.row() for result in results)]) + "\n")
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
