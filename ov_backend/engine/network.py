"""One accelerated network: a call becomes keys, the keys lead to what is compiled for them, and that answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ov_backend import compiler, devices
from ov_backend.capture.trace import Captured, capture
from ov_backend.engine import warmup, worker
from ov_backend.engine.compile_job import CompileJob, JobContext
from ov_backend.engine.request import CompiledEntry, CompiledKey, CompileRequest, GraphKey, Superseded
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.errors import Interrupted, NothingToCompute, OVBackendError
from ov_backend.guards.code import CodeGuard
from ov_backend.guards.code_hash import function_fingerprint
from ov_backend.guards.pytree import restore
from ov_backend.guards.signature import Binder, Call, Signature
from ov_backend.guards.weights import WeightsGuard
from ov_backend.settings import Settings

#: How often something is compiled anew because weights or code changed in the meantime.
_MAX_TRIES = 3


@dataclass(frozen=True)
class NetworkHooks:
    """What a host, or the torch.compile backend, does otherwise than a plain module needs it.

    Attributes:
        host_key: anything outside module and call that changes the result; it becomes part of the key.
        tracing: entered around a capture, in the worker's thread; a host may put simpler code of equal result in place there.
        ignore: names of attributes that a host keeps on modules for its own ends: no weights, no code.
        fallback: answers instead where OpenVINO cannot; None is the original forward.
        capture: traces a call; graphs with symbolic sizes have another way.
        generalize: makes of a call the one that its graph is found by.
        keyed_by_code: find stored graphs by the fingerprint of the module's code, without tracing it; otherwise by the
            text of the traced graph.
    """

    host_key: Callable[[], str] = lambda: ""
    tracing: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    ignore: frozenset[str] = frozenset()
    fallback: Callable[..., Any] | None = None
    capture: Callable[..., Captured] = capture
    generalize: Callable[[Call], Call] = lambda call: call
    keyed_by_code: bool = True


class Network:
    """One module whose forward is answered by OpenVINO.

    Args:
        resources: what it shares with the engine's other networks.
        name: how it is called in statistics and messages.
        module: owner of the weights.
        forward: the original forward.
        hooks: what its host does otherwise.
    """

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, forward: Callable[..., Any], hooks: NetworkHooks
    ) -> None:
        self.resources, self.name, self.module, self.forward, self.hooks = resources, name, module, forward, hooks
        self.statistics = NetworkStats()
        #: Every signature it was called with so far.
        self.seen: set[Signature] = set()
        self._fallback = hooks.fallback or forward
        self._job_context = JobContext(name, self.statistics, self._capture, self._is_current)
        #: What cannot be compiled; it is not tried again.
        self.refusals = self._job_context.refusals
        self._binder = Binder(forward)
        self._lock = threading.RLock()
        self._capturing = threading.Lock()
        self._in_f32: set[str] = set()
        self._weights: WeightsGuard | None = None
        self._code: CodeGuard | None = None
        self._function = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call, by OpenVINO if at all possible, else by the original forward.

        Raises:
            Interrupted: the resources' ``interrupted`` said so while the network was being prepared.
        """
        if worker.inside():  # a network around this one is being traced
            return self.forward(*args, **kwargs)
        try:
            call = self.hooks.generalize(self._binder(args, kwargs))
            self.seen.add(call.signature)
            entry = self._lookup_or_compile(call, self.resources.interrupted)
            outputs = self._compute(entry, call)
            if not _finite(outputs) and self._raise_precision():
                outputs = self._compute(self._lookup_or_compile(call, self.resources.interrupted), call)
            result = restore(entry.output, outputs)
        except Interrupted:
            raise
        except NothingToCompute:
            return self.forward(*args, **kwargs)
        except OVBackendError as error:
            return self._fall_back(error, args, kwargs)
        except RuntimeError as error:  # OpenVINO's own errors are RuntimeErrors: no picture is lost by one
            return self._fall_back(OVBackendError(f"OpenVINO failed: {str(error).strip().splitlines()[-1]}"), args, kwargs)
        self.statistics.calls += 1
        return result

    def prepare(self, *args: Any, interrupted: worker.Interruption | None = None, **kwargs: Any) -> bool:
        """Make everything ready for calls like this one, without answering it; False if that was so already.

        Raises:
            Interrupted: ``interrupted()`` became true; what was begun goes on in the background.
            OVBackendError: it cannot be compiled; the call would run in PyTorch.
        """
        before = self.statistics.compiles + self.statistics.blob_hits
        with contextlib.suppress(NothingToCompute):
            self._lookup_or_compile(self.hooks.generalize(self._binder(args, kwargs)), interrupted)
        return self.statistics.compiles + self.statistics.blob_hits != before

    def stats(self) -> dict[str, Any]:
        """Counts, seconds and the signatures that are compiled now."""
        compiled = self.resources.compiled
        own = [key for key in compiled if isinstance(key, CompiledKey) and key.network == self.name]
        held = [held.bytes for key in own if (held := compiled.peek(key)) is not None]
        return {
            **self.statistics.as_dict(),
            "signatures": sorted({str(key.signature) for key in own}),
            "held": len(held),
            "bytes": sum(held),
        }

    def clear(self) -> None:
        """Clear refusals and the state of weights and code."""
        with self._lock:
            self.refusals.clear()
            self._in_f32.clear()
            self._weights = self._code = None

    def release(self) -> None:
        """Release weights that the module has dropped since the last call."""
        with self._lock:
            if self._weights is not None and not self._weights.in_place():
                self._weights.release()

    def _lookup_or_compile(self, call: Call, interrupted: worker.Interruption | None) -> CompiledEntry:
        interrupted = warmup.interruption() or interrupted
        for _ in range(_MAX_TRIES):
            self._wait_for_capture(interrupted)
            with self._lock, self.statistics.time("check"):
                graph_key, compiled_key = self._keys(call)
                entry: CompiledEntry | None = self.resources.compiled.get(compiled_key)
                if entry is not None:
                    return entry
                request = self._request(call, graph_key, compiled_key)
            with contextlib.suppress(Superseded):
                job = CompileJob(self.resources, request, self._job_context)
                compiled: CompiledEntry = self.resources.worker.run(compiled_key, job.run, interrupted)
                return compiled
        raise OVBackendError("its weights or its code keep changing while it is being compiled")

    def _wait_for_capture(self, interrupted: worker.Interruption | None) -> None:
        """While a network is captured the host may have other code in place: calls wait."""
        while self._capturing.locked():
            if interrupted is not None and interrupted():
                raise Interrupted("interrupted while a network was being captured; that goes on in the background")
            time.sleep(worker.POLL_S)

    def _capture(self, request: CompileRequest) -> Captured:
        """Trace the requested call, in the worker's thread."""
        call = request.call
        names = [spec.name for spec in call.signature.tensors]
        with self._capturing, self.hooks.tracing():
            return self.hooks.capture(self.module, self.forward, request.weights, names, call.tensors, call.arguments)

    def _is_current(self, request: CompileRequest, weights: bool) -> bool:
        """Whether the code, and if asked the weights, are still those of a request."""
        with self._lock:
            if self._weights is None or self._code is None:
                return False
            self._code.check()  # what a forward notes on its module makes no other code
            if self._code.fingerprint != request.code:
                return False
            return not weights or (self._weights.generation == request.generation and self._weights.untouched())

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

    def _keys(self, call: Call) -> tuple[GraphKey, CompiledKey]:
        """The key of the graph (no weights in it) and the key of its compiled form (weights and device in it)."""
        if self._weights is None or self._code is None:
            self._weights = WeightsGuard(self.module, self.hooks.ignore)
            self._code = CodeGuard(self.module, self.hooks.ignore)
            self._function = function_fingerprint(self.forward)
        elif not self._code.check():
            self._weights.refresh()  # there may be tensors where there were none
        else:
            self._weights.check()
        settings, weights = self._settings(), self._weights
        graph = GraphKey(
            function=self._function,
            signature=call.signature,
            code=self._code.fingerprint,
            layout=weights.layout,
            host=self.hooks.host_key(),
            settings=repr(settings.affecting("graph")),
        )
        compile_settings = repr(settings.affecting("compile"))
        return graph, CompiledKey(self.name, call.signature, graph, weights.digest, weights.address, compile_settings)

    def _request(self, call: Call, graph_key: GraphKey, compiled_key: CompiledKey) -> CompileRequest:
        weights, code = self._weights, self._code
        assert weights is not None
        assert code is not None
        settings = self._settings()
        cache_key = None
        if self.hooks.keyed_by_code:
            cache_key = compiler.graph_key(
                f"{code.fingerprint} {self._function}",
                (call.signature.tensors, call.signature.statics),
                [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in weights.tensors.items()],
                settings,
                graph_key.host,
            )
        return CompileRequest(
            call=call,
            graph_key=graph_key,
            compiled_key=compiled_key,
            cache_key=cache_key,
            weights=weights.tensors,
            settings=settings,
            code=code.fingerprint,
            digest=weights.digest,
            generation=weights.generation,
            epoch=self.resources.epoch,
            autocast=torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None,
        )

    def _settings(self) -> Settings:
        """The engine's settings, in f32 for weights that overflowed in less."""
        settings = self.resources.settings
        overflowed = self._weights is not None and self._weights.digest in self._in_f32
        return settings.replace(precision="f32", config=_without_precision(settings)) if overflowed else settings

    def _raise_precision(self) -> bool:
        """Compute in f32 from now on with these weights; False if that is what was done already."""
        assert self._weights is not None
        settings = self._settings()
        if settings.precision == "f32" or self._weights.digest in self._in_f32:
            return False
        self._in_f32.add(self._weights.digest)
        self.statistics.correct(self.name, f"not finite in {devices.resolved_precision(settings)}, computed again in f32")
        return True


def _finite(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether all values are finite; one sum for each tensor, as infinity and NaN both survive it."""
    return all(bool(torch.isfinite(x.sum(dtype=torch.float32))) for x in outputs if x.is_floating_point())


def _without_precision(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in settings.config.items() if name != "INFERENCE_PRECISION_HINT"}
