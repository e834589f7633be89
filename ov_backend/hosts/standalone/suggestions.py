"""What the page proposes for checkpoints that it knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Suggestions:
    """Prompts to try, and the CFG scale and the number of steps that suit."""

    prompts: tuple[str, ...] = ()
    guidance: float = 7.0
    steps: int = 20


#: By the checkpoint's name; demo_checkpoint/README.md says what this one knows.
_KNOWN = {
    "fluent-sd": Suggestions(
        (
            "a fox in the snow",
            "a rocket under a night sky",
            "a large teapot on a beach",
            "line art of a bicycle",
            "flat purple dog face on a light blue background",
            "a crown above a frog",
        ),
        guidance=4.0,
    )
}


def suggestions_for(model: str) -> Suggestions:
    """Those for a checkpoint's name; no prompts for one that is not known."""
    return _KNOWN.get(model, Suggestions())
