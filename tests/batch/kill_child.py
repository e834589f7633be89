"""The process that test_kill kills: ``python -m tests.batch.kill_child JOBS OUT CHECKPOINT`` runs a job with a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path

from ov_backend.batch.api import Batch, Options
from tests.batch.standin import StandIn

if __name__ == "__main__":
    jobs, out, checkpoint = map(Path, sys.argv[1:])
    batch = Batch(jobs, out, Options(checkpoint=checkpoint, precision="f32", contact_sheet=False))
    batch.run(paints=StandIn(seconds=0.002))
