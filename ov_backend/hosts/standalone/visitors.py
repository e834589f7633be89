"""Whose generations and pictures are whose: each open page has a key of its own, which its browser keeps over a reload."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ov_backend.hosts.standalone.generated import Generated
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

#: Pictures that a page can look back at.
_KEPT = 60
#: Pages whose pictures are remembered; beyond them, those of the page that has waited longest for its last one are not.
_MAX_PAGES = 200


class Visitors:
    """What each page waits for and what it was given. A page without a key is nobody's: no pictures are remembered for it."""

    def __init__(self, generator: PictureGenerator) -> None:
        self.generator = generator
        self._own: dict[str, list[Generation]] = {}
        self._made: dict[str, tuple[Path, ...]] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, generation: Generation) -> None:
        """A page has asked for this generation."""
        with self._lock:
            self._own.setdefault(key, []).append(generation)

    def end(self, key: str, generation: Generation) -> None:
        """It is over."""
        with self._lock:
            self._own[key].remove(generation)
            if not self._own[key]:
                del self._own[key]

    def running(self, key: str) -> Generation | None:
        """The generation that a page waits for, the first one where it has asked for several."""
        with self._lock:
            return next(iter(self._own.get(key, [])), None)

    def interrupt(self, key: str) -> None:
        """Interrupt what a page has asked for, and no other page's."""
        with self._lock:
            for generation in self._own.get(key, []):
                generation.withdrawn.set()

    def keep(self, key: str, files: Sequence[Path]) -> None:
        """These pictures were made for a page."""
        if not key:
            return
        with self._lock:
            self._made[key] = (*files, *self._made.pop(key, ()))[:_KEPT]
            if len(self._made) > _MAX_PAGES:
                del self._made[next(iter(self._made))]

    def has_compared(self, key: str) -> bool:
        """Whether the pictures that were compared last are a page's own."""
        return bool({*getattr(self.generator.controller.compared, "files", ())} & {*self.made(key)})

    def made(self, key: str) -> tuple[Path, ...]:
        """The pictures that were made for a page, the newest generation's first."""
        with self._lock:
            return self._made.get(key, ())


class Generation:
    """What a page has asked for, made in a thread of its own; a page that is closed does not end it.

    ``count`` batches are made one after the other, whose seeds follow each other; between them, other pages have their turn.
    """

    def __init__(
        self,
        visitors: Visitors,
        key: str,
        parameters: Parameters,
        choices: Choices,
        picture: Any,
        count: int = 1,
        model: str = "",
    ) -> None:
        #: The last one's result, and the pictures of all.
        self.generated: Generated | None = None
        self.files: tuple[Path, ...] = ()
        self.error: Exception | None = None
        #: Set to interrupt this one alone, also while it waits for another page's.
        self.withdrawn = threading.Event()
        self.parameters, self.number, self.count = parameters, 1, count
        self.visitors, self.key = visitors, key
        self._thread = threading.Thread(target=self._run, args=(choices, picture, model), name="openvino-generate", daemon=True)
        visitors.begin(key, self)
        self._thread.start()

    @property
    def has_turn(self) -> bool:
        """Whether it is made now, and does not wait for another page's."""
        return self.visitors.generator.current is self.parameters

    @property
    def preview(self) -> Any:
        """Its newest preview, or None."""
        return self.visitors.generator.preview if self.has_turn else None

    def _run(self, choices: Choices, picture: Any, model: str) -> None:
        try:
            first = self.parameters.with_seed(random.randrange(1 << 32))
            while self.number <= self.count and (self.generated is None or self.generated.interrupted is None):
                self.parameters = replace(first, seed=first.seed + (self.number - 1) * first.batch)
                asked = self.parameters, choices, picture, self.withdrawn, model
                self.generated = self.visitors.generator.generate(*asked)
                self.visitors.keep(self.key, self.generated.files)
                self.files += self.generated.files
                self.number += 1
        except Exception as error:  # raised again in the thread that waits
            self.error = error
        finally:
            self.visitors.end(self.key, self)

    def is_over(self, seconds: float) -> bool:
        """Wait for its end for some seconds; whether it is over."""
        self._thread.join(seconds)
        return not self._thread.is_alive()
