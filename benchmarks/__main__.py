"""``python -m benchmarks``: run every benchmark in turn, each in a separate process; with a name first, only that one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.command import write_line

if __name__ == "__main__":
    names = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    arguments = sys.argv[1:]
    if arguments and not arguments[0].startswith("-"):
        if arguments[0] not in names:
            sys.exit(f"There is no benchmark {arguments[0]!r}; there are {', '.join(names)}.")
        names = [arguments.pop(0)]
    failed = []
    for name in names:
        write_line(f"== {name}")
        if subprocess.run([sys.executable, "-m", f"benchmarks.bench_{name}", *arguments]).returncode:
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
