"""The weights of one network that overflowed in a lower precision, and compute in f32 from then on."""

from __future__ import annotations

from collections.abc import Callable

from ov_backend.core import devices
from ov_backend.core.settings import Settings
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats


class Overflowed:
    """Weights, by their digests, whose results were not finite in the precision of the settings."""

    def __init__(self, resources: Resources, name: str, statistics: NetworkStats) -> None:
        self._resources, self._name, self._statistics = resources, name, statistics
        self._digests: set[str] = set()
        #: Whether any weights compute in f32; a network says so for all its blocks.
        self.all_in_f32: Callable[[], bool] = bool

    def clear(self) -> None:
        """Try the precision of the settings again."""
        self._digests.clear()

    def __contains__(self, digest: str) -> bool:
        """Whether these weights compute in f32, as :meth:`add` has said."""
        return digest in self._digests

    def settings(self, digest: str) -> Settings:
        """The engine's settings, with precision f32 for weights that overflowed in a lower one, and where that was chosen."""
        settings = self._resources.settings
        return settings.in_f32() if digest in self._digests or self.all_in_f32() else settings

    def add(self, digest: str) -> bool:
        """Compute in f32 from now on with these weights; False if that is so already."""
        settings = self.settings(digest)
        if settings.precision == "f32" or digest in self._digests:
            return False
        self._digests.add(digest)
        self._statistics.correct(self._name, f"not finite in {devices.resolved_precision(settings)}, computed again in f32")
        return True
