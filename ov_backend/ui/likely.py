"""The generation that is expected next: the last one, or the last one like what the page's size fields show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ov_backend.ui.choices import Choices
from ov_backend.ui.snapshot import Job


class RequestedShape(NamedTuple):
    """Picture size in pixels, pictures at once, and whether they start from a picture (img2img)."""

    width: int
    height: int
    batch: int
    from_picture: bool


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


def request_of(shape: RequestedShape, guided: bool, choices: Choices, **more: Any) -> str:
    """What decides with which shapes networks are called, and what runs where, as JSON; no prompts."""
    return json.dumps({**_fields(shape), "guided": guided, "choices": choices.as_infotext(), **more}, sort_keys=True)


def _fields(shape: RequestedShape) -> dict[str, Any]:
    return {"size": f"{shape.width}x{shape.height}", "batch": shape.batch, "from_picture": shape.from_picture}


def likely(runs: Sequence[Any], asked: RequestedShape | None = None) -> Likely | None:
    """The last generation, or the last one that was like this and ran as the last one of all did; None if there was none.

    Args:
        runs: of one kind of model, the last one first. Of those that ``accelerate`` has left, nobody knows what ran where.
        asked: what is looked for; None is the last generation.
    """
    generations = [(fields, run.calls) for run in runs if "choices" in (fields := json.loads(run.request or "{}"))]
    wanted = _fields(asked) if asked is not None else {}
    for fields, calls in generations:
        if wanted.items() <= fields.items() and fields["choices"] == generations[0][0]["choices"]:
            choices = Choices.from_infotext(fields["choices"])
            return Likely(str(fields["size"]), int(fields["batch"]), bool(fields["guided"]), choices, calls)
    return None


def prepared(sizes: Sequence[str], batch: int, choices: Choices | None, guided: bool = True) -> dict[str, Any]:
    """The result of a job that has prepared networks; the page shows it while it asks for the same.

    Args:
        sizes: as "512x768".
        batch: pictures at once.
        choices: what ran where; None where nobody knows.
        guided: whether the CFG scale was above 1, which doubles the UNet's batch.
    """
    known = {"choices": vars(choices).copy()} if choices is not None else {}
    return {"sizes": list(sizes), "batch": batch, "guided": guided, **known}
