"""The 24 held-out prompts: all their parts are in the training pictures, but never in this combination."""

from __future__ import annotations

from .captions import Spec

PROMPTS: tuple[dict, ...] = (
    {"concepts": ["cat face"], "background": "blue"},
    {"concepts": ["pizza"], "background": "purple"},
    {"concepts": ["rocket"], "background": "night"},
    {"concepts": ["sunflower"], "background": "beach"},
    {"concepts": ["octopus"], "tint": "green"},
    {"concepts": ["fox"], "background": "snow"},
    {"concepts": ["ghost"], "background": "meadow"},
    {"concepts": ["strawberry"], "background": "yellow"},
    {"concepts": ["penguin"], "background": "beach"},
    {"concepts": ["guitar"], "background": "red", "style": "flat"},
    {"concepts": ["owl"], "background": "night", "style": "flat"},
    {"concepts": ["cactus"], "background": "pink", "style": "flat"},
    {"concepts": ["robot"], "background": "orange", "style": "flat"},
    {"concepts": ["teapot"], "background": "green", "style": "line art"},
    {"concepts": ["bicycle"], "background": "yellow", "style": "line art"},
    {"concepts": ["elephant"], "tint": "pink"},
    {"concepts": ["mushroom"], "tint": "blue", "background": "black"},
    {"concepts": ["automobile"], "tint": "yellow", "background": "sunset"},
    {"concepts": ["dog face"], "tint": "purple", "background": "light blue"},
    {"concepts": ["red apple", "banana"]},
    {"concepts": ["tiger face", "hamburger"], "background": "light blue"},
    {"concepts": ["panda", "balloon"], "background": "meadow"},
    {"concepts": ["crown", "frog"], "stacked": True},
    {"concepts": ["doughnut", "doughnut", "doughnut"], "background": "blue"},
)


def specs(names: list[str]) -> list[Spec]:
    """The prompts as specs, with indices into this list of concept names.

    Raises:
        ValueError: a name is not among the concepts.
    """
    return [Spec(**{**prompt, "concepts": tuple(names.index(name) for name in prompt["concepts"])}) for prompt in PROMPTS]


def forbidden(names: list[str]) -> set[tuple[object, object]]:
    """Every combination of the prompts, for ``captions.Sampler``; prompts with names that are not in the list are left out."""
    pairs: set[tuple[object, object]] = set()
    for prompt in PROMPTS:
        if all(name in names for name in prompt["concepts"]):
            ids = tuple(names.index(name) for name in prompt["concepts"])
            pairs |= Spec(**{**prompt, "concepts": ids}).combinations()
    return pairs
