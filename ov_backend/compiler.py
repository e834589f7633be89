"""From a captured graph to a program, by way of the graph store: lower, partition, convert, keep, find again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ov_backend import devices
from ov_backend.conversion import converter as convert
from ov_backend.partitioning import partitioner as partition
from ov_backend.cache.key import CacheKey, cache_key
from ov_backend.capture.trace import Captured
from ov_backend.conversion.converter import Graph
from ov_backend.errors import ConversionError
from ov_backend.guards.code_hash import graph_text
from ov_backend.cache.store import GraphStore
from ov_backend.lowering import lower
from ov_backend.lowering.decompositions import REWRITTEN, chosen
from ov_backend.lowering.decompose import known, take_apart
from ov_backend.partitioning.partitioner import Coverage
from ov_backend.runtime.program import Program
from ov_backend.runtime.program import build as build_program
from ov_backend.settings import Settings
from ov_backend.guards.signature import TensorSpec

log = logging.getLogger(__name__)


def build(
    gm: GraphModule,
    slots: Sequence[str],
    inputs: Sequence[str],
    settings: Settings,
    store: GraphStore | None = None,
    whole_key: CacheKey | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Program:
    """Lower, partition and convert a captured graph, by way of the store.

    Args:
        gm: ATen graph; its placeholders are the slots, then the inputs.
        slots: names of the weights.
        inputs: names of the inputs.
        settings: what affects the graph.
        store: where graphs are kept, or None.
        whole_key: key to store the graph under if it is not split; without one, the graph's own text is the key.
        extra: kept with a graph that is stored under ``whole_key``.

    Raises:
        ConversionError: nothing of it can run in OpenVINO.
    """
    gm = lowered(gm, settings)

    def converter(part: GraphModule, part_slots: Sequence[str], part_inputs: Sequence[str], whole: bool) -> Graph:
        name = whole_key if whole and whole_key is not None else _text_key(part, part_slots, part_inputs, settings)
        found = load(store, name) if store is not None and name is not whole_key else None
        if found is not None:
            return found
        graph = converted(part, part_slots, part_inputs, settings, extra if name is whole_key else None)
        if store is not None:
            store.put(str(name), convert.dump(graph), {"ingredients": dict(name.ingredients)})
        return graph

    return build_program(gm, slots, inputs, settings, converter)


def build_dynamic(captured: Captured, settings: Settings, store: GraphStore | None = None) -> Program:
    """As :func:`build`, for a graph with symbolic sizes: all of it in OpenVINO, or nothing.

    Raises:
        ConversionError: an operator has no conversion, or a size cannot be left open.
    """
    slots, inputs, table = captured.slots, captured.inputs, dict[Any, Any]()
    gm = lower(captured.gm)
    if len(partition.operators(gm)) < settings.min_block_size:
        raise ConversionError(f"the graph is smaller than min_block_size ({settings.min_block_size})")
    name = _text_key(gm, slots, inputs, settings)
    graph = None if store is None else load(store, name)
    while graph is None:
        try:
            graph = convert.convert(gm, slots, inputs)
        except convert.Unconverted as refused:
            more = known(node.target for node in gm.graph.nodes if node.name in refused.nodes)
            if captured.again is None or not set(more) - set(table):
                raise
            table.update(more)
            gm = lower(captured.again(table))
            continue
        if store is not None:
            store.put(str(name), convert.dump(graph), {"ingredients": dict(name.ingredients)})
    return Program(None, {"": graph}, tuple(slots), partition.coverage(gm, {}))


def converted(
    part: GraphModule, slots: Sequence[str], inputs: Sequence[str], settings: Settings, extra: Mapping[str, Any] | None = None
) -> Graph:
    """Convert one partition, by way of TorchScript where the direct way has no conversion and PyTorch no decomposition.

    Raises:
        ConversionError: neither way leads to a model.
    """
    if settings.converter == "ts":
        try:
            return convert.convert(part, slots, inputs, extra, by_torchscript=True)
        except ConversionError as error:
            log.warning("%s. It is converted directly instead.", error)
    try:
        return convert.convert(part, slots, inputs, extra)
    except convert.Unconverted as refused:
        if known(node.target for node in part.graph.nodes if node.name in refused.nodes):
            raise
        try:
            return convert.convert(part, slots, inputs, extra, by_torchscript=True)
        except ConversionError as error:
            log.debug("%s", error)
        raise


def lowered(gm: GraphModule, settings: Settings) -> GraphModule:
    """The graph as it is partitioned: what the user wants taken apart is, and every pass has run."""
    return lower(take_apart(gm, {**REWRITTEN, **chosen(settings.decompositions)}))


def as_program(graph: Graph) -> Program:
    """A program that is one stored graph and nothing else."""
    operators = sum(op.get_type_name() not in ("Parameter", "Constant", "Result") for op in graph.model.get_ops())
    return Program(None, {"": graph}, tuple(spec.name for spec in graph.slots), Coverage(operators, {}, {}))


def key(code: str, inputs: object, slots: object, settings: Settings, extra: str = "") -> CacheKey:
    """The key of a graph under these versions of torch and OpenVINO."""
    versions = {"torch": str(torch.__version__), "openvino": devices.openvino_version()}
    return cache_key(
        code=code, inputs=inputs, slots=slots, settings=settings.affecting("graph"), versions=versions, extra=extra
    )


def _text_key(gm: GraphModule, slots: Sequence[str], inputs: Sequence[str], settings: Settings) -> CacheKey:
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    specs = [str(TensorSpec.of(name, node.meta["val"])) for name, node in zip([*slots, *inputs], placeholders)]
    return key(graph_text(gm), specs[len(slots) :], specs[: len(slots)], settings)


def load(store: GraphStore, name: CacheKey) -> Graph | None:
    """A graph from the store; an entry that cannot be read is removed, warned of, and made anew."""
    files = store.get(str(name))
    if files is None:
        return None
    try:
        return convert.load(files)
    except ConversionError as error:
        log.warning("Ignoring a stored graph: %s. It will be made anew.", error)
        store.remove(str(name))
        return None


def open_store(settings: Settings) -> GraphStore:
    """The graph store of these settings."""
    return GraphStore(settings.cache_folder, settings.cache_mb << 20)
