"""What cannot be compiled is not tried again."""

from __future__ import annotations

from collections.abc import Hashable

from ov_backend.core.errors import ConversionError, OVBackendError
from ov_backend.model.conversion.model import UnsupportedNodes


class Refusals(dict[Hashable, OVBackendError]):
    """Errors of graphs that cannot be compiled, by their keys; these are not tried again."""

    def add(self, key: Hashable, error: OVBackendError) -> None:
        """Record why a graph cannot be compiled; without the traceback, whose frames would keep tensors alive."""
        kind = ConversionError if isinstance(error, UnsupportedNodes) else type(error)
        self[key] = kind(str(error))

    def check(self, *keys: Hashable) -> None:
        """Raise the error that is recorded for one of these keys, if any."""
        for key in keys:
            if error := self.get(key):
                raise type(error)(str(error))
