"""One accelerated network: a call is turned into keys, and the graph compiled for these keys answers it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ov_backend import compiler, devices
from ov_backend.cache.key import CacheKey
from ov_backend.capture.trace import Captured, Reach
from ov_backend.engine import warmup, worker
from ov_backend.engine.compile_job import CompileJob, JobContext
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.request import CompiledEntry, CompiledKey, CompileRequest, GraphKey, Superseded
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.engine.traced_codes import Guards
from ov_backend.errors import CaptureError, Interrupted, NothingToCompute, OVBackendError, last_line
from ov_backend.guards.code import CodeGuard
from ov_backend.guards.guard import Guard
from ov_backend.guards.pytree import restore
from ov_backend.guards.signature import Binder, Call, Signature
from ov_backend.settings import Settings
from ov_backend.tensors import TensorSpec

#: How often a call compiles again because weights or code changed during the compile.
_MAX_TRIES = 4
#: A network stays in PyTorch after this many changes of its code or attributes without an answer from OpenVINO in between.
_MAX_FINGERPRINTS = 8
#: The most different values of arguments that are no tensors, for one combination of shapes, that are compiled.
_MAX_STATICS = 16

log = logging.getLogger(__name__)


class Network:
    """One module whose forward is answered by OpenVINO.

    Args:
        resources: shared with the engine's other networks.
        name: in statistics and messages.
        module: the owner of the weights.
        forward: the original forward.
        hooks: see :class:`NetworkHooks`.
    """

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, forward: Callable[..., Any], hooks: NetworkHooks
    ) -> None:
        self.resources, self.name, self.module, self.forward, self.hooks = resources, name, module, forward, hooks
        self.statistics = NetworkStats()
        #: The signatures of all calls so far.
        self.seen: set[Signature] = set()
        self._fallback = hooks.fallback or forward
        self._job_context = JobContext(name, self.statistics, self._compiled, self._capture, self._is_current)
        #: Graphs that cannot be compiled; these are not tried again.
        self.refusals = self._job_context.refusals
        self._binder = Binder(forward)
        self._lock = threading.RLock()
        self._capturing = threading.Lock()
        self._in_f32: set[str] = set()
        self._guards = Guards(module, (forward, *hooks.traced_code), hooks)
        #: The values of arguments that are no tensors, by the shapes and dtypes of the tensors in the same call.
        self._statics: defaultdict[tuple[TensorSpec, ...], set[str]] = defaultdict(set)
        self._pid = os.getpid()
        #: The fingerprints of the code since the last answer from OpenVINO.
        self._unanswered: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call by OpenVINO if possible, otherwise by the original forward.

        Raises:
            Interrupted: the resources' ``interrupted`` returned true while the network was being prepared.
        """
        if worker.inside():  # another network, which contains this one, is being traced
            return self.forward(*args, **kwargs)
        try:
            result = self._answer(args, kwargs)
        except Interrupted:
            raise
        except NothingToCompute:
            return self.forward(*args, **kwargs)
        except OVBackendError as error:
            return self._fall_back(error, args, kwargs)
        except Exception as error:  # OpenVINO's errors, or a failure of this package: PyTorch can still answer
            log.debug("%s failed", self.name, exc_info=True)
            kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
            return self._fall_back(OVBackendError(f"OpenVINO failed: {kind}{last_line(error)}"), args, kwargs)
        self._unanswered.clear()
        self.statistics.calls += 1
        return result

    def _answer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if os.getpid() != self._pid:
            raise OVBackendError("this process was forked, and OpenVINO's threads stayed behind")
        if self.hooks.keyed_by_code and torch.is_grad_enabled() and any(p.requires_grad for p in self.module.parameters()):
            raise CaptureError("its weights ask for gradients, which OpenVINO does not record; call it under torch.no_grad()")
        call = self._call(args, kwargs)
        entry = self._lookup_or_compile(call, self.resources.interrupted)
        outputs = self._compute(entry, call)
        if not _finite(outputs) and self._raise_precision(entry.weights):
            outputs = self._compute(self._lookup_or_compile(call, self.resources.interrupted), call)
        return restore(entry.output, outputs)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Bind the arguments to the forward's parameters, and separate tensors from other values.

        Raises:
            OVBackendError: the values that are no tensors change too often; each needs a graph.
        """
        try:
            call = self.hooks.generalize(self._binder(args, kwargs))
        except TypeError as error:  # the arguments do not fit, and the forward raises the right error
            raise NothingToCompute(str(error)) from error
        self.seen.add(call.signature)
        statics = self._statics[call.signature.tensors]
        if len(statics) >= _MAX_STATICS and call.signature.statics not in statics:
            raise OVBackendError(f"its arguments had {_MAX_STATICS} different values beside tensors, and each is another graph")
        statics.add(call.signature.statics)
        return call

    def prepare(self, *args: Any, interrupted: worker.Interruption | None = None, **kwargs: Any) -> bool:
        """Compile what calls like this one need, without answering it; False if that was compiled already.

        Raises:
            Interrupted: ``interrupted()`` returned true; the compile goes on in the background.
            OVBackendError: the network cannot be compiled; such calls run in PyTorch.
        """
        before = self.statistics.compiles + self.statistics.blob_hits
        with contextlib.suppress(NothingToCompute):
            self._lookup_or_compile(self.hooks.generalize(self._binder(args, kwargs)), interrupted)
        return self.statistics.compiles + self.statistics.blob_hits != before

    def stats(self) -> dict[str, Any]:
        """Counts, seconds, and the signatures that are compiled now."""
        compiled = self.resources.compiled
        own = [key for key in compiled if isinstance(key, CompiledKey) and key.network == self.name]
        sizes = [entry.bytes for key in own if (entry := compiled.peek(key)) is not None]
        return {
            **self.statistics.as_dict(),
            "signatures": sorted({str(key.signature) for key in own}),
            "held": len(sizes),
            "bytes": sum(sizes),
        }

    def clear(self) -> None:
        """Clear refusals and the state of weights and code."""
        with self._lock:
            self.refusals.clear()
            self._in_f32.clear()
            self._unanswered.clear()
            self._statics.clear()
            self._guards.clear()

    def release(self) -> None:
        """Release weights that the module no longer uses."""
        with self._lock:
            self._guards.release()

    def _lookup_or_compile(self, call: Call, interrupted: worker.Interruption | None) -> CompiledEntry:
        interrupted = warmup.interruption() or interrupted
        for _ in range(_MAX_TRIES):
            with self._not_capturing(interrupted), self._lock, self.statistics.time("check"):
                request = self._request(call)
                if not isinstance(request, CompileRequest):
                    return request
            with contextlib.suppress(Superseded):
                job = CompileJob(self.resources, request, self._job_context)
                compiled: CompiledEntry = self.resources.worker.run(request.compiled_key, job.run, interrupted)
                return compiled
        raise OVBackendError("its weights or its code keep changing while it is being compiled")

    @contextlib.contextmanager
    def _not_capturing(self, interrupted: worker.Interruption | None) -> Iterator[None]:
        """In this block, this network is not captured; during a capture the host may have patched its code."""
        while not self._capturing.acquire(timeout=worker.POLL_S):
            if interrupted is not None and interrupted():
                raise Interrupted("interrupted while a network was being captured; that goes on in the background")
        try:
            yield
        finally:
            self._capturing.release()

    def _capture(self, request: CompileRequest) -> tuple[Captured, CompileRequest]:
        """Trace the requested call, in the worker's thread; also returns the request with a guard of the code that ran.

        Raises:
            Superseded: the trace may have read or changed something that the request's guard did not watch.
        """
        call, code = request.call, request.guard.code
        names = [spec.name for spec in call.signature.tensors]
        reach = Reach(code.tables, self.hooks.ignore) if self.hooks.keyed_by_code else None
        with self._capturing, self.hooks.tracing():
            captured = self.hooks.capture(
                self.module, self.forward, request.weights, names, call.tensors, call.arguments, reach
            )
        if isinstance(code, CodeGuard):
            after = code.after_trace(captured.executed)
            assert after.traced is not None
            with self._lock:
                if after is not code:
                    request = self._under(request, code, after)
                self.resources.codes.use(request.family, after.traced)
        return captured, request

    def _under(self, request: CompileRequest, before: CodeGuard, after: CodeGuard) -> CompileRequest:
        """The request under the guard of the code that ran."""
        guard = self._guards.of(after)
        guard.check()
        weights, code = guard.weights.tensors, guard.code
        same_weights = weights.keys() == request.weights.keys() and all(weights[n] is request.weights[n] for n in weights)
        if not (same_weights and before.covers(after) and self._is_current(request, False)):
            assert code.traced is not None
            self.resources.codes.use(request.family, code.traced)  # the next attempt begins with it
            raise Superseded
        renewed = self._compile_request(request.call, guard, self._keys(guard, request.call), request.family)
        return replace(renewed, epoch=request.epoch, autocast=request.autocast)

    def _is_current(self, request: CompileRequest, weights: bool) -> bool:
        """Whether the code, and if asked the weights, are still those of a request."""
        with self._lock:
            return request.guard.is_current(request.code, request.generation if weights else None)

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.statistics.fall_back(self.name, str(error))
        if self.resources.settings.fallback == "raise":
            raise error
        return self._fallback(*args, **kwargs)

    def _compute(self, entry: CompiledEntry, call: Call) -> list[torch.Tensor]:
        if warmup.active():
            return entry.program.blank(call.tensors)
        with self.statistics.time("infer"):
            return entry.program(call.tensors)

    def _request(self, call: Call) -> CompiledEntry | CompileRequest:
        """The graph compiled for a call, or what has to be compiled."""
        if len(self._unanswered) > _MAX_FINGERPRINTS:
            raise OVBackendError("its code or its attributes change at every call")
        resources = self.resources
        host, settings = self.hooks.host_key(), resources.settings
        statement = (call.signature.tensors, call.signature.statics)
        family = compiler.family_key(type(self.module), statement, settings, host)
        requests = []
        for guard in self._guards.candidates(resources.codes.of(family, resources.store)):
            guard.check()
            keys = self._keys(guard, call)
            entry: CompiledEntry | None = resources.compiled.get(keys[1])
            if entry is not None:
                self._unanswered.add(guard.code.fingerprint)
                if guard.code.traced is not None:
                    resources.codes.use(family, guard.code.traced)
                return entry
            requests.append(self._compile_request(call, guard, keys, family))
        request = next((each for each in requests if self._is_known(each)), requests[0])
        self._unanswered.add(request.code)
        if request.guard.code.refused:
            raise CaptureError(request.guard.code.refused)
        return request

    def _compiled(self, request: CompileRequest) -> CompiledEntry | None:
        """The compiled graph of a request; what was compiled before anything was traced has got another key since."""
        entry: CompiledEntry | None = self.resources.compiled.get(request.compiled_key)
        if entry is None and request.guard.code.traced is None:
            with self._lock:
                newer = self._request(request.call)
            return None if isinstance(newer, CompileRequest) else newer
        return entry

    def _is_known(self, request: CompileRequest) -> bool:
        """Whether the graph of a request is in memory or on disk."""
        store, key = self.resources.store, request.cache_key
        stored = store is not None and key is not None and str(key) in store
        return stored or self.resources.programs.get(request.graph_key) is not None

    def _keys(self, guard: Guard, call: Call) -> tuple[GraphKey, CompiledKey]:
        """The key of the graph, without weights, and the key of the compiled graph, with weights and device."""
        settings, weights = self._settings(guard.weights.digest), guard.weights
        graph = GraphKey(
            signature=call.signature,
            code=guard.code.fingerprint,
            layout=weights.layout,
            host=self.hooks.host_key(),
            settings=repr(settings.affecting("graph")),
        )
        compile_settings = repr(settings.affecting("compile"))
        return graph, CompiledKey(self.name, call.signature, graph, weights.digest, weights.address, compile_settings)

    def _compile_request(self, call: Call, guard: Guard, keys: tuple[GraphKey, CompiledKey], family: str) -> CompileRequest:
        weights, settings = guard.weights, self._settings(guard.weights.digest)
        return CompileRequest(
            call=call,
            graph_key=keys[0],
            compiled_key=keys[1],
            cache_key=self._cache_key(call, guard, settings, family),
            family=family,
            weights=weights.tensors,
            settings=settings,
            guard=guard,
            code=guard.code.fingerprint,
            digest=weights.digest,
            generation=weights.generation,
            epoch=self.resources.epoch,
            autocast=torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None,
        )

    def _cache_key(self, call: Call, guard: Guard, settings: Settings, family: str) -> CacheKey | None:
        """The key of the graph on disk; None where another process could not tell that nothing has changed."""
        code = guard.code
        if not self.hooks.keyed_by_code or code.opaque or code.traced is None or code.traced.as_json() is None:
            return None
        slots = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in guard.weights.tensors.items()]
        statement = (call.signature.tensors, call.signature.statics)
        return compiler.graph_key(code.fingerprint, statement, slots, settings, self.hooks.host_key(), family)

    def _settings(self, digest: str) -> Settings:
        """The engine's settings, with precision f32 for weights that overflowed in a lower one."""
        settings = self.resources.settings
        if digest not in self._in_f32:
            return settings
        return settings.replace(precision="f32", config=_without_precision(settings))

    def _raise_precision(self, digest: str) -> bool:
        """Compute in f32 from now on with these weights; False if that is so already."""
        settings = self._settings(digest)
        if settings.precision == "f32" or digest in self._in_f32:
            return False
        self._in_f32.add(digest)
        self.statistics.correct(self.name, f"not finite in {devices.resolved_precision(settings)}, computed again in f32")
        return True


def _finite(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether all values are finite; one sum per tensor is enough, as infinity and NaN both propagate to it."""
    return all(bool(torch.isfinite(x.sum(dtype=torch.float32))) for x in outputs if x.is_floating_point())


def _without_precision(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.config.items() if name != "INFERENCE_PRECISION_HINT"}
