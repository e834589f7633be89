"""Which programs calls have led to: in this process by the state of the code, on disk by the kind of call.

A program is known by its text, which only a trace tells. The index on disk says which programs calls of a kind led to last:
a new process compiles the first of them while it traces, and takes it where the trace leads to an equal text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterable, Mapping

from ov_backend.engine.request import State
from ov_backend.guards.code import Guard
from ov_backend.guards.pytree import Spec
from ov_backend.memory.eviction import CountLRU
from ov_backend.store.store import GraphStore, run_store

#: The most states of networks whose programs are known, and the most programs of one kind of call.
_MAX_STATES, _MAX_TEXTS = 4096, 4
#: The most states of a network by which a trace can say what differs from them.
_MAX_LAST = 16
_FILE = "texts.json"
_TEXT = re.compile(r"[0-9a-f]{32}")


class KnownTexts:
    """The texts of programs, by their keys."""

    def __init__(self) -> None:
        self._by_state = CountLRU(_MAX_STATES)
        self._last: dict[str, list[str]] = {}
        self._graphs: GraphStore | None = None

    def open(self, graphs: GraphStore | None) -> None:
        """Use the index beside a graph store from now on, or none."""
        if self._graphs is None or graphs is None or graphs.folder != self._graphs.folder:
            self._last.clear()
        self._graphs = graphs

    def of(self, state: Hashable) -> str:
        """The text that a trace in this state has led to, or ""."""
        text, _ = self._by_state.get(state) or ("", None)
        return str(text)

    def output(self, state: Hashable) -> Spec | None:
        """The description of a call's result, as that trace has told it."""
        _, output = self._by_state.get(state) or ("", None)
        return output

    def last(self, kind: str) -> str:
        """The text that a call of this kind has led to last, in this process or another, or ""."""
        return next(iter(self._of_kind(kind)), "")

    def note(self, state: Hashable, kind: str, text: str, output: Spec) -> None:
        """A trace has led to a text, and a result of this description."""
        self._by_state.put(state, (text, output))
        before = self._of_kind(kind)
        if before[:1] != [text]:
            self._last[kind] = [text, *(each for each in before if each != text)][:_MAX_TEXTS]
            if self._graphs is not None and text in self._graphs:
                run_store(self._graphs.folder).put(kind, {_FILE: json.dumps({"texts": self._last[kind]}).encode()})

    def clear(self) -> None:
        """Forget what this process has seen; the index on disk stays."""
        self._by_state.clear()
        self._last.clear()

    def _of_kind(self, kind: str) -> list[str]:
        if kind not in self._last:
            self._last[kind] = self._read(kind)
        return self._last[kind]

    def _read(self, kind: str) -> list[str]:
        return [] if self._graphs is None else run_store(self._graphs.folder).read(kind, _texts_of) or []


def _texts_of(files: Mapping[str, bytes]) -> list[str]:
    listed = json.loads(files[_FILE])["texts"]
    return [text for text in listed if isinstance(text, str) and _TEXT.fullmatch(text)][:_MAX_TEXTS]


class LastStates:
    """The last states that were known to lead to a text, by the tensors of their calls and the code that a trace has run."""

    def __init__(self) -> None:
        self._states = CountLRU(_MAX_LAST)
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
