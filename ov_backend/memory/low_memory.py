"""Low memory: the weights of what is compiled are offloaded, see :mod:`ov_backend.memory.offload_weights`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator

import torch

from ov_backend.core.settings import Settings
from ov_backend.memory.available import available_memory, release_free_memory, total_memory
from ov_backend.memory.offload_weights import CannotOffload, offload_weights, page_out
from ov_backend.memory.regions import regions

#: With "auto", weights are offloaded if less than this share of the memory would be free beside a second copy of them.
AUTO_SHARE = 0.25
#: For fewer bytes of weights no garbage is collected; a block of a network may be small.
_WORTH_COLLECTING = 1 << 28

log = logging.getLogger(__name__)


class LowMemory:
    """Gives weights back for one engine; ``reason`` says why that failed the last time, as a sentence, or is ""."""

    def __init__(self) -> None:
        self.reason = ""

    def is_wanted(self, settings: Settings, size: int) -> bool:
        """Whether weights of ``size`` bytes are to be offloaded once they are compiled."""
        if settings.device != "CPU" or settings.low_memory == "off":
            return False  # other devices may read the weights in place
        if settings.low_memory == "on":
            return True
        return settings.model_caching and available_memory() - size < AUTO_SHARE * total_memory()

    def offload_weights(self, settings: Settings, weights: Iterable[torch.Tensor]) -> None:
        """Give weights back; where that is impossible, they stay in memory, and the log says why, once."""
        try:
            offload_weights(weights, settings.cache_folder)
            self.reason = ""
        except CannotOffload as error:
            reason = f"Weights stay in memory: {error}."
            if reason != self.reason:
                log.warning("%s", reason)
            self.reason = reason

    @contextlib.contextmanager
    def during_compile(self, settings: Settings, weights: Iterable[torch.Tensor]) -> Iterator[None]:
        """Give weights back before they are compiled, and drop the pages that the compile has read when it has ended.

        Meanwhile the system drops them by itself where memory is short.
        """
        weights = list(weights)
        self.offload_weights(settings, weights)
        try:
            yield
        finally:
            page_out(weights)
            if sum(tensor.nbytes for tensor in weights) >= _WORTH_COLLECTING:
                release_free_memory()

    def as_dict(self, settings: Settings) -> dict[str, str | int]:
        """For JSON: the setting, the bytes of this process's weights that lie on the disk now, and why not more."""
        return {"setting": settings.low_memory, "offloaded_bytes": regions.offloaded(), "reason": self.reason}
