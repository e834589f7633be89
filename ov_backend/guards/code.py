"""The state of a module's code: a cheap look, before every call, at what others change about a live module.

Extensions override an instance's forward, swap a block's class, add hooks, turn padding circular, set a scale. The full
fingerprint (tens of milliseconds) is only taken again when the cheap look differs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch

from ov_backend.guards.code_hash import module_fingerprint
from ov_backend.patching import unwrap


class CodeGuard:
    """Watches the code of one module; ``fingerprint`` is current after :meth:`check`.

    Args:
        module: the module.
        ignore: names of attributes that a host keeps on modules for its own ends.
    """

    def __init__(self, module: torch.nn.Module, ignore: frozenset[str] = frozenset()) -> None:
        self._module = module
        self._ignore = ignore
        self.fingerprint = ""
        self._refresh()

    def check(self) -> bool:
        """Whether the code is what it was at the last check."""
        if self.untouched():
            return True
        before = self.fingerprint
        self._refresh()
        return self.fingerprint == before

    def untouched(self) -> bool:
        """Whether nothing has changed since the last check; only looks."""
        return self._look.same()

    def _refresh(self) -> None:
        self._look = _Look(self._module)
        self.fingerprint = module_fingerprint(self._module, self._ignore)


class _Look:
    """Every attribute of every module in a tree, and what its containers hold, compared by identity.

    The loops run inside ``map``: there are some 16,000 attributes in a Stable Diffusion UNet.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = list(module.modules())
        self._types = list(map(type, self._modules))
        self._kinds = list(dict.fromkeys(self._types))
        self._forwards = self._class_forwards()
        self._tables = [vars(child) for child in self._modules]
        self._values = list(_flat(self._tables))
        self._containers = [value for value in self._values if isinstance(value, (dict, list, set))]
        self._lengths = list(map(len, self._containers))
        weights = {id(table) for child in self._modules for table in (child._parameters, child._buffers)}
        self._filled = [value for value in self._containers if value and id(value) not in weights]  # watched elsewhere
        self._items = list(_items(self._filled))

    def same(self) -> bool:
        """Whether everything is as it was."""
        return (
            list(map(len, self._containers)) == self._lengths
            and _identical(_flat(self._tables), self._values)
            and _identical(_items(self._filled), self._items)
            and list(map(type, self._modules)) == self._types
            and self._class_forwards() == self._forwards
        )

    def _class_forwards(self) -> list[Any]:
        return [unwrap(getattr(kind, "forward", None)) for kind in self._kinds]


def _flat(tables: list[dict[str, Any]]) -> Iterable[Any]:
    return chain.from_iterable(map(dict.values, tables))


def _items(containers: list[Any]) -> Iterable[Any]:
    return chain.from_iterable(value.values() if isinstance(value, dict) else value for value in containers)


def _identical(now: Iterable[Any], before: list[Any]) -> bool:
    found = list(now)
    return len(found) == len(before) and all(map(operator.is_, found, before))
