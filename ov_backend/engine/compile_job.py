"""A job of the engine's worker: capture a graph, load its program or convert it, bind weights, compile.

A program is known by its text, which a trace tells. Beside the trace, what such calls have led to last is compiled. A request
records the state at the time of the call. Weights or code may have changed when the job is done (a LoRA was applied,
for example); then the request is superseded, and its result is dropped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from ov_backend.core import devices, garbage
from ov_backend.core.autocast_regions import keeping
from ov_backend.core.errors import DeviceError, OVBackendError, as_failure, is_of_callback, last_line, pass_on_signals
from ov_backend.core.tensors import TensorSpec
from ov_backend.engine.ahead.guess import Guess
from ov_backend.engine.compile_memory import CompileMemory
from ov_backend.engine.request import CompiledEntry, CompiledKey, CompileRequest, Group, Refusals, Superseded
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards import autocast
from ov_backend.guards.signature import Call
from ov_backend.guards.weights import Placement
from ov_backend.memory.pressure import relieve_mappings
from ov_backend.model import compiler
from ov_backend.model.conversion.model import WeightlessModel
from ov_backend.model.runtime.program import CompiledProgram, Program
from ov_backend.store import blobs
from ov_backend.store.store import open_blobs
from ov_backend.trace.capture.trace import Captured

log = logging.getLogger(__name__)


@dataclass
class JobContext:
    """What a job needs of its network.

    ``lookup`` gives the compiled graph of a request, if there is one by now. ``capture`` traces the requested call; it also
    returns the request with the keys of the code that ran. ``is_current(request, weights)`` says whether the code, and if asked
    the weights, are still those of a request.
    """

    name: str
    stats: NetworkStats
    lookup: Callable[[CompileRequest], CompiledEntry | None]
    capture: Callable[[CompileRequest], tuple[Captured, CompileRequest]]
    is_current: Callable[[CompileRequest, bool], bool]
    refusals: Refusals = field(default_factory=Refusals)
    group: Group | None = None

    def report(self, resources: Resources, stage: str, call: Call) -> None:
        """Say that a stage of preparing a call begins, or that all are over ("ready"); the user knows no blocks."""
        resources.report(self.name, stage, self.group.signature if self.group is not None else call.signature)


@dataclass
class CompileJob:
    """Compiles what a request asks for, and puts the result where later calls look it up."""

    resources: Resources
    request: CompileRequest
    context: JobContext
    began: bool = False
    #: Whether a call waits for it; else no stage is reported, and nothing is compiled beside the trace.
    for_call: bool = True
    #: What is compiled beside the trace, and the key that this will have.
    _guess: Guess | None = None
    _guessed_key: CompiledKey | None = None

    @property
    def memory(self) -> CompileMemory:
        """The memory for what the request asks for now."""
        return CompileMemory(self.resources, self.request)

    def run(self) -> CompiledEntry:
        """Compile.

        Raises:
            OVBackendError: it cannot be compiled; it is not tried again for the same key.
            DeviceError: the process has no memory mappings left for it; it is tried again.
            Superseded: the weights or the code have changed since the request.
        """
        try:
            return self._run()
        except (OVBackendError, Superseded):
            raise
        except Exception as error:  # in the worker's thread, and what the forward raises is a CaptureError
            if is_of_callback(error):
                raise
            raise as_failure(error) from error

    def _run(self) -> CompiledEntry:
        resources, self.began = self.resources, True
        try:
            self.check_refusals()
            entry = self._compiled_already()
            if entry is not None:  # another caller's job ended between this caller's lookup and its request
                return entry
            relieve_mappings(resources.compiled)
            program = self._program()
            entry, size = self._compiled_already(), None
            if entry is None:
                if not self.context.is_current(self.request, True):
                    raise Superseded
                entry, size = self._guessed() or self._compile(program)
            if not self.context.is_current(self.request, True):
                raise Superseded
            if size is not None and resources.epoch == self.request.epoch:
                self.put(entry, size)
            return entry
        finally:
            self._report("ready")

    def trace(self) -> None:
        """Only trace, so that the text is known when a call needs it."""
        self.check_refusals()
        self._program()

    def put(self, entry: CompiledEntry, size: int) -> None:
        """Put a result where later calls look it up."""
        key, timings = self.request.compiled_key, entry.program.timings
        seconds = timings.bind + timings.compile + timings.imported
        self.resources.compiled.put(key.anywhere() if entry.program.owns else key, entry, size, self.context.group, seconds)
        self.resources.pressure.watch()

    def _report(self, stage: str) -> None:
        if self.for_call:
            self.context.report(self.resources, stage, self.request.call)

    def check_refusals(self) -> None:
        """Raise if this cannot be compiled, as is known."""
        self.context.refusals.check(self.request.state, self.request.compiled_key)
        for name, tensor in self.request.weights.items():  # not recorded as a refusal: the weights may move back
            if tensor.device.type != "cpu":
                self.resources.evict_dead()  # graphs compiled for the memory that the weights have left
                raise OVBackendError(f"the weight {name} is on {tensor.device}; only weights in the host's memory can be bound")

    def _program(self) -> Program:
        """The program; the text of the request is known afterwards."""
        resources = self.resources
        is_known = self.request.output is not None
        program: Program | None = resources.programs.get(self.request.text) if is_known else None
        if program is None:
            try:
                with garbage.paused():
                    program = (self.load() if is_known else None) or self._trace()
            except OVBackendError as error:
                self.context.refusals.add(self.request.state, error)
                raise
            if resources.epoch == self.request.epoch:
                resources.programs.put(self.request.text, program, self.context.group)
        return program

    def load(self, is_guessed: bool = False) -> Program | None:
        """The program from the store, or None; also where the text is not known, or is a guess that does not fit."""
        store, text, context = self.resources.store, self.request.text, self.context
        if store is None or not text:
            return None
        with context.stats.time("load"):
            model = compiler.load(store, text)
        if model is None:
            return None
        if not self._fits(model):
            if is_guessed:
                return None
            log.warning("Ignoring a stored graph of %s: it does not fit this call. It will be captured again.", context.name)
            store.remove(text)
            return None
        context.stats.graph_hits += not is_guessed
        return Program.single(model, text)

    def _fits(self, model: WeightlessModel) -> bool:
        """Whether a stored graph fits the request's inputs and weights."""
        weights = {name: TensorSpec.of(name, tensor) for name, tensor in self.request.weights.items()}
        slots = all(weights.get(spec.name) == spec for spec in model.slots)
        return slots and model.inputs == self.request.call.signature.tensors

    def _trace(self) -> Program:
        """Trace the call; then the program is looked up by its text, or made."""
        resources, stats, dtype = self.resources, self.context.stats, self.request.autocast
        self._begin_guess()
        self._report("capture")
        taken_over = autocast.taken_over(self.request.autocasts)
        with stats.time("capture"), autocast.like(dtype), taken_over, keeping(dtype is torch.float32):
            captured, self.request = self.context.capture(self.request)
        if not self.context.is_current(self.request, False):
            raise Superseded  # the graph may be of the old or the new code, and belongs to neither state for certain
        stats.captured(self.context.name, self.request.why)
        self._report("convert")
        with stats.time("convert"):
            of_graph = compiler.Compiler(captured, self.request.settings, resources.store, self.context.name, self._known)
            self.request = self.request.led_to(of_graph.key, captured.output)
            compiled = resources.convert(self.context.name, captured, of_graph)
            if resources.epoch == self.request.epoch:
                resources.texts.note(self.request.state, self.request.kind, self.request.text, captured.output)
        return compiled.program

    def _begin_guess(self) -> None:
        """Begin to compile beside the trace what such calls have led to last, if there is memory for it beside the others."""
        text = "" if self.request.text else self.resources.texts.last(self.request.kind)
        request = self.request.led_to(text)
        key, resources = request.compiled_key, self.resources
        if not (text and self.for_call and self._guess is None) or resources.is_compiled(key) or key in resources.ahead:
            return
        resources.evict_dead()
        if self.memory.fits_beside_others():
            job = replace(self, request=request, _guess=None)
            load = partial(job.load, is_guessed=True)
            with contextlib.suppress(RuntimeError):  # the process may begin no more threads: the compile comes after the trace
                self._guess = Guess(load, lambda program, bound: job.memory.measured(lambda: job.compile(program, bound)))
                self._guessed_key = key

    def _known(self) -> Program | None:
        """The program of the text that a trace has told: from memory, from the guess, or from the store."""
        known: Program | None = self.resources.programs.get(self.request.text)
        if known is None and self._guess is not None and self._guessed_key == self.request.compiled_key:
            known = self._guess.program
            self.context.stats.graph_hits += known is not None
        return known or self.load()

    def _compiled_already(self) -> CompiledEntry | None:
        """What was compiled before: for another call, for another state of the code, or ahead."""
        ahead = self.resources.ahead.claim(self.request.compiled_key)
        if ahead is not None:
            self._report("compile")
            ahead.wait()
        entry = self.context.lookup(self.request)
        if entry is not None:
            entry.output = entry.output or self.request.output
        return entry

    def _guessed(self) -> tuple[CompiledEntry, int] | None:
        """What was compiled beside the trace, if it is what the trace has led to."""
        if self._guess is None or self._guessed_key != self.request.compiled_key:
            return None  # the trace has led elsewhere, or the weights that count are others
        self._report("compile")
        made = self._guess.made()
        return None if made is None else (self.entry(made[0]), made[1])

    def _compile(self, program: Program) -> tuple[CompiledEntry, int]:
        self._report("compile")
        garbage.collect(short=self.memory.is_short())
        self.resources.evict_dead()
        try:
            with self.resources.compiling(self.request.weights):
                self.memory.evict_others(self.context.name)
                compiled, size = self.memory.measured(lambda: self.memory.retried_alone(lambda: self.compile(program)))
        except RuntimeError as error:  # OpenVINO's own errors are RuntimeErrors
            pass_on_signals(error)
            kind = OVBackendError if devices.accepts_properties(self.request.settings) else DeviceError
            refused = kind(f"OpenVINO could not compile it: {last_line(error)}")
            self.context.refusals.add(self.request.compiled_key, refused)
            raise refused from error
        return self.entry(compiled), size

    def entry(self, compiled: CompiledProgram) -> CompiledEntry:
        """The result of a compile, which is counted."""
        stats = self.context.stats
        stats.compiled(compiled.timings)
        self.resources.compiles += not compiled.timings.imported
        stats.in_pytorch = dict(compiled.coverage.in_pytorch)
        placement = Placement.of(self.request.weights, self.resources.evict_dead_soon)
        request = self.request
        return CompiledEntry(
            compiled,
            request.output,
            request.compiled_key.weights,
            placement,
            self.context.name,
            form=request.form.name,
            signature=request.call.signature,
            address=request.compiled_key.address,
            state=(request.compiled_key.weights, request.text, request.state.host),
        )

    def compile(self, program: Program, bound: Callable[[], object] = bool) -> CompiledProgram:
        """Bind the request's weights and compile; ``bound()`` is called in between."""
        request, held = self.request, self.resources.converted(self.request.compiled_key)
        return program.compile(request.weights, request.settings, self._blob_entry(program), request.form.rewrite, bound, held)

    def _blob_entry(self, program: Program) -> Callable[[str], blobs.Blob] | None:
        """The entries of the blob cache by subgraph; None if blobs are off, or if the program is split (its names may vary)."""
        store, request = self.resources.store, self.request
        if store is None or program.outer is not None or not blobs.enabled(request.settings):
            return None
        blob_store = open_blobs(request.settings, store.folder)
        of_request = request.compiled_key.weights, request.settings, str(torch.__version__)
        return lambda part: blobs.blob(blob_store, program.key, part, *of_request)
