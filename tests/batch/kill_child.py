"""The process that test_kill kills: it runs a job with a stand-in.

    python -m tests.batch.kill_child JOBS OUT CHECKPOINT [WORKERS | ADDRESS]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ov_backend.batch.api import Batch, Options
from tests.batch.standin import StandIn

if __name__ == "__main__":
    jobs, out, checkpoint = map(Path, sys.argv[1:4])
    where = sys.argv[4] if len(sys.argv) > 4 else None
    on: dict[str, Any] = {} if where is None else {"workers": int(where)} if where.isdecimal() else {"ray": where}
    options = Options(checkpoint=checkpoint, precision="f32", contact_sheet=False, **on)
    Batch(jobs, out, options).run(renderer=StandIn(seconds=0.02 if on else 0.002))
