"""``python -m benchmarks``: run every benchmark in turn, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    failed = []
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"== {path.stem}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{path.stem}", *sys.argv[1:]]).returncode:
            failed.append(path.stem)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
