"""Containers before a trace, and how fake tensors are taken out of them after it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensor

_TABLES = ("_parameters", "_buffers", "_modules")


class ContainerState:
    """What every dict and list in reach of a forward holds now: a trace must leave no tensor of its own in there.

    Args:
        module: whose tree of modules is in reach.
        others: further dicts and lists.
    """

    def __init__(self, module: torch.nn.Module, others: Iterable[Any] = ()) -> None:
        tables: dict[int, Any] = {id(table): table for child in module.modules() for table in _tables(child)}
        tables.update((id(table), table) for table in others if type(table) in (dict, list, OrderedDict))
        self._before = [(table, table.copy()) for table in tables.values()]

    def remove_fakes(self) -> bool:
        """Restore every container that holds a fake tensor now; whether there was one."""
        removed = False
        for table, before in self._before:
            values = table.values() if isinstance(table, dict) else table
            if any(_holds_fake(value) for value in list(values)):
                removed = True
                table.clear()
                table.update(before) if isinstance(table, dict) else table.extend(before)
        return removed


def _holds_fake(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(isinstance(item, FakeTensor) for item in value)
    return isinstance(value, FakeTensor)


def _tables(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    own = vars(module)
    yield own
    yield from (own[name] for name in _TABLES)
