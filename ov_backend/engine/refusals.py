"""What cannot be compiled is not tried again."""

from __future__ import annotations

from collections.abc import Hashable

from ov_backend.core.errors import ConversionError, OVBackendError
from ov_backend.model.conversion.model import UnsupportedNodes


class Refusals:
    """Errors of graphs that cannot be compiled, by their keys; these are not tried again."""

    def __init__(self) -> None:
        self._errors: dict[Hashable, OVBackendError] = {}

    def add(self, key: Hashable, error: OVBackendError) -> None:
        """Record why a graph cannot be compiled; without the traceback, whose frames would keep tensors alive."""
        kind = ConversionError if isinstance(error, UnsupportedNodes) else type(error)
        self._errors[key] = kind(str(error))

    def check(self, *keys: Hashable) -> None:
        """Raise the error that is recorded for one of these keys, if any."""
        for key in keys:
            if key in self._errors:
                error = self._errors[key]
                raise type(error)(str(error))

    def __len__(self) -> int:
        return len(self._errors)

    @property
    def errors(self) -> list[OVBackendError]:
        """All recorded errors."""
        return list(self._errors.values())

    def clear(self) -> None:
        """Remove all errors, so that everything is tried again."""
        self._errors.clear()
