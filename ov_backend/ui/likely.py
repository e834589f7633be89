"""The generation that is expected next, in either host: the last one, or the last one like what the page shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ov_backend.ui.choices import Choices
from ov_backend.ui.controller import prepared
from ov_backend.ui.requested_shape import RequestedShape, find_run
from ov_backend.ui.snapshot import Job


class Likely(NamedTuple):
    """Size, batch, guidance and choices of a generation, and the remembered calls of its networks."""

    size: str
    batch: int
    guided: bool
    choices: Choices
    calls: Sequence[Any]

    def ready(self) -> Job:
        """The job to show once everything is prepared."""
        return Job("precompile", state="done", result=prepared([self.size], self.batch, self.choices, self.guided))


def likely(runs: Sequence[Any], asked: RequestedShape | None = None) -> Likely | None:
    """What the last of these runs was, or the last one like ``asked``; None if there was none."""
    run = find_run(runs, asked)
    if run is None:
        return None
    fields = json.loads(run.request)
    choices = Choices.from_infotext(fields["choices"])
    return Likely(str(fields["size"]), int(fields["batch"]), bool(fields["guided"]), choices, run.calls)
