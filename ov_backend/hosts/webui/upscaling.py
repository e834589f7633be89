"""How the WebUI names the upscaler that it runs, and which tile of how many it is at."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from modules import shared

from ov_backend.core.patching import Patch


class Upscaling:
    """The upscaler that runs; its tiles are counted between :meth:`begin` and :meth:`end`.

    Attributes:
        name: as the WebUI lists it; "" while none runs.
    """

    def __init__(self) -> None:
        self.name = ""
        self._tiles, self._done = 0, 0
        self._patch: Patch | None = None

    def begin(self) -> None:
        """Patch the function by which the WebUI cuts a picture into tiles."""
        images = sys.modules.get("modules.images")
        if hasattr(images, "split_grid"):
            self._patch = Patch(images, "split_grid", self._divided)

    def end(self) -> None:
        """Restore it."""
        if self._patch is not None:
            self._patch.undo()
            self._patch = None

    @contextlib.contextmanager
    def tile(self) -> Iterator[None]:
        """In this block one tile is computed, if an upscaler runs: the progress bar says which."""
        if not self.name or not self._tiles:
            yield
            return
        self._done = min(self._done + 1, self._tiles)
        shared.state.textinfo = f"{self.name}, tile {self._done} of {self._tiles}"
        try:
            yield
        finally:
            if self._done == self._tiles:
                shared.state.textinfo = None

    def named(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The WebUI's ``Upscaler.upscale``, which says here which upscaler it is."""

        def upscale(scaler: Any, img: Any, scale: Any, selected_model: Any = None) -> Any:
            listed = getattr(shared, "sd_upscalers", ())
            names = (each.name for each in listed if each.scaler is scaler and each.data_path == selected_model)
            before, self.name, self._tiles = self.name, next(names, ""), 0
            try:
                return original(scaler, img, scale, selected_model)
            finally:
                self.name, self._tiles = before, 0

        return upscale

    def _divided(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def split_grid(*args: Any, **kwargs: Any) -> Any:
            grid = original(*args, **kwargs)
            self._tiles, self._done = sum(len(row[2]) for row in grid.tiles), 0
            return grid

        return split_grid
