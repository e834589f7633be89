"""Makes the pictures of rows in this process, as the bytes of their files: an outcome that can be sent to another process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ov_backend import interrupts
from ov_backend.batch import pictures
from ov_backend.batch.row import Row
from ov_backend.errors import first_line
from ov_backend.ui.choices import Choices

log = logging.getLogger(__name__)

#: How many times a row is tried in all.
TRIES = 2

#: What answered a row whose networks all ran as they were asked to.
OPENVINO = "OpenVINO"


@dataclass(frozen=True)
class Painted:
    """The pictures of one row.

    Attributes:
        images: Pillow's, one for each of the batch.
        sampling_seconds: without what prepared networks, loaded a checkpoint or added LoRAs.
        prepared_seconds: the rest.
        answered: by what: "OpenVINO", and the networks that PyTorch answered, or that computed in f32 where another precision is
            not finite.
    """

    images: Sequence[Any]
    sampling_seconds: float
    prepared_seconds: float
    answered: str


class Paints(Protocol):
    """What makes pictures."""

    def paint(self, row: Row) -> Painted:
        """Make the pictures of a row."""


@dataclass(frozen=True)
class Made:
    """The pictures of a row.

    Attributes:
        files: bytes of the PNG of each, in the order of :attr:`Row.files`.
        seconds: of all pictures together.
        sampling_seconds: see :class:`Painted`.
        prepared_seconds: see :class:`Painted`.
        answered: see :class:`Painted`.
    """

    files: tuple[bytes, ...]
    seconds: float
    sampling_seconds: float
    prepared_seconds: float
    answered: str


@dataclass(frozen=True)
class Failure:
    """Why a row has no pictures.

    Attributes:
        reason: in one sentence.
        seconds: of the last attempt.
        attempts: how many there were.
    """

    reason: str
    seconds: float
    attempts: int


Outcome = Made | Failure


def make(paints: Paints, row: Row, device: str, text_of: Row | None = None, attempt: int = 1) -> Outcome:
    """Make the pictures of a row; an exception becomes a :class:`Failure`.

    Args:
        paints: makes the pictures.
        row: with files that are on this machine.
        device: that computes, for the pictures' parameters.
        text_of: the row whose parameters are written into the pictures, if it is not ``row``.
        attempt: counts from 1.

    Raises:
        KeyboardInterrupt: the user has interrupted it.
    """
    start = time.perf_counter()
    try:
        painted = paints.paint(row)
        if len(painted.images) != len(row.files):
            raise ValueError(f"{len(painted.images)} pictures were made instead of {len(row.files)}")
        shown, choices = text_of or row, Choices(device=device, precision=row.precision)
        texts = [shown.parameters.of_picture(i).as_text(shown.checkpoint.stem, choices) for i in range(len(row.files))]
        files = tuple(pictures.encode(image, text) for image, text in zip(painted.images, texts))
    except Exception as error:  # of any library: it ends this row only
        if interrupts.interrupted():
            raise KeyboardInterrupt from error
        log.debug("Row %d failed.", row.source, exc_info=True)
        return Failure(f"{type(error).__name__}: {first_line(error)[:300]}", time.perf_counter() - start, attempt)
    seconds = time.perf_counter() - start
    return Made(files, seconds, painted.sampling_seconds, painted.prepared_seconds, painted.answered)


class InThisProcess:
    """Makes rows one after the other.

    Args:
        paints: makes the pictures.
        device: that computes.
    """

    def __init__(self, paints: Paints, device: str) -> None:
        self._paints, self._device = paints, device

    def outcomes(self, rows: Iterable[Row]) -> Iterator[tuple[Row, Outcome]]:
        """Each row with its outcome, in their order; a row that fails is tried once more."""
        for row in rows:
            for attempt in range(1, TRIES + 1):
                outcome = make(self._paints, row, self._device, attempt=attempt)
                if isinstance(outcome, Made):
                    break
            yield row, outcome
