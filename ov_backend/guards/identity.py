"""Numbers for objects that cannot be described by value; no two objects ever have the same."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable

from ov_backend.core.errors import pass_on_signals

#: An object that is forgotten gets another number, and what was traced for it is traced again.
_MAX_OBJECTS = 1 << 16

_numbers = itertools.count()
_known: OrderedDict[int, tuple[Callable[[], object], int]] = OrderedDict()


def number_of(value: object) -> int:
    """The number of an object in this process; its ``id`` could be that of an object that is gone."""
    known = _known.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    number = next(_numbers)
    _known[id(value)] = _reference(value), number
    _known.move_to_end(id(value))
    while len(_known) > _MAX_OBJECTS:
        _known.popitem(last=False)
    return number


def _reference(value: object) -> Callable[[], object]:
    try:
        return weakref.ref(value)
    except TypeError as error:  # it is kept alive instead, so that its ``id`` stays its own
        pass_on_signals(error)
        return lambda: value
