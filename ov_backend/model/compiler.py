"""The compile: a captured graph is lowered, partitioned and converted, with the help of the graph store.

No list says what OpenVINO can convert: the converter names the operators that it refuses. These are decomposed where PyTorch
can do that, and stay in PyTorch otherwise; then the graph is partitioned and converted again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend.core import devices, fx_utils
from ov_backend.core.errors import ConversionError, NothingToCompute, last_line, pass_on_signals
from ov_backend.core.settings import Settings, operator_name
from ov_backend.core.tensors import TensorSpec
from ov_backend.model.conversion import serialization
from ov_backend.model.conversion.converter import UnsupportedNodes, WeightlessModel, convert
from ov_backend.model.runtime.program import Program
from ov_backend.store import key as keys
from ov_backend.store.key import cache_key
from ov_backend.store.store import GraphStore
from ov_backend.store.store import open_store as open_store  # hosts take it from here
from ov_backend.trace.capture.trace import Captured
from ov_backend.trace.lowering import lower
from ov_backend.trace.lowering.complex_pairs import complex_pairs
from ov_backend.trace.lowering.decompose import decompose
from ov_backend.trace.lowering.decompositions import Table, available, decompositions
from ov_backend.trace.partitioning import partitioner as partitioning

log = logging.getLogger(__name__)

#: A graph whose conversion is refused more often than this stays in PyTorch.
_MAX_ROUNDS = 16
_REFUSED = "OpenVINO has no conversion for it"


@dataclass(frozen=True)
class Compilation:
    """The result of a compile: the program that runs, and the lowered graph that was partitioned."""

    program: Program
    gm: GraphModule


class Compiler:
    """Compiles one captured graph to a program.

    ``network`` is a name that is stored for those who look at the store. ``find`` looks the whole program up by :attr:`key`; None
    looks into the store. :attr:`gm` is the lowered graph; :attr:`key` is of its text, before any refusal, and of the call's
    result.
    """

    def __init__(
        self,
        captured: Captured,
        settings: Settings,
        store: GraphStore | None = None,
        network: str = "",
        find: Callable[[], Program | None] | None = None,
    ) -> None:
        self._captured, self._store, self.settings, self._find = captured, store, settings, find or self._stored
        self._extra = {"network": network}
        self.gm = lowered(captured, settings)
        self.key = text_key(self.gm, captured.slots, captured.inputs, settings, captured.output)
        #: Operators that were decomposed because the converter refused them; they are not decomposed twice.
        self._decomposed: set[Any] = set()

    def compile(self) -> Compilation:
        """Lower, partition and convert.

        Raises:
            NothingToCompute: the graph only returns its inputs, or is smaller than ``min_block_size``.
            ConversionError: no operator can run in OpenVINO; for a graph with symbolic sizes, some operator cannot.
        """
        gm, smallest = self.gm, self.settings.min_block_size
        if len(fx_utils.operators(gm)) < smallest:
            raise NothingToCompute(f"the graph is smaller than min_block_size ({smallest})")
        if (known := self._find()) is not None:
            return Compilation(known, gm)
        in_pytorch = self._unsupported(gm)
        for _ in range(_MAX_ROUNDS):
            try:
                return Compilation(self._convert(gm, in_pytorch), gm)
            except UnsupportedNodes as error:
                refused = {node: _REFUSED for node in gm.graph.nodes if node.name in error.nodes}
                if not set(refused) - set(in_pytorch):
                    raise
                smaller = self._decompose(gm, refused)
                if smaller is not None:
                    gm, in_pytorch = smaller, self._unsupported(smaller)
                elif self._captured.retrace is not None:
                    raise
                else:
                    in_pytorch = {**in_pytorch, **refused}
        raise ConversionError("too many of its operators have no conversion")

    def _stored(self) -> Program | None:
        model = self._load(self.key)
        return None if model is None else Program.single(model, self.key)

    def _unsupported(self, gm: GraphModule) -> dict[Node, str]:
        """The operators that must stay in PyTorch; the capture of a graph with symbolic sizes ensures that there are none."""
        return partitioning.unsupported(gm, self.settings) if self._captured.retrace is None else {}

    def _decompose(self, gm: GraphModule, refused: Mapping[Node, str]) -> GraphModule | None:
        """The graph with its refused operators decomposed; None if that changes nothing."""
        operators = {node.target for node in refused} - self._decomposed
        if not available(operators):
            return None
        self._decomposed |= operators
        table = decompositions(self.settings.decompositions, self._decomposed)
        if self._captured.retrace is not None:
            return lower(self._captured.retrace(table))
        smaller = decompose(gm, table)
        return None if smaller is gm else lower(smaller)

    def _convert(self, gm: GraphModule, in_pytorch: Mapping[Node, str]) -> Program:
        slots, inputs = self._captured.slots, self._captured.inputs
        if not in_pytorch and all(spec.exists for spec in _specs(gm, (*slots, *inputs))):
            model = self._converted(gm, slots, inputs, self._extra)
            self._put(self.key, model)
            return Program(None, {"": model}, tuple(slots), partitioning.coverage(gm, {}), self.key)
        return self._convert_parts(gm, in_pytorch)

    def _convert_parts(self, gm: GraphModule, in_pytorch: Mapping[Node, str]) -> Program:
        smallest = self.settings.min_block_size
        split = partitioning.split(fx_utils.copy(gm), in_pytorch, smallest)
        small = f"in a block of fewer than {smallest} operators"
        in_pytorch = {**in_pytorch, **{node: small for node in gm.graph.nodes if node.name in split.too_small}}
        if not split.parts and set(in_pytorch.values()) <= {partitioning.VIEW, small}:
            raise NothingToCompute("the graph only returns views")
        if not split.parts:
            listed = ", ".join(sorted({f"{operator_name(node.target)} ({why})" for node, why in in_pytorch.items()}))
            raise ConversionError(f"none of its operators can run in OpenVINO: {listed}")
        slots = dict(zip(fx_utils.placeholders(split.outer), self._captured.slots))
        models = {}
        for node in split.outer.graph.nodes:
            if node.op == "call_module" and node.target in split.parts:
                models[node.target] = self._part(partitioning.part_of(split.outer, node, slots))
        return Program(split.outer, models, tuple(self._captured.slots), partitioning.coverage(gm, in_pytorch))

    def _part(self, part: partitioning.Part) -> WeightlessModel:
        """One partition, from the store if it is there; its key is its text."""
        key = text_key(part.gm, part.slots, part.inputs, self.settings)
        model = self._load(key)
        if model is None:
            model = self._converted(part.gm, part.slots, part.inputs)
            self._put(key, model)
        return model

    def _converted(
        self, gm: GraphModule, slots: Sequence[str], inputs: Sequence[str], extra: Mapping[str, Any] | None = None
    ) -> WeightlessModel:
        """Convert directly; use TorchScript for a graph with operators that have neither a conversion nor a decomposition."""
        if self.settings.converter == "ts":
            try:
                return convert(gm, slots, inputs, extra, through_torchscript=True)
            except ConversionError as error:
                log.warning("%s. It is converted directly instead.", error)
        try:
            return convert(gm, slots, inputs, extra)
        except UnsupportedNodes as refused:
            targets = {node.target for node in gm.graph.nodes if node.name in refused.nodes}
            if self._captured.retrace is not None or available(targets - self._decomposed):
                raise
            try:
                return convert(gm, slots, inputs, extra, through_torchscript=True)
            except ConversionError as error:
                log.debug("%s", error)
            raise

    def _load(self, key: str) -> WeightlessModel | None:
        return None if self._store is None else load(self._store, key)

    def _put(self, key: str, model: WeightlessModel) -> None:
        if self._store is None:
            return
        try:
            files = serialization.dump(model)
        except (OSError, RuntimeError) as error:  # no temporary folder, or no space in it: OpenVINO writes files only
            pass_on_signals(error)
            log.warning("A graph is kept in memory only, because no temporary file can be written: %s.", last_line(error))
            return
        self._store.put(key, files)


def lowered(captured: Captured, settings: Settings) -> GraphModule:
    """The graph after the decompositions that the user and OpenVINO need, without complex numbers, and after all passes."""
    if captured.retrace is not None:  # it was traced with these decompositions already
        return lower(captured.gm)
    return lower(complex_pairs(decompose(captured.gm, first_decompositions(settings))))


def first_decompositions(settings: Settings) -> Table:
    """The decompositions that are applied to every graph before its conversion."""
    return decompositions(settings.decompositions)


def kind_of_call(cls: type, call: object, settings: Settings, host: str = "") -> str:
    """Names one class of modules and one kind of call, alike in every process."""
    of_class, versions = f"{cls.__module__}.{cls.__qualname__}", {**_versions(), "lowering": keys.LOWERING_VERSION}
    return keys.name_of(of_class, call, settings.affecting("graph"), versions, host)


def _versions() -> dict[str, str]:
    return {"torch": str(torch.__version__), "openvino": devices.openvino_version()}


def text_key(
    gm: GraphModule, slots: Sequence[str], inputs: Sequence[str], settings: Settings, output: object = None
) -> str:
    """The key of a lowered graph, from its text, the names of its slots, then inputs, and the settings that affect the graph.

    ``output`` describes what a call returns (JSON-able); None for a part of a graph.
    """
    specs = [str(spec) for spec in _specs(gm, (*slots, *inputs))]
    of_call = {"inputs": specs[len(slots) :], "output": output}
    text, slots_text = fx_utils.graph_text(gm), specs[: len(slots)]
    return cache_key(text=text, call=of_call, slots=slots_text, settings=settings.affecting("graph"), versions=_versions())


def _specs(gm: GraphModule, names: Sequence[str]) -> list[TensorSpec]:
    return [TensorSpec.of(name, node.meta["val"]) for name, node in zip(names, fx_utils.placeholders(gm))]


def load(store: GraphStore, key: str) -> WeightlessModel | None:
    """A model from the store, or None; an entry that cannot be read is removed with a warning."""
    return store.read(key, serialization.load)
