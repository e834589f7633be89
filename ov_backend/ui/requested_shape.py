"""What the page's size fields show: probably what is asked for next, so that it can be prepared before Generate is pressed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar


class RequestedShape(NamedTuple):
    """Picture size in pixels, pictures at once, and whether they start from a picture (img2img)."""

    width: int
    height: int
    batch: int
    from_picture: bool


class _Run(Protocol):
    """The part of a remembered run that is looked at."""

    @property
    def request(self) -> str: ...


_R = TypeVar("_R", bound=_Run)


def find_run(runs: Sequence[_R], asked: RequestedShape | None) -> _R | None:
    """The last run that was like this and ran as the last one of all did; None if there was none.

    Args:
        runs: of one kind of model, the last one first; their requests are JSON objects.
        asked: what is looked for; None is the last run of all.

    Raises:
        ValueError, KeyError: a request is not one of ours.
    """
    if not runs or asked is None:
        return runs[0] if runs else None
    choices = json.loads(runs[0].request)["choices"]
    wanted = {
        "size": f"{asked.width}x{asked.height}",
        "batch": asked.batch,
        "from_picture": asked.from_picture,
        "choices": choices,
    }
    return next((run for run in runs if wanted.items() <= json.loads(run.request).items()), None)
