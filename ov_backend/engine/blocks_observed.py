"""A calibration of a network's blocks in progress."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ov_backend.engine.request import Form
from ov_backend.engine.step_tape import Tape
from ov_backend.quantization.calibration import Calibration
from ov_backend.settings import Settings
from ov_backend.transformations.low_precision import Observe


@dataclass
class Observed:
    """A calibration in progress.

    Attributes:
        number: tells what was compiled for it from what was compiled for another.
        calibration: what was observed.
        ended: a picture has ended since the last step.
        unused: number of runs that began since the last step.
        divided: whether blocks were called in the last step; else the other forward calls the whole network, perhaps.
        wrote: number of steps that wrote into weights; these are not counted.
    """

    number: int = field(default_factory=itertools.count(1).__next__)
    calibration: Calibration[Tape] = field(default_factory=Calibration)
    ended: bool = False
    unused: int = 0
    divided: bool = True
    wrote: int = 0

    def form(self, path: str, settings: Settings) -> Form:
        """The form of a block that is observed; the path is a part of it, because blocks may be equal."""
        return Form(settings, f"observing {self.number} {path}", Observe(self.calibration.observer(f"{path}.")))
