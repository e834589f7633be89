"""In which states the last calls of a network were answered, so that a trace can say what differs from them."""

from __future__ import annotations

from collections.abc import Iterable

from ov_backend.core.tensors import TensorSpec
from ov_backend.engine.request import State
from ov_backend.guards.description import Description
from ov_backend.guards.guard import Guard
from ov_backend.guards.traced_code import TracedCode

#: Of so many combinations of shapes the states are remembered.
_MAX_CALLS = 8


class LastStates:
    """The last states that were known to lead to a text, by the tensors of their calls and the code that a trace has run."""

    def __init__(self) -> None:
        self._states: dict[tuple[TensorSpec, ...], dict[TracedCode | None, tuple[State, Description]]] = {}

    def note(self, guard: Guard, state: State) -> None:
        """A call was answered in this state, or traced."""
        tensors = state.signature.tensors
        if tensors not in self._states and len(self._states) >= _MAX_CALLS:
            self._states.clear()
        self._states.setdefault(tensors, {})[guard.code.traced] = state, guard.code.description

    def difference(self, guards: Iterable[Guard], state: State) -> str:
        """What differs first from the last such call, by the first guard that knows; "" where there was none.

        Args:
            guards: the one by which the call is looked up, then the others: a trace may have shown that other code runs now.
            state: of the call.
        """
        last = self._states.get(state.signature.tensors, {})
        known = ((each.code.description, *last[each.code.traced]) for each in guards if each.code.traced in last)
        differences = (now.first_difference(description) or state.first_difference(was) for now, was, description in known)
        return next(filter(None, differences), "")

    def clear(self) -> None:
        """Forget all states."""
        self._states.clear()
