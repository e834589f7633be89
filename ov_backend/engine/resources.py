"""Resources that the networks of an engine share: settings, the graph store, compiled graphs, the worker."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ov_backend.core import devices
from ov_backend.core.errors import called_back, pass_on_signals
from ov_backend.core.settings import Settings
from ov_backend.engine.ahead.ahead import AheadWorker
from ov_backend.engine.ahead.history import History, Run
from ov_backend.engine.arenas import Arenas
from ov_backend.engine.known_texts import KnownTexts
from ov_backend.engine.request import CompiledEntry, CompiledKey
from ov_backend.engine.stats import NetworkStats
from ov_backend.engine.traced_codes import TracedCodes
from ov_backend.engine.worker import Interruption, Worker
from ov_backend.guards.signature import Signature
from ov_backend.int8.recipes import Recipes
from ov_backend.memory.eviction import CountLRU, MemoryLRU, budget_bytes
from ov_backend.memory.low_memory import LowMemory
from ov_backend.memory.pressure import Pressure
from ov_backend.model import compiler
from ov_backend.model.compiler import Compilation, Compiler
from ov_backend.model.transformations.convert_precision import WeightBuffer
from ov_backend.store.store import GraphStore
from ov_backend.trace.capture.trace import Captured

#: Called as ``progress(network, stage, signature)`` when a stage begins, and with "ready" at the end, also of a failure: "read"
#: in the thread of a network's first call, then "capture", "convert" and "compile" in the worker's thread.
Progress = Callable[[str, str, Signature], None]

#: ``convert(network, captured, compiler)``, where the compiler is of the captured graph.
Convert = Callable[[str, Captured, Compiler], Compilation]


def _convert(network: str, captured: Captured, compiler: Compiler) -> Compilation:
    return compiler.compile()


#: Number of weightless programs kept in memory (some 20 MB each for a Stable Diffusion UNet); the disk has the others.
MAX_PROGRAMS = 8


@dataclass(eq=False, repr=False)
class Resources:
    """Shared by all networks of an engine.

    Attributes:
        settings: for everything compiled from now on.
        interrupted: polled while a call waits for a compile; once it returns true, the call raises ``Interrupted``.
        programs: weightless programs, by their texts.
        keeps_unloaded: whether what is compiled survives its model, within the budget, in case an equal model is loaded;
            otherwise it goes with the model.
        convert: lowers and converts a captured graph of a network; a report looks at the result.
        compiles: how many times a network was compiled, also those of models that are no longer loaded.
        last: name of the network that was called last.
        encodings: how many times a text encoder was called.
        pictures: how many pictures have begun, as far as a host has said so.
        epoch: increased by :meth:`clear`; results of compiles that began before are dropped.
    """

    settings: Settings = field(default_factory=Settings)
    progress: Progress | None = None
    store: GraphStore | None = None
    interrupted: Interruption | None = None
    worker: Worker = field(default_factory=Worker)
    networks: dict[str, Any] = field(default_factory=dict)
    codes: TracedCodes = field(default_factory=TracedCodes)
    texts: KnownTexts = field(default_factory=KnownTexts)
    low_memory: LowMemory = field(default_factory=LowMemory)
    arenas: Arenas = field(default_factory=Arenas)
    keeps_unloaded: bool = False
    recipes: Recipes = field(default_factory=Recipes)
    convert: Convert = _convert
    compiles: int = 0
    last: str = ""
    encodings: int = 0
    pictures: int = 0
    in_run: bool = False
    run: Run | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        """Check the device now, so that a wrong one raises here and does not cause a fallback at every call."""
        devices.check(self.settings)
        self._evicting = False
        self._is_ending = sys.is_finalizing  # at the end the names of this module are gone
        self._history: History | None = None
        #: Compiles in the background what calls will need.
        self.ahead = AheadWorker(self.worker)
        self.compiled = MemoryLRU(self.settings.memory_mb)
        self.pressure = Pressure(self.compiled)
        self.programs = CountLRU(MAX_PROGRAMS)
        if self.store is None and self.settings.model_caching:
            self.store = compiler.open_store(self.settings)
        self._open_beside_store()

    def _open_beside_store(self) -> None:
        self.recipes.open(None if self.store is None else self.store.folder)
        self.texts.open(self.store)

    def configure(self, settings: Settings) -> None:
        """Change the settings, if they are right; graphs compiled for the previous ones are kept, in case these return."""
        devices.check(settings)
        self.settings = settings
        self.compiled.budget = budget_bytes(settings.memory_mb)
        self.compiled.shrink()
        self.store = compiler.open_store(settings) if settings.model_caching else None
        self._open_beside_store()

    @property
    def history(self) -> History | None:
        """The runs that are remembered beside the graphs; None without a store that can be used."""
        if self.store is None or self.store.problem():
            return None
        if self._history is None or self._history.graphs is not self.store:
            self._history = History(self.store)
        return self._history

    def report(self, network: str, stage: str, signature: Signature) -> None:
        """Call ``progress``, if there is one."""
        if self.progress is not None:
            called_back(self.progress, network, stage, signature)

    def counts(self, name: str, statistics: NetworkStats) -> dict[str, Any]:
        """Counts and seconds of a network, and its signatures that are compiled now."""
        entries = {key: entry for key in self.compiled if isinstance(key, CompiledKey) and (entry := self.compiled.peek(key))}
        own = {key: entry for key, entry in entries.items() if entry.value.network == name}
        sizes = [entry.bytes for entry in own.values()]
        return {
            **statistics.as_dict(),
            "signatures": sorted({str(entry.value.signature) for entry in own.values()}),
            "held": len(sizes),
            "bytes": sum(sizes),
        }

    def is_compiled(self, key: CompiledKey) -> bool:
        """Whether there is a compiled graph under a key."""
        return any(self.compiled.peek(each) is not None for each in (key.anywhere(), key))

    def converted(self, key: CompiledKey) -> list[WeightBuffer]:
        """What compiled graphs hold of a key's weights in the type that a device computes in; each lies where it did then."""
        made_of = key.weights, key.address
        entries = [entry.value for key in self.compiled if (entry := self.compiled.peek(key)) is not None]
        programs = [each.program for each in entries if (each.weights, each.address) == made_of and each.unverified is None]
        return [buffer for program in programs for part in program.parts.values() for buffer in part.buffers]

    def evict_dead(self) -> int:
        """Evict graphs compiled for weights that no longer exist, unless they are kept for the next; returns their number.

        One that owns all that it reads serves weights that have moved. This happens before every compile; a host that drops a
        model can call it at once.
        """
        for network in list(self.networks.values()):
            network.release()
        keeps = self.keeps_unloaded

        def is_dead(_: object, entry: CompiledEntry) -> bool:
            return not (keeps or entry.placement.lives()) if entry.program.owns else not entry.placement.exists()

        return self.compiled.evict(is_dead)

    def compiling(self, weights: Mapping[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """In this block weights are compiled; where memory is short, they and those of other networks are offloaded before."""
        tensors = list(weights.values())
        if not self.low_memory.is_wanted(self.settings, sum(tensor.nbytes for tensor in tensors)):
            return contextlib.nullcontext()
        return self.low_memory.during_compile(self.settings, [*tensors, *self._weights_of_others()])

    def offload_weights(self, entry: CompiledEntry) -> None:
        """Where memory is short, give the weights back that a compiled graph was made of and reads no more."""
        tensors = entry.placement.alive()
        if entry.program.owns and self.low_memory.is_wanted(self.settings, 0):
            self.low_memory.offload_weights(self.settings, tensors)

    def _weights_of_others(self) -> list[torch.Tensor]:
        entries = (entry.value for key in self.compiled if (entry := self.compiled.peek(key)) is not None)
        return [tensor for entry in entries if entry.program.owns for tensor in entry.placement.alive()]

    def leave_last(self, name: str) -> None:
        """A network of this name is called. If it decodes a picture, the recipe for int8 of the one before can be made."""
        self.encodings += name.startswith("text_encoder")
        last = self.networks.get(self.last)
        if last is not None and self.last != name and name.startswith("vae"):
            last.leave()

    def evict_dead_soon(self) -> None:
        """Call :meth:`evict_dead` in a thread of its own; for callbacks, which run while any thread holds any lock."""
        if self._evicting or self._is_ending():  # then a thread would never begin, and Python 3.11 would wait for it
            return
        self._evicting = True
        try:
            threading.Thread(target=self._evict_dead, name="ov_backend evict", daemon=True).start()
        except RuntimeError as error:  # the interpreter ends
            self._evicting = False
            pass_on_signals(error)

    def _evict_dead(self) -> None:
        self._evicting = False  # what is deleted from here on starts another thread
        self.evict_dead()

    def clear(self) -> None:
        """Evict everything and clear the state of all networks; the results of running compiles are dropped."""
        self.epoch += 1
        self.ahead.cancel()
        self.compiled.evict(lambda key, entry: True)
        self.programs.clear()
        self.codes.clear()
        self.texts.clear()
        self.recipes.clear()
        for network in list(self.networks.values()):
            network.clear()
