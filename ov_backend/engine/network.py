"""One accelerated network: a call becomes keys, the keys find what is compiled for them, and that answers."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ov_backend import devices
from ov_backend.capture import trace as capture
from ov_backend import compiler as graphs
from ov_backend.engine import worker as jobs
from ov_backend.engine import compile_job as making
from ov_backend.engine import warmup as rehearsal
from ov_backend.guards.code import CodeState
from ov_backend.errors import Interrupted, NothingToCompute, OVBackendError
from ov_backend.guards.code_hash import function_fingerprint
from ov_backend.engine.compile_job import Order, Outdated, Ready
from ov_backend.settings import Settings
from ov_backend.guards.signature import Binder, Call, Signature
from ov_backend.engine.stats import Statistics
from ov_backend.guards.pytree import restore
from ov_backend.guards.weights import WeightsState

if TYPE_CHECKING:
    from ov_backend.engine.engine import Engine

#: How often something is made anew because weights or code changed in the meantime.
_MAX_TRIES = 3


class Network:
    """One module whose forward is answered by OpenVINO.

    Args:
        engine: what is shared.
        name: how it is called in statistics and messages.
        module: owner of the weights.
        forward: the original forward.
        keyed_by_code: find stored graphs by the fingerprint of the module's code, without tracing it; otherwise they
            are found by the text of the traced graph.
    """

    def __init__(
        self, engine: Engine, name: str, module: torch.nn.Module, forward: Callable[..., Any], keyed_by_code: bool = True
    ) -> None:
        self.engine, self.name, self.module, self.forward = engine, name, module, forward
        self._keyed_by_code = keyed_by_code
        self.statistics = Statistics()
        #: Anything outside module and call that changes the result; the host sets it (it becomes part of the key).
        self.host_key: Callable[[], str] = lambda: ""
        #: Entered around a capture, in the worker's thread; the host may put simpler code of equal result in place there.
        self.tracing: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
        #: Attributes that the host keeps on modules for its own ends: no weights, no code.
        self.ignore: frozenset[str] = frozenset()
        #: What answers instead when OpenVINO cannot.
        self.plain: Callable[..., Any] = forward
        #: Traces a call; the backend has another way for graphs with symbolic sizes.
        self.capture: Callable[..., capture.Captured] = capture.capture
        #: Makes of a call the one that its graph is found by.
        self.generalise: Callable[[Call], Call] = lambda call: call
        #: Every signature it was called with so far.
        self.seen: set[Signature] = set()
        #: What cannot be made, by key of graph or compiled form: it is not tried again.
        self.refused: dict[Hashable, OVBackendError] = {}
        self._binder = Binder(forward)
        self._lock = threading.RLock()
        self._capturing = threading.Lock()
        self._in_f32: set[str] = set()
        self._weights: WeightsState | None = None
        self._code: CodeState | None = None
        self._function = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call, by OpenVINO if at all possible, else by the original forward.

        Raises:
            Interrupted: the engine's ``interrupted`` said so while the network was being prepared.
        """
        if jobs.inside():  # a network around this one is being traced
            return self.forward(*args, **kwargs)
        try:
            call = self.generalise(self._binder(args, kwargs))
            self.seen.add(call.signature)
            ready = self._ready(call, self.engine.interrupted)
            outputs = self._compute(ready, call)
            if not _finite(outputs) and self._raise_precision():
                outputs = self._compute(self._ready(call, self.engine.interrupted), call)
            result = restore(ready.output, outputs)
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

    def prepare(self, *args: Any, interrupted: jobs.Interruption | None = None, **kwargs: Any) -> bool:
        """Make everything ready for calls like this one, without answering it; False if that was so already.

        Raises:
            Interrupted: ``interrupted()`` became true; what was begun goes on in the background.
            OVBackendError: it cannot be made; the call would run in PyTorch.
        """
        before = self.statistics.compiles + self.statistics.blob_hits
        with contextlib.suppress(NothingToCompute):
            self._ready(self.generalise(self._binder(args, kwargs)), interrupted)
        return self.statistics.compiles + self.statistics.blob_hits != before

    def stats(self) -> dict[str, Any]:
        """Counts, seconds and the signatures that are compiled now."""
        own = [key for key in self.engine.compiled if isinstance(key, tuple) and key[0] == self.name]
        held = [held.bytes for key in own if (held := self.engine.compiled.peek(key)) is not None]
        return {
            **self.statistics.as_dict(),
            "signatures": sorted({str(key[1]) for key in own}),
            "held": len(held),
            "bytes": sum(held),
        }

    def forget(self) -> None:
        """Let go of refusals and of the state of weights and code."""
        with self._lock:
            self.refused.clear()
            self._in_f32.clear()
            self._weights = self._code = None

    def release(self) -> None:
        """Hold on to no weights that the module has let go of since the last call."""
        with self._lock:
            if self._weights is not None and not self._weights.in_place():
                self._weights.release()

    def report(self, stage: str, call: Call) -> None:
        """Tell whoever follows the progress."""
        if self.engine.progress is not None:
            self.engine.progress(self.name, stage, call.signature)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Entered by the worker around a capture: calls wait, for the host may have other code in place."""
        with self._capturing, self.tracing():
            yield

    def is_current(self, order: Order, weights: bool = True) -> bool:
        """Whether code (and weights) are still those of an order."""
        with self._lock:
            if self._weights is None or self._code is None:
                return False
            self._code.check()  # what a forward notes on its module makes no other code
            if self._code.fingerprint != order.code:
                return False
            return not weights or (self._weights.generation == order.generation and self._weights.untouched())

    def refuse_again(self, order: Order) -> None:
        """Raise what was raised before, for what cannot be made."""
        for key in (order.graph_key, order.compiled_key):
            if key in self.refused:
                raise making.bare(self.refused[key])
        for name, tensor in order.weights.items():  # not refused for good: they may come back
            if tensor.device.type != "cpu":
                self.engine.prune()  # of what was compiled for them while they were here
                raise OVBackendError(f"the weight {name} is on {tensor.device}; only weights in the host's memory can be bound")

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.statistics.fall_back(self.name, str(error))
        if self.engine.settings.fallback == "raise":
            raise error
        return self.plain(*args, **kwargs)

    def _compute(self, ready: Ready, call: Call) -> list[torch.Tensor]:
        rehearsed = rehearsal.blank(ready.program, call.tensors)
        if rehearsed is not None:
            return rehearsed
        with self.statistics.time("infer"):
            return ready.program(call.tensors)

    def _ready(self, call: Call, interrupted: jobs.Interruption | None) -> Ready:
        interrupted = rehearsal.interruption() or interrupted
        for _ in range(_MAX_TRIES):
            self._wait_for_capture(interrupted)
            with self._lock, self.statistics.time("check"):
                graph_key, compiled_key = self._keys(call)
                ready: Ready | None = self.engine.compiled.get(compiled_key)
                if ready is not None:
                    return ready
                order = self._order(call, graph_key, compiled_key)
            with contextlib.suppress(Outdated):
                made: Ready = self.engine.jobs.run(compiled_key, functools.partial(making.make, self, order), interrupted)
                return made
        raise OVBackendError("its weights or its code keep changing while it is being compiled")

    def _wait_for_capture(self, interrupted: jobs.Interruption | None) -> None:
        while self._capturing.locked():
            if interrupted is not None and interrupted():
                raise Interrupted("interrupted while a network was being captured; that goes on in the background")
            time.sleep(jobs.POLL_S)

    def _keys(self, call: Call) -> tuple[Hashable, Hashable]:
        """The key of the graph (no weights in it) and the key of its compiled form (weights and device in it)."""
        if self._weights is None or self._code is None:
            self._weights, self._code = WeightsState(self.module, self.ignore), CodeState(self.module, self.ignore)
            self._function = function_fingerprint(self.forward)
        elif not self._code.check():
            self._weights.refresh()  # there may be tensors where there were none
        else:
            self._weights.check()
        settings = self._settings()
        host, weights = self.host_key(), self._weights
        affecting = repr(settings.affecting("graph"))
        graph_key = (self._function, call.signature, self._code.fingerprint, weights.layout, host, affecting)
        compile_settings = repr(settings.affecting("compile"))
        return graph_key, (self.name, call.signature, graph_key, weights.digest, weights.address, compile_settings)

    def _order(self, call: Call, graph_key: Hashable, compiled_key: Hashable) -> Order:
        weights, code = self._weights, self._code
        assert weights is not None
        assert code is not None
        settings = self._settings()
        cache_key = None
        if self._keyed_by_code:
            cache_key = graphs.key(
                f"{code.fingerprint} {self._function}",
                (call.signature.tensors, call.signature.statics),
                [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in weights.tensors.items()],
                settings,
                self.host_key(),
            )
        autocast = torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
        return Order(
            call=call,
            graph_key=graph_key,
            compiled_key=compiled_key,
            cache_key=cache_key,
            weights=weights.tensors,
            settings=settings,
            code=code.fingerprint,
            digest=weights.digest,
            generation=weights.generation,
            epoch=self.engine.epoch,
            autocast=autocast,
        )

    def _settings(self) -> Settings:
        """The engine's settings, in f32 for weights that overflowed in less."""
        settings = self.engine.settings
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
