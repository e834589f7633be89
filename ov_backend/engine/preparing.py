"""Finds what is compiled for a network's calls, or has it compiled: for a call that waits, or before one comes."""

from __future__ import annotations

import contextlib
from functools import partial

import torch

from ov_backend.core import garbage
from ov_backend.core.errors import OVBackendError
from ov_backend.engine import worker
from ov_backend.engine.ahead import warmup
from ov_backend.engine.ahead.job import compile_ahead
from ov_backend.engine.capturing import Capturing
from ov_backend.engine.compile_job import CompileJob, JobContext
from ov_backend.engine.lookup import Lookup
from ov_backend.engine.request import CompiledEntry, CompiledKey, CompileRequest, Superseded
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards.signature import Binder, Call, Signature
from ov_backend.guards.weights import Placement

#: How often a call compiles again because weights or code changed during the compile.
_MAX_TRIES = 4


class Preparing:
    """What one network's calls need is found or made here."""

    def __init__(
        self, resources: Resources, name: str, lookup: Lookup, capturing: Capturing, statistics: NetworkStats
    ) -> None:
        self._resources, self._name, self._lookup, self._capturing = resources, name, lookup, capturing
        self._statistics = statistics
        self.context = JobContext(name, statistics, lookup.compiled, capturing.capture, lookup.is_current)
        #: The placement of the weights that were offloaded last, or need not be.
        self._offloaded: Placement | None = None
        self._requested: CompiledKey | None = None  # what was compiled last
        self._was_read = False  # whether code and weights have been read for a call

    @property
    def goes_on(self) -> bool:
        """Whether the job of the last request goes on, after an interruption."""
        return self._requested in self._resources.worker

    def clear(self) -> None:
        """Code and weights count as never read."""
        self._was_read = False

    def lookup_or_compile(self, call: Call, interrupted: worker.Interruption | None) -> CompiledEntry:
        """The graph that is compiled for a call, if need be now; raises where the call has to run in PyTorch."""
        interrupted = warmup.interruption() or interrupted
        starts, self._resources.last = self._resources.last != self._name, self._name
        for _ in range(_MAX_TRIES):
            request = self.find(call, starts, interrupted)
            if not isinstance(request, CompileRequest):
                self._offload(request)
                return request
            with contextlib.suppress(Superseded):
                job = CompileJob(self._resources, request, self.context)
                try:
                    self._requested = request.compiled_key
                    compiled: CompiledEntry = self._resources.worker.run(request.compiled_key, job.run, interrupted)
                except BaseException:  # of a signal's handler, for example: the job goes on, if it has not ended
                    request.abandoned.set()
                    raise
                if not job.began:  # it was another call's job, whose trace may have shown what tells the two apart
                    continue
                self._offloaded = compiled.placement
                return compiled
        raise OVBackendError("its weights or its code keep changing while it is being compiled")

    def find(self, call: Call, starts: bool, interrupted: worker.Interruption | None) -> CompiledEntry | CompileRequest:
        """Look a call up while the network is not captured."""
        return self._capturing.kept_off(lambda: self._look(call, starts), interrupted)

    def _look(self, call: Call, starts: bool) -> CompiledEntry | CompileRequest:
        """Look a call up. The first time all code and weights are read, which takes seconds: that is a stage of its own."""
        with self._lookup.lock:
            if self._was_read:
                with self._statistics.time("check"):
                    return self._lookup.find(call, starts)
            self.context.report(self._resources, "read", call)
            try:
                with self._statistics.time("read"), garbage.paused():
                    return self._lookup.find(call, starts)
            finally:
                self._was_read = True
                self.context.report(self._resources, "ready", call)

    def _offload(self, entry: CompiledEntry) -> None:
        """After a return to earlier weights, which were written again, give them back where memory is short."""
        if entry.placement is not self._offloaded:
            self._offloaded = entry.placement
            self._resources.offload_weights(entry)

    def begin(self, signature: Signature) -> bool:
        """Begin to compile in the background what calls of a signature will need; False if it is compiled, or not known."""
        return self._capturing.kept_off_if_free(lambda: self._begin(signature))

    def _begin(self, signature: Signature) -> bool:
        lookup = self._lookup
        with lookup.lock, self._statistics.time("check"):
            request = lookup.find_known(signature)
            marks = request.guard.weights.marks() if request is not None else ()
        if request is None:
            return False
        job, samples = CompileJob(self._resources, request, self.context), lookup.low_precision.samples(signature)
        self._resources.ahead.submit(request.compiled_key, partial(compile_ahead, job, lookup.is_untouched, marks, samples))
        return True

    def trace(self, binder: Binder, signature: Signature) -> bool:
        """Trace what calls of a signature will run, if it is not known to which text that leads; False if it tells no call."""
        with torch.no_grad():
            call = binder.like(signature)
            request = self.find(call, False, None) if call is not None else None
        if isinstance(request, CompileRequest) and not request.text:
            job = CompileJob(self._resources, request, self.context, for_call=False)
            with contextlib.suppress(Superseded):
                self._resources.worker.run(("trace", request.compiled_key), job.trace)
        return request is not None
