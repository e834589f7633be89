"""Turns a call of a network into keys, and looks up what is compiled for them; otherwise says what has to be compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ov_backend.core.errors import CaptureError, OVBackendError
from ov_backend.core.tensors import FROM_NAME
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8.low_precision import LowPrecision
from ov_backend.engine.known_texts import LastStates
from ov_backend.engine.overflowed import Overflowed
from ov_backend.engine.request import CompiledEntry, CompiledKey, CompileRequest, Form, State, Superseded
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.engine.traced_codes import Guards
from ov_backend.guards import autocast, inputs
from ov_backend.guards.checksums import Readings
from ov_backend.guards.code import CodeGuard, Guard
from ov_backend.guards.content import Mark
from ov_backend.guards.describe import number_of
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import Placement
from ov_backend.model import compiler
from ov_backend.trace.partitioning import int64_range

#: After this many changes of its code or attributes without an answer from OpenVINO in between, a network is traced again only
#: where two calls in a row find it the same.
_MAX_FINGERPRINTS = 8
#: Why a network is left in PyTorch, or to its blocks, whose calls find another forward each time.
UNSTEADY = "its code or its attributes change at every call"
#: Of so many kinds of calls the keys are remembered.
_MAX_REMEMBERED = 256


class Lookup:
    """The lookups of one network."""

    def __init__(
        self,
        resources: Resources,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        hooks: NetworkHooks,
        statistics: NetworkStats,
        readings: Readings | None,
        low_precision: LowPrecision,
    ) -> None:
        self._resources, self._name, self._module, self._hooks, self._statistics = resources, name, module, hooks, statistics
        self.low_precision = low_precision
        self.lock = threading.RLock()
        self.guards = Guards(module, (forward, *hooks.traced_code), hooks, readings)
        self._kinds: dict[Hashable, str] = {}
        self._last, self._number = LastStates(), number_of(module)
        #: Which weights compute in f32, though the settings name a lower precision.
        self.overflowed = Overflowed(resources, name, statistics)
        #: The fingerprints of the code since the last answer from OpenVINO.
        self._unanswered: set[str] = set()
        #: The fingerprint of the code of the last request.
        self._last_code = ""

    def answered(self) -> None:
        """Take note that OpenVINO has answered a call."""
        self._unanswered.clear()

    def clear(self) -> None:
        """Forget the state of weights and code."""
        with self.lock:
            self.overflowed.clear()
            self._unanswered.clear()
            self.guards.clear()
            self._last.clear()

    def begin_run(self) -> None:
        """Read all weights in full now; the next lookup knows what has changed."""
        with self.lock, self._statistics.time("check"):
            self.guards.read_again()

    def release(self) -> None:
        """Release weights that the module no longer uses."""
        with self.lock:
            self.guards.release()

    def find(self, call: Call, starts: bool = False) -> CompiledEntry | CompileRequest:
        """The graph compiled for a call, or what has to be compiled; ``starts``: see :meth:`Guard.check`.

        Raises:
            OVBackendError: the call has to run in PyTorch.
        """
        resources = self._resources
        self._check_integers(call.tensors)
        kind = self._kind(call.signature)
        requests, refused = [], ""
        for guard in self.guards.candidates(resources.codes.of(kind)):
            guard.check(starts)
            if guard.code.refused:
                refused = guard.code.refused
                continue
            form = self._form(guard)
            keys = self._keys(guard, call, form)
            entry = self._entry(*keys, guard)
            if entry is not None:
                self._unanswered.add(guard.code.fingerprint)
                if guard.code.traced is not None:
                    resources.codes.use(kind, guard.code.traced)
                return entry
            self._check_integers(guard.weights.tensors.values())
            if starts and resources.converted(keys[1]):
                self.guards.read_again()  # what is bound was converted earlier, and has to be what the weights are now
            guard.check()  # reading everything once more may have shown a change
            form = self._form(guard)
            requests.append(self._compile_request(call, guard, self._keys(guard, call, form), kind, form))
        if not requests:
            raise CaptureError(refused)
        request = next((each for each in requests if each.text), requests[0])
        last, self._last_code = self._last_code, request.state.code
        if len(self._unanswered) > _MAX_FINGERPRINTS and self._last_code != last:
            raise OVBackendError(UNSTEADY)
        if not starts:
            return self.find(call, starts=True)  # what is bound now must be what its digest says
        self._unanswered.add(request.state.code)
        return request

    def _check_integers(self, tensors: Iterable[torch.Tensor]) -> None:
        """Raise if arithmetic with int64 values as large as these may not be exact."""
        settings = self._resources.settings
        if not (settings.wide_integers or settings.truncate_long_and_double or all(map(int64_range.fits, tensors))):
            raise OVBackendError("an int64 tensor exceeds 2 ** 20; the option wide_integers keeps arithmetic with it in PyTorch")

    def find_known(self, signature: Signature) -> CompileRequest | None:
        """What can be compiled ahead for calls of a signature: None if it is compiled, or if its text is not known.

        Nothing that a call would find is changed by this, but for the state of code and weights that is noted.
        """
        for request in self._requests(signature):
            if self._resources.is_compiled(request.compiled_key):
                return None
            if request.text:
                return request
        return None

    def is_compiled(self, signature: Signature) -> bool:
        """Whether calls of a signature find what they need compiled, if their traces lead to the texts that they led to last."""
        with self.lock:
            return any(self._resources.is_compiled(request.compiled_key) for request in self._requests(signature))

    def _requests(self, signature: Signature) -> Iterator[CompileRequest]:
        """What calls of a signature may need, by each guard that is known for them; their values are not looked at."""
        if not all(spec.exists for spec in signature.tensors):  # only PyTorch could make such tensors
            return
        tensors = tuple(torch.empty(spec.shape, dtype=FROM_NAME[spec.dtype], device="meta") for spec in signature.tensors)
        resources, call, kind = self._resources, Call(signature, tensors, {}), self._kind(signature)
        last = resources.texts.last(kind)
        for guard in self.guards.candidates(resources.codes.of(kind)) if last else ():
            guard.check()
            if not guard.code.refused:
                form = self._form(guard)
                request = self._compile_request(call, guard, self._keys(guard, call, form), kind, form)
                yield request if request.text else request.led_to(last)

    def compiled(self, request: CompileRequest) -> CompiledEntry | None:
        """The compiled graph of a request; what was compiled before anything was traced has got another key since."""
        entry = self._entry(request.state, request.compiled_key, request.guard)
        if entry is None and not request.text:
            with self.lock:
                newer = self.find(request.call)
            return None if isinstance(newer, CompileRequest) else newer
        return entry

    def _entry(self, state: State, key: CompiledKey, guard: Guard) -> CompiledEntry | None:
        """What is compiled for a key, for these weights or for equal ones elsewhere."""
        compiled = self._resources.compiled
        if not key.text:
            return None
        entry: CompiledEntry | None = compiled.get(key.anywhere()) or compiled.get(key)
        if entry is not None and entry.unverified is not None and not self._verify(entry, guard):
            return None
        if entry is not None and entry.placement.address != guard.weights.address:
            placement = Placement.of(guard.weights.tensors, self._resources.evict_dead_soon)
            entry.placement, entry.network = placement, self._name
        if entry is not None and entry.output is None:
            entry.output = self._resources.texts.output(state)
        return entry

    def _verify(self, entry: CompiledEntry, guard: Guard) -> bool:
        """Whether what was compiled ahead is of these weights; evicts it if that is not certain."""
        with self.lock:
            assert entry.unverified is not None
            if entry.unverified.verify(guard.weights):
                entry.unverified = None
                return True
        self._resources.compiled.evict(lambda each, value: value is entry)
        return False

    def _kind(self, signature: Signature) -> str:
        """The kind of calls like this one, by whatever network."""
        host, settings = self._hooks.host_key(), self._resources.settings
        key = signature, settings.text("graph"), host
        kind = self._kinds.get(key)
        if kind is None:
            statement = (signature.tensors, signature.statics)
            kind = compiler.kind_of_call(type(self._module), statement, settings, host)
            remember(self._kinds, key, kind)
        return kind

    def _keys(self, guard: Guard, call: Call, form: Form) -> tuple[State, CompiledKey]:
        """What decides to which graph a trace leads, and the key of the compiled graph, with weights and device."""
        settings, weights = form.settings, guard.weights
        asked = inputs.described(call, guard.code.traced, weights)
        number = 0 if guard.code.traced is not None and guard.code.traced.holds_for_equals else self._number
        parts = guard.code.fingerprint, weights.layout, asked, self._hooks.host_key(), settings.text("graph"), number
        of_weights = weights.digest, settings.text("compile"), form.name, weights.address
        state = State(call.signature, *parts)
        text = self._resources.texts.of(state)
        if text:
            self._last.note(guard, state)
        return state, CompiledKey(text, None if text else state, *of_weights)

    def _compile_request(
        self, call: Call, guard: Guard, keys: tuple[State, CompiledKey], kind: str, form: Form
    ) -> CompileRequest:
        weights = guard.weights
        return CompileRequest(
            call=call,
            state=keys[0],
            compiled_key=keys[1],
            kind=kind,
            weights=weights.tensors,
            form=form,
            guard=guard,
            generation=weights.generation,
            epoch=self._resources.epoch,
            abandoned=threading.Event(),
            autocast=autocast.of_program(),
            autocasts=autocast.state(),
            output=self._resources.texts.output(keys[0]),
            why="" if keys[1].text else self._last.difference((guard, *self.guards.all()), keys[0]),
        )

    def note_trace(self, request: CompileRequest) -> None:
        """A request's call was traced; the next trace of such a call will say what differs."""
        self._last.note(request.guard, request.state)

    def _form(self, guard: Guard) -> Form:
        return self.low_precision.form(self.overflowed.settings(guard.weights.digest), guard.weights)

    def note_change(self, request: CompileRequest, code: CodeGuard, unseen: bool) -> None:
        """Take note that the trace of a request has changed something, see :meth:`Guards.note_change`."""
        self.guards.note_change(self._resources.codes, request.kind, request.guard.code, code, unseen)

    def rebind_to_guard(self, request: CompileRequest, before: CodeGuard, after: CodeGuard) -> CompileRequest:
        """A request whose call was traced under one guard, under that of the code that the trace ran.

        Raises:
            Superseded: the trace may have read something that was not watched; the next attempt watches it.
        """
        assert after.traced is not None
        if after is before:
            self.guards.of(after)
            self._resources.codes.use(request.kind, after.traced)
            return request
        guard = self.guards.of(after)
        guard.check()
        weights, code = guard.weights.tensors, guard.code
        same_weights = weights.keys() == request.weights.keys() and all(weights[n] is request.weights[n] for n in weights)
        if not (same_weights and before.covers(after) and self.is_current(request, False)):
            assert code.traced is not None
            self._resources.codes.use(request.kind, code.traced)  # the next attempt begins with it
            raise Superseded
        self._resources.codes.use(request.kind, after.traced)
        keys = self._keys(guard, request.call, request.form)
        renewed = self._compile_request(request.call, guard, keys, request.kind, request.form)
        kept = {name: getattr(request, name) for name in ("epoch", "abandoned", "autocast", "autocasts", "why")}
        return replace(renewed, **kept)

    def is_current(self, request: CompileRequest, weights: bool) -> bool:
        """Whether the code, and if asked the weights, are still those of a request."""
        with self.lock:
            return request.guard.is_current(request.state.code, request.generation if weights else None)

    def is_untouched(self, request: CompileRequest, marks: tuple[Mark, ...]) -> bool:
        """Whether the weights of a request have not been written to since they had these marks; only looks."""
        weights = request.guard.weights
        with self.lock:
            return request.generation == weights.generation and weights.marks() == marks and weights.is_unchanged()


def remember(known: dict[Any, Any], key: Hashable, value: object, most: int = _MAX_REMEMBERED) -> None:
    """Remember a value that can be made again; there are at most so many."""
    if len(known) >= most and key not in known:
        known.clear()
    known[key] = value
