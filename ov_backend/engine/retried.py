"""A network that is left to its parts once it has failed; what blocks and networks by their blocks have in common."""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any

import torch

from ov_backend.core.errors import OVBackendError
from ov_backend.engine import worker
from ov_backend.engine.lookup import UNSTEADY, remember
from ov_backend.engine.network import Network
from ov_backend.engine.request import CompiledEntry
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import Placement

#: A network is left alone when so many calls in a row, alike in shapes, each needed another graph; or so many only a trace.
_MAX_RENEWALS, _MAX_TRACES = 2, 64
#: So many signatures, and so many states of each, are remembered.
_MAX_STATES = 64
#: The most calls from one look to the next at what changes at every call.
_LOOK_EVERY = 16
_UNKNOWN = object()

#: The network whose forward PyTorch runs now, so that its blocks are answered.
running_network: ContextVar[Any] = ContextVar("running_network", default=None)


def _is_due(call: int) -> bool:
    return not call & (call - 1) or call % _LOOK_EVERY == 0


class Retried(Network):
    """A network that is left to the next smaller ones once it has failed, until it is tried again. It is made as a network is."""

    #: Whether it is left where its weights change at every call, as what a hook keeps does; else only for its code.
    _is_inside = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Why it is left alone, or "".
        self.left = ""
        #: By signature, how many calls in a row needed another graph; one that was only traced counts less.
        self._renewals: dict[Signature, float] = {}
        #: By signature and state, where the weights of a block lay that calls were answered with.
        self._states: dict[Signature, dict[Hashable, Placement | None]] = {}
        #: How many calls have asked whether it is left alone because it needed another graph at every call.
        self._asked = 0
        #: What it was at the last call that looked.
        self._seen: list[tuple[str, str]] | None = None

    @property
    def _unsteady(self) -> str:
        """Why it is left where it changes at every call."""
        return "its code, its attributes or its weights change at every call" if self._is_inside else UNSTEADY

    def why_left(self) -> str:
        """Why this call is left to the next smaller networks, or "".

        That it changes at every call is no reason any more once two calls, one after the other, find it the same. A look at what
        has changed may take a while, so it is taken at the first, second, fourth, eighth such call, then at every sixteenth, and
        at the call before.
        """
        if self.left == self._unsteady:
            self._asked += 1
            now = self._look() if _is_due(self._asked) or _is_due(self._asked + 1) else None
            if _is_due(self._asked) and now is not None and now == self._seen:
                self.left = ""
                self._renewals.clear()
            self._seen = now
        return self.left

    def _look(self, checks: bool = True) -> list[tuple[str, str]] | None:
        """What all that traces have read is now, or was at the last look; None where that cannot be told."""
        try:
            with self._lookup.lock:
                guards = self._lookup.guards.all()
                for guard in guards if checks else ():
                    guard.check()
                return [(guard.code.fingerprint, guard.weights.digest * self._is_inside) for guard in guards]
        except OVBackendError:
            return None

    def retry(self) -> None:
        """Try it again; not one that needed another graph at every call."""
        self._renewals.clear()
        if self.left != self._unsteady:
            self.left = ""

    def clear(self) -> None:
        """Clear refusals and the state of weights and code."""
        super().clear()
        self.left = ""
        self._renewals.clear()
        self._states.clear()

    def _lookup_or_compile(self, call: Call, interrupted: worker.Interruption | None) -> CompiledEntry:
        compiled, traced = self._compiled(), self.statistics.captures
        entry = super()._lookup_or_compile(call, interrupted)
        renewals = self._renewals.get(call.signature, 0.0)
        if self._compiled() > compiled and self._is_new(call.signature, entry):
            renewals += 1
        else:
            renewals = (renewals + _MAX_RENEWALS / _MAX_TRACES) * (self.statistics.captures > traced)
        remember(self._renewals, call.signature, renewals, _MAX_STATES)
        if renewals >= _MAX_RENEWALS and self.resources.settings.fallback != "raise":
            self.left, self._asked, self._seen = self._unsteady, 0, self._look(checks=False)
        return entry

    def _is_new(self, signature: Signature, entry: CompiledEntry) -> bool:
        """Whether calls of a signature were answered in other states, and none in this one with weights that are still there."""
        states = self._states.get(signature)
        if states is None:
            remember(self._states, signature, states := {}, _MAX_STATES)
        state, placement = (entry.state, entry.placement) if self._is_inside else (entry.state[1:], None)
        was_empty, known = not states, states.get(state, _UNKNOWN)
        remember(states, state, placement, _MAX_STATES)
        return not was_empty and (known is _UNKNOWN or (isinstance(known, Placement) and not known.lives()))

    def _compute(self, entry: CompiledEntry, call: Call) -> list[torch.Tensor]:
        token = running_network.set(None)  # the modules called in here are ours: operators that stay in PyTorch
        try:
            return super()._compute(entry, call)
        finally:
            running_network.reset(token)

    def _compiled(self) -> int:
        return self.statistics.compiles + self.statistics.blob_hits
