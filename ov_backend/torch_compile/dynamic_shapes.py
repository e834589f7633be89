"""One OpenVINO graph with dynamic dimensions for a Dynamo graph with symbolic sizes.

Dynamo passes sizes as integer arguments beside the tensors. A graph with dynamic dimensions reads them from the tensors' shapes.
A graph for which that is impossible is refused with a reason, and gets static graphs.

A static graph answers 15 to 30 % faster, so it is the better one for sizes that come back. By default the first two sizes of a
function get static graphs. With the third one a graph with dynamic dimensions is tried, which answers all later sizes. One of
these gets a static graph once its calls have taken so long that a static graph would have paid for its compile.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch._guards import CompileContext

from ov_backend.core.errors import OVBackendError
from ov_backend.core.settings import Settings
from ov_backend.engine.engine import Network, NetworkHooks
from ov_backend.torch_compile.dynamic_variant import SizedWeightHolder, Variant
from ov_backend.torch_compile.graph import DynamoGraph, WeightHolder

#: The most OpenVINO graphs for one Dynamo graph; each is valid under conditions on the sizes.
_MAX_VARIANTS = 4
#: After more compiles than this for changed weights, the weights become inputs; only static graphs support that.
MAX_WEIGHT_CHANGES = 3
#: By default, how many sizes of a function get static graphs at once.
_STATIC_SIZES = 2
#: How many times as long as a compile the calls of one size take in a dynamic graph, until a static one would have paid.
_PAYS = 4
_NO_DYNAMIC_SIZE = "no size is dynamic"


class DynamicGraph:
    """The graphs with dynamic dimensions of one Dynamo graph; ``add`` creates a network from a name, a module and hooks.

    :attr:`refusal` says why static graphs answer instead, or is "".
    """

    def __init__(
        self, graph: DynamoGraph, name: str, settings: Settings, add: Callable[[str, WeightHolder, NetworkHooks], Network]
    ) -> None:
        self._graph, self._name, self._settings, self._add = graph, name, settings, add
        self._variants: list[Variant] = []
        self._places = graph.places()
        self._lock = threading.Lock()
        #: Sizes that static graphs answer, and the seconds that others have spent in dynamic ones.
        self._static: set[Hashable] = set()
        self._seconds: defaultdict[Hashable, float] = defaultdict(float)
        compiling = CompileContext.current_compile_id()
        #: Dynamo's earlier graphs of the same function, each for another size.
        self._earlier = compiling.frame_compile_id or 0 if compiling is not None else 0
        self.refusal = "" if any(map(_is_dynamic, graph.shapes)) else _NO_DYNAMIC_SIZE
        if not self.refusal and None in graph.returned.values():
            self.refusal = "a result is neither a tensor nor a size"

    def wanted(self, full: Sequence[Any]) -> bool:
        """Whether a graph with dynamic dimensions is to answer a call, if there can be one."""
        asked = self._settings.dynamic_shapes
        if self.refusal == _NO_DYNAMIC_SIZE or asked is False:
            return False
        if asked is True:
            return True
        sizes = self._sizes(full)
        if sizes not in self._static and self._earlier + len(self._static) < _STATIC_SIZES:
            self._static.add(sizes)
        return sizes not in self._static and self._settings.precision != "int8"  # which static graphs are calibrated for

    def _sizes(self, full: Sequence[Any]) -> Hashable:
        numbers = tuple(value for value in full if not isinstance(value, torch.Tensor))
        return numbers, tuple(full[i].shape[d] for i, d in self._places.values())

    def __call__(self, full: Sequence[Any]) -> Any:
        """Answer one call, or return ``NotImplemented``; then ``refusal`` is the reason."""
        with self._lock:
            variant = self._variant(full)
        if variant is None:
            return NotImplemented
        start = time.perf_counter()
        result = variant.answer(full)
        if self._settings.dynamic_shapes == "auto":
            self._count(variant, self._sizes(full), time.perf_counter() - start)
        return result

    def _count(self, variant: Variant, sizes: Hashable, seconds: float) -> None:
        """Count the time of a call; a size that takes long enough gets a static graph."""
        self._seconds[sizes] += seconds
        compiling = sum(variant.network.statistics.seconds[stage] for stage in ("capture", "convert", "bind", "compile"))
        if self._seconds[sizes] > _PAYS * compiling:
            self._static.add(sizes)

    def _variant(self, full: Sequence[Any]) -> Variant | None:
        for variant in self._variants:
            if variant.serves(full):
                if variant.network.statistics.compiles > MAX_WEIGHT_CHANGES:
                    self.refusal = "its calls bring ever new weights"
                    self._variants.clear()
                    return None
                return variant
        if self.refusal:
            return None
        if len(self._variants) == _MAX_VARIANTS:
            self.refusal = f"{_MAX_VARIANTS} graphs do not serve all of its sizes"
            return None
        try:
            variant = self._compile(full)
        except OVBackendError as error:
            self.refusal = str(error)
            return None
        self._variants.append(variant)
        return variant

    def _compile(self, full: Sequence[Any]) -> Variant:
        holder = SizedWeightHolder(self._graph, full)
        number = f" #{len(self._variants) + 1}" if self._variants else ""
        variant = Variant(holder, self._settings, full)
        hooks = NetworkHooks(capture=variant.capture, generalize=variant.generalize)
        variant.network = self._add(f"{self._name} dynamic{number}", holder, hooks)
        variant.prepare(full)
        return variant


def _is_dynamic(shape: Any) -> bool:
    return getattr(shape, "is_symbol", False) or (isinstance(shape, tuple) and any(not isinstance(size, int) for size in shape))
