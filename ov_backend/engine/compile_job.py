"""One job of the engine's worker: load or capture a graph, convert it, bind weights, compile.

The request was written down when a call asked for it. By the time the job is done the world may have moved on (the caller was
interrupted, a LoRA came); then the result is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from ov_backend import compiler
from ov_backend.cache import blobs, memory
from ov_backend.cache.key import CacheKey, differing_ingredients
from ov_backend.capture.trace import Captured
from ov_backend.conversion.model import UnsupportedNodes, WeightlessModel
from ov_backend.engine.request import CompiledEntry, CompileRequest, Superseded
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.errors import ConversionError, OVBackendError
from ov_backend.guards.pytree import Spec
from ov_backend.guards.weights import Placement
from ov_backend.runtime.program import CompiledProgram, Program
from ov_backend.tensors import TensorSpec

log = logging.getLogger(__name__)


class Refusals:
    """What cannot be compiled, by key of graph or compiled form; it is not tried again."""

    def __init__(self) -> None:
        self._errors: dict[Hashable, OVBackendError] = {}

    def add(self, key: Hashable, error: OVBackendError) -> None:
        """Remember why something cannot be compiled; without its traceback, whose frames would keep tensors alive."""
        kind = ConversionError if isinstance(error, UnsupportedNodes) else type(error)
        self._errors[key] = kind(str(error))

    def check(self, *keys: Hashable) -> None:
        """Raise what was raised before for one of these keys."""
        for key in keys:
            if key in self._errors:
                error = self._errors[key]
                raise type(error)(str(error))

    def __len__(self) -> int:
        return len(self._errors)

    @property
    def errors(self) -> list[OVBackendError]:
        """All of them."""
        return list(self._errors.values())

    def clear(self) -> None:
        """Forget all of them, so that everything is tried again."""
        self._errors.clear()


@dataclass
class JobContext:
    """What a job needs to know of the network that it works for.

    Attributes:
        name: of the network.
        stats: counts and seconds.
        capture: traces the requested call.
        is_current: whether the code, and if asked the weights, are still those of a request.
        refusals: what cannot be compiled.
        last_key: the key on disk that was asked for last, to say in the log in what a missing one differs.
    """

    name: str
    stats: NetworkStats
    capture: Callable[[CompileRequest], Captured]
    is_current: Callable[[CompileRequest, bool], bool]
    refusals: Refusals = field(default_factory=Refusals)
    last_key: CacheKey | None = None


@dataclass(frozen=True)
class CompileJob:
    """Compiles what a request asks for and puts it where later calls find it."""

    resources: Resources
    request: CompileRequest
    context: JobContext

    def run(self) -> CompiledEntry:
        """Compile.

        Raises:
            OVBackendError: it cannot be compiled; it is not tried again for the same key.
            Superseded: the weights or the code are other ones by now.
        """
        resources, request = self.resources, self.request
        try:
            self._check_refusals()
            entry: CompiledEntry | None = resources.compiled.get(request.compiled_key)
            if entry is not None:  # of another caller's job, which ended between this caller's lookup and its request
                return entry
            entry, size = self._compile(*self._program())
            if not self.context.is_current(request, True):
                raise Superseded
            if resources.epoch == request.epoch:
                resources.compiled.put(request.compiled_key, entry, size)
            return entry
        finally:
            self._report("ready")

    def _report(self, stage: str) -> None:
        self.resources.report(self.context.name, stage, self.request.call.signature)

    def _check_refusals(self) -> None:
        self.context.refusals.check(self.request.graph_key, self.request.compiled_key)
        for name, tensor in self.request.weights.items():  # no refusal for good: they may come back
            if tensor.device.type != "cpu":
                self.resources.evict_dead()  # what was compiled for them while they were here
                raise OVBackendError(f"the weight {name} is on {tensor.device}; only weights in the host's memory can be bound")

    def _program(self) -> tuple[Program, Spec]:
        resources, key = self.resources, self.request.graph_key
        program: tuple[Program, Spec] | None = resources.programs.get(key)
        if program is None:
            try:
                program = self._load() or self._capture()
            except OVBackendError as error:
                self.context.refusals.add(key, error)
                raise
            if resources.epoch == self.request.epoch:
                resources.programs.put(key, program)
        return program

    def _load(self) -> tuple[Program, Spec] | None:
        store, key, context = self.resources.store, self.request.cache_key, self.context
        if store is None or key is None:
            return None
        with context.stats.time("load"):
            model = compiler.load(store, key)
        if model is None:
            if context.last_key is not None:
                differing = ", ".join(differing_ingredients(context.last_key, key)) or "nothing: it was removed"
                log.debug("%s has no stored graph; its key differs from the last one in %s", context.name, differing)
            context.last_key = key
            return None
        context.last_key = key
        if not self._fits(model):
            log.warning("Ignoring a stored graph of %s: it is of another call than its name says. It is made anew.", context.name)
            store.remove(str(key))
            return None
        context.stats.graph_hits += 1
        return Program.single(model), model.extra["result"]

    def _fits(self, model: WeightlessModel) -> bool:
        """Whether a stored graph takes the inputs and weights that are there, and says what its result is."""
        weights = {name: TensorSpec.of(name, tensor) for name, tensor in self.request.weights.items()}
        slots = all(weights.get(spec.name) == spec for spec in model.slots)
        return slots and model.inputs == self.request.call.signature.tensors and isinstance(model.extra.get("result"), dict)

    def _capture(self) -> tuple[Program, Spec]:
        request, stats = self.request, self.context.stats
        self._report("capture")
        autocast = torch.autocast("cpu", dtype=request.autocast or torch.bfloat16, enabled=request.autocast is not None)
        with stats.time("capture"), autocast:
            captured = self.context.capture(request)
        if not self.context.is_current(request, False):
            raise Superseded  # the graph may be of either code: it must not be kept under the key of one
        stats.captures += 1
        self._report("convert")
        key = None if captured.unlifted else request.cache_key
        extra = {"result": captured.output} if key is not None else None
        with stats.time("convert"):
            compiled = compiler.Compiler(captured, request.settings, self.resources.store, key, extra).compile()
        return compiled.program, captured.output

    def _compile(self, program: Program, output: Spec) -> tuple[CompiledEntry, int]:
        self._report("compile")
        self.resources.evict_dead()
        try:
            compiled, size = memory.measured(lambda: self._with_all_memory(program))
        except RuntimeError as error:  # OpenVINO's own errors are RuntimeErrors
            lines = str(error).strip().splitlines() or ["no message"]
            refused = OVBackendError(f"OpenVINO could not compile it: {lines[-1].strip()}")
            self.context.refusals.add(self.request.compiled_key, refused)
            raise refused from error
        stats = self.context.stats
        stats.compiled(compiled.timings)
        stats.coverage = dict(compiled.coverage.in_pytorch)
        return CompiledEntry(compiled, output, Placement.of(self.request.weights)), size

    def _with_all_memory(self, program: Program) -> CompiledProgram:
        """Compile; where that takes more memory than there is, once more with every other compiled graph evicted."""
        blob_entry = self._blob_entry(program)
        try:
            return program.compile(self.request.weights, self.request.settings, blob_entry)
        except (MemoryError, RuntimeError):
            if not self.resources.compiled.evict(lambda key, entry: True):
                raise
            return program.compile(self.request.weights, self.request.settings, blob_entry)

    def _blob_entry(self, program: Program) -> Callable[[str], blobs.Blob] | None:
        """Where the compiled form is on disk, if it is kept: not that of a split program, whose parts have no sure names."""
        store, request = self.resources.store, self.request
        if store is None or program.outer is not None or not blobs.wanted(request.settings):
            return None
        blob_store = blobs.open_blobs(request.settings, store.folder)
        version = str(torch.__version__)
        return lambda part: blobs.blob(blob_store, request.graph_key, part, request.digest, request.settings, version)
