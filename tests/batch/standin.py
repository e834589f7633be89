"""What stands in for the networks in tests of everything around them: pictures of one colour, and failures at will."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from PIL import Image

from ov_backend.batch.executor import RenderedRow
from ov_backend.batch.row import Row


@dataclass
class StandIn:
    """Makes pictures whose colour is the seed.

    Attributes:
        failures: how often a row fails before it succeeds, by its number.
        interrupt_at: the number of pictures after which the user presses Ctrl-C; -1 is never.
        seconds: that a row takes.
        deadly: the numbers of rows that end their process.
        answered: by what each row is.
        rendered: the numbers of the rows, in order, with failed tries.
    """

    failures: dict[int, int] = field(default_factory=dict)
    interrupt_at: int = -1
    seconds: float = 0.0
    deadly: tuple[int, ...] = ()
    answered: str = "OpenVINO"
    rendered: list[int] = field(default_factory=list)

    def render(self, row: Row) -> RenderedRow:
        """Make the pictures of a row."""
        if len(self.rendered) == self.interrupt_at:
            raise KeyboardInterrupt
        self.rendered.append(row.number)
        if row.number in self.deadly:
            os._exit(1)
        if self.failures.get(row.number, 0):
            self.failures[row.number] -= 1
            raise RuntimeError("planted\nsecond line")
        time.sleep(self.seconds)
        chosen = row.parameters
        colours = [(seed % 256, seed // 256 % 256, row.number % 256) for seed in range(chosen.seed, chosen.seed + chosen.batch)]
        size = chosen.width, chosen.height
        return RenderedRow([Image.new("RGB", size, colour) for colour in colours], 0.5, 0.0, self.answered)
