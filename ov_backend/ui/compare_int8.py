"""The comparison of int8 with the device's own precision, in either host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ov_backend.ui.comparison import Comparison, Measured, int8_sides
from ov_backend.ui.controller import JobControl, Size, Unavailable

#: A recipe needs 8 calls, and every picture has one at least; the next is made in int8.
_MAX_PICTURES = 9


class Forms(Protocol):
    """Int8 and the device's own precision of one network; the engine's ``DualPrecisionMemory``."""

    own: str

    @property
    def int8(self) -> dict[str, Any]:
        """What int8 does now."""

    def tell_again(self, int8: dict[str, Any]) -> None:
        """Have the statistics say what int8 did before."""

    def describe(self) -> str:
        """Whether both fit in memory."""

    def make_room(self) -> None:
        """Evict the network where they do not."""


def compare_int8(
    control: JobControl,
    size: Size,
    batch: int,
    both_forms: Callable[[], Mapping[str, Forms]],
    own: Callable[[int], Measured],
    int8: Callable[[int], Measured],
) -> Comparison:
    """Make a picture in int8 and in the device's own precision; before that int8 is calibrated, if it has to be.

    Its seed follows that of the last picture, which may have calibrated: a recipe fits the values that it was made from.

    Args:
        control: of the job.
        size: width and height in pixels.
        batch: pictures at once.
        both_forms: the networks that int8 was asked for.
        own: makes the picture in the device's own precision; its seed is so much larger than that of the last picture.
        int8: makes the picture in int8, or calibrates; the seed likewise.

    Raises:
        Interrupted: the user has cancelled the job.
        Unavailable: int8 is not used, and the message says why.
    """
    control.step(0, "Timing int8")
    for seed in range(1, _MAX_PICTURES + 1):
        measured = int8(seed)
        states = {name: forms.int8 for name, forms in both_forms().items()}
        if not any(state["state"] == "calibrating" for state in states.values()):
            break
    used = {name: forms for name, forms in both_forms().items() if states[name]["state"] == "on"}
    if not used:
        refusals = [state["text"] for state in states.values()] or ["no network was asked for int8"]
        raise Unavailable(f"There is nothing to compare: {', '.join(refusals)}.")
    (first, *_) = used.values()
    control.step(1, f"Timing {first.own}: {first.describe()}")
    for forms in used.values():
        forms.make_room()
    reference = own(seed)
    for name, forms in used.items():
        forms.tell_again(states[name])
    control.step(2, "")
    return Comparison(size, batch, reference, measured, int8_sides(first.own))
