"""What is missing for a call is made here, in the engine's worker: load or capture, convert, bind, compile.

What is to be made is written down first, as an :class:`Order`; by the time it is done the world may have moved on (the
caller was interrupted, a LoRA came), and then the result is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ov_backend.cache import blobs as blob_cache
from ov_backend import compiler as graphs
from ov_backend.cache import memory
from ov_backend.cache.blobs import Blob
from ov_backend.cache.key import CacheKey
from ov_backend.conversion.converter import Graph, Unconverted
from ov_backend.errors import ConversionError, OVBackendError
from ov_backend.runtime.program import CompiledProgram, Program
from ov_backend.settings import Settings
from ov_backend.guards.signature import Call, TensorSpec
from ov_backend.guards.pytree import Spec
from ov_backend.guards.weights import Placement

if TYPE_CHECKING:
    from ov_backend.engine.network import Network

log = logging.getLogger(__name__)


class Outdated(Exception):
    """Weights or code changed while something was made of them."""


@dataclass(frozen=True)
class Order:
    """One thing to be made, as the world was when it was asked for.

    Attributes:
        call: the call that needs it.
        graph_key: of the graph, which no weight is in.
        compiled_key: of its compiled form.
        cache_key: of the graph on disk, or None: by the text of the graph.
        weights: the live weights.
        settings: of this compile.
        code: fingerprint of the module's code.
        digest: of the weights' content.
        generation: of the weights' state.
        epoch: of the engine; it grows when everything is cleared.
        autocast: PyTorch's mode in the caller's thread, None where it is off.
    """

    call: Call
    graph_key: Hashable
    compiled_key: Hashable
    cache_key: CacheKey | None
    weights: Mapping[str, torch.Tensor]
    settings: Settings
    code: str
    digest: str
    generation: int
    epoch: int
    autocast: torch.dtype | None


@dataclass(frozen=True)
class Ready:
    """A program that runs, how to make a call's result from its flat outputs, and where its weights lie."""

    program: CompiledProgram
    output: Spec
    placement: Placement


def make(network: Network, order: Order) -> Ready:
    """Make what was ordered and put it where later calls find it.

    Raises:
        OVBackendError: it cannot be made; it is not tried again for the same key.
        Outdated: the weights or the code are other ones by now.
    """
    engine = network.engine
    try:
        network.refuse_again(order)
        held: Ready | None = engine.compiled.get(order.compiled_key)
        if held is not None:  # another caller's job, that ended between this one's look and its order
            return held
        ready, size = _compile(network, order, *_program(network, order))
        if not network.is_current(order):
            raise Outdated
        if engine.epoch == order.epoch:
            engine.compiled.put(order.compiled_key, ready, size)
        return ready
    finally:
        network.report("ready", order.call)


def _program(network: Network, order: Order) -> tuple[Program, Spec]:
    found = network.engine.programs.get(order.graph_key)
    if found is None:
        try:
            found = _load(network, order) or _capture(network, order)
        except OVBackendError as error:
            network.refused[order.graph_key] = bare(error)
            raise
        if network.engine.epoch == order.epoch:
            network.engine.programs.put(order.graph_key, found)
    return found


def _load(network: Network, order: Order) -> tuple[Program, Spec] | None:
    store = network.engine.store
    if store is None or order.cache_key is None:
        return None
    with network.statistics.time("load"):
        found = graphs.load(store, order.cache_key)
    if found is None:
        return None
    if not _fits(found, order):
        log.warning("Ignoring a stored graph of %s: it is of another call than its name says. It is made anew.", network.name)
        store.remove(str(order.cache_key))
        return None
    network.statistics.graph_hits += 1
    return graphs.as_program(found), found.extra["result"]


def _fits(graph: Graph, order: Order) -> bool:
    """Whether a stored graph takes the inputs and weights that are there, and says what its result is."""
    weights = {name: TensorSpec.of(name, tensor) for name, tensor in order.weights.items()}
    slots = all(weights.get(spec.name) == spec for spec in graph.slots)
    return slots and graph.inputs == order.call.signature.tensors and isinstance(graph.extra.get("result"), dict)


def _capture(network: Network, order: Order) -> tuple[Program, Spec]:
    call = order.call
    names = [spec.name for spec in call.signature.tensors]
    network.report("capture", call)
    autocast = torch.autocast("cpu", dtype=order.autocast or torch.bfloat16, enabled=order.autocast is not None)
    with network.statistics.time("capture"), network.capturing(), autocast:
        captured = network.capture(network.module, network.forward, order.weights, names, call.tensors, call.arguments)
    if not network.is_current(order, weights=False):
        raise Outdated  # the graph may be of either code: it must not be kept under the key of one
    network.statistics.captures += 1
    network.report("convert", call)
    with network.statistics.time("convert"):
        key = None if captured.baked else order.cache_key
        extra = {"result": captured.output}
        store = network.engine.store
        if captured.again is not None:
            program = graphs.build_dynamic(captured, order.settings, store)
        else:
            program = graphs.build(captured.gm, captured.slots, captured.inputs, order.settings, store, key, extra)
    return program, captured.output


def bare(error: OVBackendError) -> OVBackendError:
    """The same error without a traceback, whose frames would keep tensors alive."""
    kind = ConversionError if isinstance(error, Unconverted) else type(error)
    return kind(str(error))


def _compile(network: Network, order: Order, program: Program, output: Spec) -> tuple[Ready, int]:
    network.report("compile", order.call)
    network.engine.prune()
    try:
        compiled, size = memory.measured(lambda: _with_room(network, order, program))
    except RuntimeError as error:  # OpenVINO's own errors are RuntimeErrors
        lines = str(error).strip().splitlines() or ["no message"]
        refused = OVBackendError(f"OpenVINO could not compile it: {lines[-1].strip()}")
        network.refused[order.compiled_key] = refused
        raise refused from error
    timings = compiled.timings
    network.statistics.made(timings.bind, timings.compile, timings.imported)
    network.statistics.coverage = dict(compiled.coverage.in_pytorch)
    return Ready(compiled, output, Placement.of(order.weights)), size


def _with_room(network: Network, order: Order, program: Program) -> CompiledProgram:
    """Compile; where that takes more memory than there is, once more without anything else held."""
    kept = _kept(network, order, program)
    try:
        return program.compile(order.weights, order.settings, kept)
    except (MemoryError, RuntimeError):
        if not network.engine.compiled.drop(lambda key, ready: True):
            raise
        return program.compile(order.weights, order.settings, kept)


def _kept(network: Network, order: Order, program: Program) -> Callable[[str], Blob] | None:
    """Where a program's compiled form is kept, if it is: not where it is split, as the parts' names are no one's for sure."""
    store = network.engine.store
    if store is None or program.outer is not None or not blob_cache.wanted(order.settings):
        return None
    blobs = blob_cache.open_blobs(order.settings, store.folder)
    version = str(torch.__version__)
    return lambda part: blob_cache.blob(blobs, order.graph_key, part, order.digest, order.settings, version)
