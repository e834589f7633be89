"""In which states the last calls of a network were answered, so that a trace can say what differs from them."""

from __future__ import annotations

from collections.abc import Iterable

from ov_backend.engine.request import State
from ov_backend.guards.guard import Guard
from ov_backend.memory.eviction import CountLRU

#: So many states are remembered.
_MAX_STATES = 16


class LastStates:
    """The last states that were known to lead to a text, by the tensors of their calls and the code that a trace has run."""

    def __init__(self) -> None:
        self._states = CountLRU(_MAX_STATES)
        self.clear = self._states.clear

    def note(self, guard: Guard, state: State) -> None:
        """A call was answered in this state, or traced."""
        self._states.put((state.signature.tensors, guard.code.traced), (state, guard.code.description))

    def difference(self, guards: Iterable[Guard], state: State) -> str:
        """What differs first from the last such call, by the first guard that knows; "" where there was none.

        Args:
            guards: the one by which the call is looked up, then the others: a trace may have shown that other code runs now.
            state: of the call.
        """
        last = ((each.code.description, self._states.get((state.signature.tensors, each.code.traced))) for each in guards)
        differences = (now.first_difference(known[1]) or state.first_difference(known[0]) for now, known in last if known)
        return next(filter(None, differences), "")
