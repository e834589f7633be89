"""Describes training pictures, and words their captions.

A ``Spec`` describes one picture completely; ``caption`` words it. ``Sampler`` draws specs from a seed and never draws a held-out
combination. So the model can be tested with prompts whose parts it was trained on, but never in this combination.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from random import Random

from .render import STYLES

BACKGROUNDS = {
    "white": (255, 255, 255), "black": (18, 18, 20), "grey": (150, 150, 155), "red": (214, 40, 46),
    "orange": (245, 140, 40), "yellow": (250, 212, 60), "green": (60, 165, 80), "blue": (40, 90, 215),
    "light blue": (150, 210, 250), "purple": (120, 60, 180), "pink": (250, 160, 195), "brown": (125, 82, 52),
}  # fmt: skip
SCENES = {
    "meadow": "in a meadow", "beach": "on a beach", "night": "under a night sky",
    "snow": "in the snow", "sunset": "at sunset",
}  # fmt: skip
TINTS = {
    "red": (225, 45, 50), "orange": (245, 140, 40), "yellow": (250, 210, 50), "green": (60, 175, 85),
    "blue": (50, 110, 235), "purple": (140, 75, 205), "pink": (250, 130, 185),
}  # fmt: skip
COLOUR_WORDS = frozenset(" ".join([*BACKGROUNDS, *TINTS]).split())
SIZES = {"small": 0.4, "": 0.74, "large": 0.93}
COUNTS = {2: "two", 3: "three"}
HELD_OUT_PERCENT = 4


@dataclass(frozen=True)
class Spec:
    """One picture: the concepts from left to right (or top to bottom), a style, a background, and optional attributes."""

    concepts: tuple[int, ...]
    style: str = "3d"
    background: str = "white"
    tint: str = ""
    size: str = ""
    stacked: bool = False
    words: tuple[str, ...] = field(default=(), compare=False)

    def combinations(self) -> set[tuple[object, object]]:
        """The pairs in the picture that may be held out: concept and background, concept and tint, two concepts."""
        single = set(self.concepts)
        pairs: set[tuple[object, object]] = {(a, b) for a in single for b in single if a < b}
        pairs |= {(concept, f"on {self.background}") for concept in single if self.background != "white"}
        return pairs | {(concept, f"is {self.tint}") for concept in single if self.tint}


def plural(name: str) -> str:
    """The plural of a noun, without irregular forms."""
    if name.endswith(("s", "x", "ch", "sh")):
        return name if name.endswith("s") else name + "es"
    return name[:-1] + "ies" if name.endswith("y") and name[-2] not in "aeiou" else name + "s"


def article(phrase: str) -> str:
    """The phrase with "a" or "an" before it."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def subject(spec: Spec, names: list[str]) -> str:
    """The words for the things in the picture."""
    adjectives = [word for word in (spec.size, spec.tint) if word]
    words = spec.words or tuple(names[concept] for concept in spec.concepts)
    count = len(spec.concepts)
    if count > 1 and len(set(spec.concepts)) == 1:
        return " ".join([COUNTS[count], *adjectives, plural(words[0])])
    joint = " above " if spec.stacked else " and "
    return joint.join(article(" ".join([*adjectives, word])) for word in words)


def place(background: str) -> str:
    """The words for a background; none for white."""
    if background == "white":
        return ""
    return SCENES.get(background, f"on {article(background)} background")


def caption(spec: Spec, names: list[str], random: Random | None = None) -> str:
    """A caption; with ``random`` one of several wordings, otherwise the simplest one, which is used for prompts."""
    what, where = subject(spec, names), place(spec.background)
    if random is not None and spec.background == "white" and random.random() < 0.3:
        where = "on a white background"
    style = "" if spec.style == "3d" and (random is None or random.random() < 0.5) else spec.style
    form = 0 if random is None else random.randrange(4)
    if form == 1 and style:
        return " ".join(part for part in (what, where) if part) + f", {style}"
    if form == 2:
        return ", ".join(part for part in (what.removeprefix("a "), style, where) if part)
    if style == "line art" or form == 3:
        what = f"{style or '3d render'} of {what}"
    elif style:
        what = f"{article(style)} {what.removeprefix('a ').removeprefix('an ')}"
    return " ".join(part for part in (what, where) if part)


class Sampler:
    """Draws specs and captions from a seed.

    Args:
        concepts: the records of concepts.json.
        seed: of the random choices.
        forbidden: combinations (see ``Spec.combinations``) that are never drawn, in addition to those held out by their hash.
    """

    def __init__(self, concepts: list[dict], seed: int, forbidden: set[tuple[object, object]] = frozenset()) -> None:
        self.names = [record["name"] for record in concepts]
        self.aliases = [record["aliases"] for record in concepts]
        self.random = Random(seed)
        self.forbidden = frozenset(forbidden)

    def held_out(self, spec: Spec) -> bool:
        """Whether a combination in the picture is held out."""
        pairs = spec.combinations()
        return not self.forbidden.isdisjoint(pairs) or any(hash_percent(pair) < HELD_OUT_PERCENT for pair in pairs)

    def draw(self) -> Spec:
        """A spec without held-out combinations."""
        while self.held_out(spec := self._any()):
            pass
        return spec

    def draw_held_out(self) -> Spec:
        """A spec of one concept in a combination that is held out by its hash, for measurements."""
        while not (self.held_out(spec := self._any(single=True)) and not spec.words):
            pass
        return spec

    def caption(self, spec: Spec) -> str:
        """A random wording of a spec."""
        return caption(spec, self.names, self.random)

    def _any(self, single: bool = False) -> Spec:
        random = self.random
        first = random.randrange(len(self.names))
        background = random.choices(("white", random.choice(list(BACKGROUNDS)), random.choice(list(SCENES))), (0.3, 0.5, 0.2))[0]
        spec = Spec((first,), random.choices(STYLES, (0.6, 0.22, 0.18))[0], background, size=self._size())
        kind = 0.0 if single else random.random()
        if kind > 0.8:
            other = random.randrange(len(self.names))
            if other != first:
                return replace(spec, concepts=(first, other), size="", stacked=random.random() < 0.25)
        elif kind > 0.7:
            return replace(spec, concepts=(first,) * random.choice((2, 2, 3)), size="")
        name = self.names[first]
        if random.random() < 0.2 and not COLOUR_WORDS & set(name.split()):
            tint = random.choice(list(TINTS))
            spec = spec if tint in background else replace(spec, tint=tint)
        elif self.aliases[first] and not single and random.random() < 0.15:
            spec = replace(spec, words=(random.choice(self.aliases[first]),))
        return spec

    def _size(self) -> str:
        return self.random.choices(list(SIZES), (0.12, 0.76, 0.12))[0]


def hash_percent(pair: tuple[object, object]) -> int:
    """A number from 0 to 99 that depends on a combination only."""
    return zlib.crc32(f"{pair[0]}|{pair[1]}".encode()) % 100
