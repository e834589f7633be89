"""Makes the pictures of rows in this process, as the bytes of their files: a result that can be sent to another process."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ov_backend.batch.row import Row
from ov_backend.core import interrupts
from ov_backend.core.errors import first_line
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import png

log = logging.getLogger(__name__)

#: How many times a row is tried in all.
TRIES = 2

#: What answered a row whose networks all ran as they were asked to.
OPENVINO = "OpenVINO"


@dataclass(frozen=True)
class RenderedRow:
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


class Renderer(Protocol):
    """What makes pictures."""

    def render(self, row: Row) -> RenderedRow:
        """Make the pictures of a row."""


@dataclass(frozen=True)
class RowResult:
    """What became of a row.

    Attributes:
        files: bytes of the PNG of each picture, in the order of :attr:`Row.files`; none if the row failed.
        seconds: of all pictures together, in the last attempt.
        sampling_seconds: see :class:`RenderedRow`.
        prepared_seconds: see :class:`RenderedRow`.
        answered: see :class:`RenderedRow`.
        error: why the row failed, in one sentence; None if it did not.
        attempts: how often it was tried.
    """

    files: tuple[bytes, ...] = ()
    seconds: float = 0.0
    sampling_seconds: float = 0.0
    prepared_seconds: float = 0.0
    answered: str = ""
    error: str | None = None
    attempts: int = 1


def execute(renderer: Renderer, row: Row, device: str) -> RowResult:
    """Make the pictures of a row; if that fails, once more.

    Args:
        renderer: makes the pictures.
        row: whose pictures are made.
        device: that computes, for the pictures' parameters.

    Raises:
        KeyboardInterrupt: the user has interrupted it.
    """
    for attempt in range(1, TRIES + 1):
        start = time.perf_counter()
        try:
            return _rendered(renderer, row, device, start)
        except Exception as error:  # of any library: it ends this row only
            if interrupts.interrupted():
                raise KeyboardInterrupt from error
            log.debug("Row %d failed.", row.source, exc_info=True)
            failure = RowResult(seconds=time.perf_counter() - start, error=reason_of(error), attempts=attempt)
    return failure


def _rendered(renderer: Renderer, row: Row, device: str, start: float) -> RowResult:
    rendered = renderer.render(row)
    if len(rendered.images) != len(row.files):
        raise ValueError(f"{len(rendered.images)} pictures were made instead of {len(row.files)}")
    choices = Choices(device=device, precision=row.precision)
    texts = [row.parameters.of_picture(i).as_text(row.checkpoint.stem, choices) for i in range(len(row.files))]
    files = tuple(png(image, text) for image, text in zip(rendered.images, texts))
    seconds = time.perf_counter() - start
    return RowResult(files, seconds, rendered.sampling_seconds, rendered.prepared_seconds, rendered.answered)


def reason_of(error: Exception) -> str:
    """An exception of any library in one line, for the manifest."""
    return f"{type(error).__name__}: {first_line(error)[:300]}"
