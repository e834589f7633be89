"""The compile: a captured graph is lowered, partitioned and converted, with the help of the graph store.

No list says what OpenVINO can convert: the converter names the operators that it refuses. These are decomposed where PyTorch
can do that, and stay in PyTorch otherwise; then the graph is partitioned and converted again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ov_backend import devices, fx_utils, partitioning
from ov_backend.cache.key import CacheKey, cache_key, family_of
from ov_backend.cache.store import GraphStore
from ov_backend.cache.store import open_store as open_store  # hosts take it from here
from ov_backend.capture.trace import Captured
from ov_backend.conversion import serialization
from ov_backend.conversion.converter import UnsupportedNodes, WeightlessModel, convert
from ov_backend.errors import ConversionError, NothingToCompute, first_line, last_line, pass_on_signals
from ov_backend.guards import pytree
from ov_backend.guards.traced_code import TracedCode
from ov_backend.lowering import lower
from ov_backend.lowering.complex_pairs import complex_pairs
from ov_backend.lowering.decompose import decompose
from ov_backend.lowering.decompositions import Table, available, decompositions
from ov_backend.runtime.program import Program
from ov_backend.settings import Settings, operator_name
from ov_backend.tensors import TensorSpec

log = logging.getLogger(__name__)

#: A graph whose conversion is refused more often than this stays in PyTorch.
_MAX_ROUNDS = 16
_REFUSED = "OpenVINO has no conversion for it"


@dataclass(frozen=True)
class Compilation:
    """The result of a compile.

    Attributes:
        program: the program that runs.
        gm: the lowered graph that was partitioned.
    """

    program: Program
    gm: GraphModule


class Compiler:
    """Compiles one captured graph to a program.

    Args:
        captured: the graph, its slots and inputs.
        settings: those that affect the graph.
        store: the graph store on disk, or None.
        key: the key of the whole graph; None derives it from the text of the lowered graph.
        extra: JSON-able values that are stored with a graph that is converted as a whole.
    """

    def __init__(
        self,
        captured: Captured,
        settings: Settings,
        store: GraphStore | None = None,
        key: CacheKey | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self._captured, self._settings, self._store, self._key, self._extra = captured, settings, store, key, extra
        self.settings = settings
        #: Operators that were decomposed because the converter refused them; they are not decomposed twice.
        self._decomposed: set[Any] = set()

    def compile(self) -> Compilation:
        """Lower, partition and convert.

        Raises:
            NothingToCompute: the graph only returns its inputs, or is smaller than ``min_block_size``.
            ConversionError: no operator can run in OpenVINO; for a graph with symbolic sizes, some operator cannot.
        """
        gm = lowered(self._captured, self._settings)
        smallest = self._settings.min_block_size
        if len(fx_utils.operators(gm)) < smallest:
            raise NothingToCompute(f"the graph is smaller than min_block_size ({smallest})")
        if self._key is None:  # from the text before any refusal, which another process computes first too
            self._key = text_key(gm, self._captured.slots, self._captured.inputs, self._settings)
            stored = self._load(self._key)
            if stored is not None:
                return Compilation(Program.single(stored, str(self._key)), gm)
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

    def _unsupported(self, gm: GraphModule) -> dict[Node, str]:
        """The operators that must stay in PyTorch; the capture of a graph with symbolic sizes ensures that there are none."""
        return partitioning.unsupported(gm, self._settings) if self._captured.retrace is None else {}

    def _decompose(self, gm: GraphModule, refused: Mapping[Node, str]) -> GraphModule | None:
        """The graph with its refused operators decomposed; None if that changes nothing."""
        operators = {node.target for node in refused} - self._decomposed
        if not available(operators):
            return None
        self._decomposed |= operators
        table = decompositions(self._settings.decompositions, self._decomposed)
        if self._captured.retrace is not None:
            return lower(self._captured.retrace(table))
        smaller = decompose(gm, table)
        return None if smaller is gm else lower(smaller)

    def _convert(self, gm: GraphModule, in_pytorch: Mapping[Node, str]) -> Program:
        slots, inputs = self._captured.slots, self._captured.inputs
        if not in_pytorch and all(spec.exists for spec in _specs(gm, (*slots, *inputs))):
            assert self._key is not None
            model = self._converted(gm, slots, inputs, self._extra)
            self._put(self._key, model)
            return Program(None, {"": model}, tuple(slots), partitioning.coverage(gm, {}), str(self._key))
        return self._convert_parts(gm, in_pytorch)

    def _convert_parts(self, gm: GraphModule, in_pytorch: Mapping[Node, str]) -> Program:
        smallest = self._settings.min_block_size
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
        key = text_key(part.gm, part.slots, part.inputs, self._settings)
        model = self._load(key)
        if model is None:
            model = self._converted(part.gm, part.slots, part.inputs)
            self._put(key, model)
        return model

    def _converted(
        self, gm: GraphModule, slots: Sequence[str], inputs: Sequence[str], extra: Mapping[str, Any] | None = None
    ) -> WeightlessModel:
        """Convert directly; use TorchScript for a graph with operators that have neither a conversion nor a decomposition."""
        if self._settings.converter == "ts":
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

    def _load(self, key: CacheKey) -> WeightlessModel | None:
        return None if self._store is None else load(self._store, key)

    def _put(self, key: CacheKey, model: WeightlessModel) -> None:
        if self._store is None:
            return
        try:
            files = serialization.dump(model)
        except (OSError, RuntimeError) as error:  # no temporary folder, or no space in it: OpenVINO writes files only
            log.warning("A graph is kept in memory only, because no temporary file can be written: %s.", last_line(error))
            return
        self._store.put(str(key), files)


def lowered(captured: Captured, settings: Settings) -> GraphModule:
    """The graph after the decompositions that the user and OpenVINO need, without complex numbers, and after all passes."""
    if captured.retrace is not None:  # it was traced with these decompositions already
        return lower(captured.gm)
    return lower(complex_pairs(decompose(captured.gm, first_decompositions(settings))))


def first_decompositions(settings: Settings) -> Table:
    """The decompositions that are applied to every graph before its conversion."""
    return decompositions(settings.decompositions)


def graph_key(
    code: str, inputs: object, slots: object, settings: Settings, extra: str = "", family: str = ""
) -> CacheKey:
    """The key of a graph, with this process's versions of torch and OpenVINO."""
    return cache_key(
        code=code,
        inputs=inputs,
        slots=slots,
        settings=settings.affecting("graph"),
        versions=_versions(),
        extra=extra,
        family=family,
    )


def family_key(cls: type, call: object, settings: Settings, extra: str = "") -> str:
    """The family of the graphs of one class of modules and one kind of call."""
    return family_of(f"{cls.__module__}.{cls.__qualname__}", call, settings.affecting("graph"), _versions(), extra)


def _versions() -> dict[str, str]:
    return {"torch": str(torch.__version__), "openvino": devices.openvino_version()}


def text_key(gm: GraphModule, slots: Sequence[str], inputs: Sequence[str], settings: Settings) -> CacheKey:
    """The key of a lowered graph, from its text."""
    specs = [str(spec) for spec in _specs(gm, (*slots, *inputs))]
    return graph_key(fx_utils.graph_text(gm), specs[len(slots) :], specs[: len(slots)], settings)


def _specs(gm: GraphModule, names: Sequence[str]) -> list[TensorSpec]:
    return [TensorSpec.of(name, node.meta["val"]) for name, node in zip(names, fx_utils.placeholders(gm))]


def load(store: GraphStore, key: CacheKey) -> WeightlessModel | None:
    """A model from the store, or None; an entry that cannot be read is removed with a warning."""
    files = store.get(str(key))
    if files is None:
        return None
    try:
        model = serialization.load(files)
        _check_result(model)
        return model
    except ConversionError as error:
        log.warning("Ignoring a stored graph: %s. It will be captured again.", first_line(error))
        store.remove(str(key))
        return None


def stored_codes(store: GraphStore, family: str) -> list[TracedCode]:
    """The code of the traces of a family's stored graphs, each once, as far as it is loaded here."""
    codes: dict[TracedCode | None, None] = {}
    for files in store.family(family):
        try:
            code = TracedCode.from_json(json.loads(files["graph.json"])["extra"].get("code"))
            codes[code] = None
        except Exception as error:  # a forged entry is found out when it is loaded
            pass_on_signals(error)
    return [code for code in codes if code is not None]


def _check_result(model: WeightlessModel) -> None:
    """Restore a result as its description says, so that a forged description fails once and not at every call.

    Raises:
        ConversionError: it cannot be restored.
    """
    description = model.extra.get("result")
    if description is None:
        return
    try:
        pytree.restore(description, [torch.zeros(())] * len(model.returns))
    except Exception as error:  # a container of a forged name may raise anything
        raise ConversionError(f"its result cannot be restored ({first_line(error)})") from error
