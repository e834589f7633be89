"""The tensors in a tree of modules before a trace, and how fake ones are taken out again after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor

_ABSENT = object()
_TABLES = ("_parameters", "_buffers", "_modules")


class ModuleState:
    """The attributes of every module in a tree, as they are now."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._tables = [(table, dict(table)) for child in module.modules() for table in _tables(child)]

    def remove_fakes(self) -> None:
        """Put back what stood where a fake tensor stands now: a trace must leave none in a live module."""
        for table, before in self._tables:
            for name in [name for name, value in table.items() if isinstance(value, FakeTensor)]:
                old = before.get(name, _ABSENT)
                if old is _ABSENT:
                    del table[name]
                else:
                    table[name] = old


def _tables(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    own = vars(module)
    yield own
    yield from (own[name] for name in _TABLES)
