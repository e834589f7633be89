"""Low memory: the weights of what is compiled are given back to the system, see :mod:`ov_backend.offload.give_back`."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator

import torch

from ov_backend.cache.memory import available_memory, release_free_memory, total_memory
from ov_backend.offload.give_back import CannotGiveBack, give_back, page_out
from ov_backend.offload.regions import regions
from ov_backend.settings import Settings

#: With "auto", weights are given back if less than this share of the memory would be free beside a second copy of them.
AUTO_SHARE = 0.25
#: Seconds between two times that pages which a compile has read are dropped.
_SWEEP_S = 0.1

log = logging.getLogger(__name__)


class LowMemory:
    """Gives weights back for one engine.

    Attributes:
        reason: why that failed the last time, as a sentence; "" if it did not.
    """

    def __init__(self) -> None:
        self.reason = ""

    def is_wanted(self, settings: Settings, size: int) -> bool:
        """Whether weights of ``size`` bytes are to be given back once they are compiled."""
        if settings.device != "CPU" or settings.low_memory == "off":
            return False  # other devices may read the weights in place
        if settings.low_memory == "on":
            return True
        return settings.model_caching and available_memory() - size < AUTO_SHARE * total_memory()

    def give_back(self, settings: Settings, weights: Iterable[torch.Tensor]) -> None:
        """Give weights back; where that is impossible, they stay in memory, and the log says why, once."""
        try:
            give_back(weights, settings.cache_folder)
            self.reason = ""
        except CannotGiveBack as error:
            reason = f"Weights stay in memory: {error}."
            if reason != self.reason:
                log.warning("%s", reason)
            self.reason = reason

    @contextlib.contextmanager
    def during_compile(self, settings: Settings, weights: Iterable[torch.Tensor]) -> Iterator[None]:
        """Give weights back before they are compiled, and drop the pages that the compile has read as it goes on."""
        weights = list(weights)
        self.give_back(settings, weights)
        done = threading.Event()

        def sweep() -> None:
            while not done.wait(_SWEEP_S):
                page_out(weights)

        sweeper = threading.Thread(target=sweep, name="ov_backend low memory", daemon=True)
        sweeper.start()
        try:
            yield
        finally:
            done.set()
            sweeper.join()
            page_out(weights)
            release_free_memory()

    def as_dict(self, settings: Settings) -> dict[str, str | int]:
        """For JSON: the setting, the bytes of this process's weights that lie on the disk now, and why not more."""
        return {"setting": settings.low_memory, "given_back_bytes": regions.given_back(), "reason": self.reason}
