"""The process that test_kill kills: it runs a job with a stand-in.

    python -m tests.batch.kill_child JOBS OUT CHECKPOINT [WORKERS]
"""

from __future__ import annotations

import sys
from pathlib import Path

from ov_backend.batch.api import Batch, Options
from tests.batch.standin import StandIn

if __name__ == "__main__":
    jobs, out, checkpoint = map(Path, sys.argv[1:4])
    workers = int(sys.argv[4]) if len(sys.argv) > 4 else None
    options = Options(checkpoint=checkpoint, precision="f32", contact_sheet=False, workers=workers)
    Batch(jobs, out, options).run(paints=StandIn(seconds=0.002 if workers is None else 0.02))
