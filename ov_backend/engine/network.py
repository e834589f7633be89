"""One accelerated network: a call is turned into keys, and the graph compiled for these keys answers it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ov_backend.core.errors import (
    Interrupted,
    NothingToCompute,
    OVBackendError,
    PositionOutOfRange,
    as_failure,
    is_failure,
    pass_on_signals,
)
from ov_backend.engine import worker
from ov_backend.engine.ahead import warmup
from ov_backend.engine.ahead.history import kind_of
from ov_backend.engine.capturing import Capturing
from ov_backend.engine.conditions import check_derivatives, check_modes, check_process, has_finite_inputs, is_finite
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8.low_precision import LowPrecision
from ov_backend.engine.int8.precision import Precision
from ov_backend.engine.int8.step_tape import Recorder, paused
from ov_backend.engine.lookup import Lookup
from ov_backend.engine.number_arguments import NumberArguments
from ov_backend.engine.preparing import Preparing
from ov_backend.engine.request import CompiledEntry
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards import autocast
from ov_backend.guards.checksums import Readings
from ov_backend.guards.signature import Binder, Call, Signature

log = logging.getLogger(__name__)


class Network:
    """One module whose forward is answered by OpenVINO.

    Networks that count as one share their statistics, and those that are read as one the readings of weights. ``precision`` is
    the int8 of the network whose block this is.
    """

    def __init__(
        self,
        resources: Resources,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        hooks: NetworkHooks,
        statistics: NetworkStats | None = None,
        readings: Readings | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.resources, self.name, self.module, self.forward, self.hooks = resources, name, module, forward, hooks
        self.statistics = NetworkStats() if statistics is None else statistics
        #: The signatures of all calls so far, with their numbers as inputs where they are.
        self.seen: set[Signature] = set()
        self._fallback = hooks.fallback or forward
        self.precision = precision or Precision(resources, name, module, hooks, self.statistics)
        self.low_precision = LowPrecision(
            self.precision,
            compiled=lambda call: self._lookup_or_compile(call, resources.interrupted),
            look=lambda call: self._preparing.find(call, False, resources.interrupted),
            of_block=precision is not None,
        )
        self._lookup = Lookup(resources, name, module, forward, hooks, self.statistics, readings, self.low_precision)
        self._numbers = NumberArguments()
        capturing = Capturing(module, forward, hooks, self._lookup, self._numbers)
        self._preparing = Preparing(resources, name, self._lookup, capturing, self.statistics)
        #: What jobs get; its group are the compiled graphs that are evicted together with this network's, where there are more.
        self.context = self._preparing.context
        self._binder = Binder(forward)
        self._pid = os.getpid()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one call by OpenVINO if possible, otherwise by the original forward.

        Raises:
            Interrupted: the resources' ``interrupted`` returned true while the network was being prepared.
        """
        if worker.inside():  # another network, which contains this one, is being traced
            return self.forward(*args, **kwargs)
        if self.hooks.watched and autocast.is_around():
            with autocast.noted():
                return self(*args, **kwargs)
        try:
            with paused() as recorder:
                result = self._answer(args, kwargs)
                if recorder is not None:
                    self._record(recorder, args, kwargs, result)
            self._lookup.answered()
            self._count()
            return result
        except Interrupted:
            raise
        except Exception as error:
            if not is_failure(error):
                raise
            log.debug("%s failed", self.name, exc_info=not isinstance(error, OVBackendError))
            failed = as_failure(error)
        try:  # after the handlers: within them the forward would find an error that is being handled
            if isinstance(failed, NothingToCompute):
                return self.forward(*args, **kwargs)
            with autocast.noted() if self.hooks.watched else contextlib.nullcontext():
                return self._fall_back(failed, args, kwargs)
        finally:
            del failed  # its traceback leads to this frame

    def _record(self, recorder: Recorder, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Another network calls this one in a step that is recorded; this one's result is given to it."""
        recorder.leaves((args, kwargs))

    def _count(self) -> None:
        self.statistics.calls += 1

    def _note(self, signature: Signature) -> None:
        if self.resources.run is not None:
            self.resources.run.note(self, signature)

    def check_conditions(self) -> None:
        """Raise for what no call can be answered under at the moment, whatever the network."""
        check_process(self._pid)
        if self.hooks.watched:
            check_modes(self.module)
        check_derivatives()

    def _answer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.check_conditions()
        call = self._call(args, kwargs)
        if not warmup.active():
            self.resources.leave_last(self.name)
            self.low_precision.make(call)
        call, entry = self._prepared(call)
        outputs = self._compute(entry, call)
        if not is_finite(outputs) and has_finite_inputs(call.tensors):
            outputs = self._compute_again(entry, call, outputs)
        elif entry.form and not warmup.active():
            self.low_precision.count(entry, call, outputs)
        if not entry.form and self.low_precision.comes_next(call):
            self.prepare_ahead(call.signature)
        self.statistics.in_f32 += entry.weights in self._lookup.overflowed
        self._note(call.signature)
        return entry.result(outputs)

    def _prepared(self, call: Call) -> tuple[Call, CompiledEntry]:
        """A call in the form in which it is compiled, and its graph: with its numbers as inputs if possible."""
        entry_of = self.low_precision.entry_of
        found = self._numbers.answered(call, entry_of) if self.hooks.watched else None
        form = call if found is None else found[0]
        self.seen.add(form.signature)
        if found is None:
            self._numbers.admit(call.signature)
        return found or (call, entry_of(call))

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Bind the arguments to the forward's parameters, and separate tensors from other values."""
        try:
            return self.hooks.generalize(self._binder(args, kwargs))
        except TypeError as error:  # the arguments do not fit, and the forward raises the right error
            pass_on_signals(error)
            raise NothingToCompute(str(error)) from error

    @property
    def is_compiling(self) -> bool:
        """Whether the job goes on that the network's last request has begun, after an interruption."""
        return self._preparing.goes_on

    def prepare(self, *args: Any, interrupted: worker.Interruption | None = None, **kwargs: Any) -> bool:
        """Compile what calls like this one need, without answering it; False if that was compiled already.

        Raises:
            Interrupted: ``interrupted()`` returned true; the compile goes on in the background.
            OVBackendError: the network cannot be compiled; such calls run in PyTorch.
        """
        self.check_conditions()
        before = self.statistics.compiles + self.statistics.blob_hits
        with contextlib.suppress(NothingToCompute):
            self._lookup_or_compile(self.hooks.generalize(self._binder(args, kwargs)), interrupted)
        return self.statistics.compiles + self.statistics.blob_hits != before

    def prepare_ahead(self, signature: Signature) -> bool:
        """Begin to compile in the background what calls of a signature will need; False if it is compiled, or not known.

        Code and weights are looked at in this thread: nobody else may change them meanwhile.
        """
        return self._ahead(lambda: self._preparing.begin(signature))

    def trace_ahead(self, signature: Signature) -> None:
        """Trace what calls of a signature will run, if it is not known to which text that leads.

        It runs the module's own code: nobody else may run or change the module meanwhile.
        """
        self._ahead(lambda: self._preparing.trace(self._binder, signature))

    def _ahead(self, work: Callable[[], bool]) -> bool:
        """Do something that no call waits for; a call would report its errors."""
        if worker.inside() or os.getpid() != self._pid:
            return False
        try:
            return work()
        except Exception as error:
            if not is_failure(error):
                raise
            log.debug("%s cannot be prepared ahead", self.name, exc_info=True)
            return False

    def is_prepared(self, signature: Signature) -> bool:
        """Whether calls of a signature find what they need compiled; nobody may change code or weights meanwhile."""
        return self._lookup.is_compiled(signature)

    def is_ready(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call like this one finds what it needs compiled."""
        with contextlib.suppress(TypeError):  # the arguments do not fit
            return self.is_prepared(self.hooks.generalize(self._binder(args, kwargs)).signature)
        return False

    @functools.cached_property
    def kind(self) -> str:
        """Names the network's architecture: its class, and names, shapes and dtypes of its weights."""
        return kind_of(self.module)

    def stats(self) -> dict[str, Any]:
        """Counts, seconds, and the signatures that are compiled now."""
        return self.resources.counts(self.name, self.statistics)

    def clear(self) -> None:
        """Clear refusals and the state of weights and code."""
        with self._lookup.lock:
            self.context.refusals.clear()
            self._numbers.clear()
            self._lookup.clear()
            self._preparing.clear()
            self.precision.clear()

    def begin_run(self) -> None:
        """A picture begins, and all weights are read again."""
        self.begin_picture()
        self.read_again()

    def read_again(self) -> None:
        """Read all weights again before the next answer, so that no write is missed whatever way it took."""
        self._lookup.begin_run()

    def begin_picture(self) -> None:
        """The host says that a picture begins; until :meth:`end_run` none begins without such a word."""
        self.precision.begin_picture()

    def end_run(self, completed: bool) -> None:
        """The host's run of calls is over; if it was not completed, a picture was interrupted, or failed."""
        if completed:
            self.low_precision.make_ahead(self.prepare_ahead)
        self.precision.end_run(completed)

    def leave(self) -> None:
        """A picture is decoded; if no host says when one is over, this is its end. In a host's run it may be a preview."""
        if not self.precision.pictures.told:
            self.low_precision.make_ahead(self.prepare_ahead)

    def release(self) -> None:
        """Release weights that the module no longer uses."""
        self._lookup.release()

    def _lookup_or_compile(self, call: Call, interrupted: worker.Interruption | None) -> CompiledEntry:
        return self._preparing.lookup_or_compile(call, interrupted)

    def _fall_back(self, error: OVBackendError, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.statistics.fall_back(self.name, str(error))
        if isinstance(error, PositionOutOfRange):
            return self.forward(*args, **kwargs)  # which raises PyTorch's own error
        if self.resources.settings.fallback == "raise":
            raise error
        return self._fallback(*args, **kwargs)

    def _compute_again(self, entry: CompiledEntry, call: Call, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Compute a call again whose result is not finite: without int8, and if that does not help in f32 from now on."""
        if entry.form.startswith("int8"):
            with self.precision.without():
                entry = self._lookup_or_compile(call, self.resources.interrupted)
                outputs = self._compute(entry, call)
            if is_finite(outputs):
                self.statistics.correct(self.name, "not finite in int8, computed again in the device's own precision")
                return outputs
        if self._lookup.overflowed.add(entry.weights):
            return self._compute(self._lookup_or_compile(call, self.resources.interrupted), call)
        return outputs

    def _compute(self, entry: CompiledEntry, call: Call) -> list[torch.Tensor]:
        if warmup.active():
            return entry.program.blank(call.tensors)
        with self.statistics.time("infer"):
            return self.resources.arenas.run(entry.program, call.tensors, is_block=self.context.group is not None)
