"""How Python's decimal numbers and numpy's are computed in a thread, which a forward may set and a trace has to put back."""

from __future__ import annotations

import decimal

import numpy as np

#: What a context says of how decimal numbers are computed; what else it holds are notes of computations that are over.
_RULES = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp", "traps")


class ArithmeticState:
    """The rules of this thread when this is made."""

    def __init__(self) -> None:
        self._context, self._errors = decimal.getcontext(), np.geterr()
        self._rules = _rules_of(self._context)

    def put_back(self) -> bool:
        """Put the rules back; whether they had changed."""
        same_context = decimal.getcontext() is self._context and _rules_of(self._context) == self._rules
        if same_context and np.geterr() == self._errors:
            return False
        decimal.setcontext(self._context)
        for name, value in self._rules.items():
            setattr(self._context, name, value)
        np.seterr(**self._errors)
        return True


def _rules_of(context: decimal.Context) -> dict[str, object]:
    return {name: dict(value) if name == "traps" else value for name in _RULES for value in [getattr(context, name)]}
