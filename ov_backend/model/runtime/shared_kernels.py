"""Compiles a model so that the CPU device answers no part of it by the kernel of another part.

OpenVINO 2026.4 generates one kernel for a chain of elementwise operators, and shares it between chains whose hashes agree. The
hash takes in the bytes of a chain's numbers one by one, and those of different numbers can agree: of graphs of some hundred sums
with a number each, 3 of 1,000 sums were wrong in f32 and 35 in bf16. Names, shapes, and constants of more than one element
(they are inputs of the chain) are hashed well. So kernels are shared unless a model has different numbers at like places.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import defaultdict
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from ov_backend.core import devices
from ov_backend.core.errors import is_failure

#: How many generated kernels the CPU device keeps: those that parts of one graph share, and those of sizes that may come back.
KERNELS = "CPU_RUNTIME_CACHE_CAPACITY"
_SHARED, _NOT_SHARED = "5000", "0"

#: Operators of chains, by what the device makes of them: it turns a difference into a sum, and a quotient into a product.
_ARITHMETIC = {"Add": "sum", "Subtract": "sum", "Multiply": "product", "Divide": "product"}
_ELEMENTWISE = frozenset(_ARITHMETIC) | {
    *("Power", "Maximum", "Minimum", "SquaredDifference", "FloorMod", "Mod", "PRelu", "Select", "FakeQuantize", "Swish"),
    *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalXor"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "HardSigmoid", "Selu", "ScaledDotProductAttention"),
}
#: Operators after which a number is the same number.
_MOVES = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze", "Broadcast"})
#: A combination of devices takes no such property, but its CPU device what it was told before, by whichever thread.
_lock, _told = threading.Lock(), [_SHARED]


def compile_model(model: ov.Model, device: str, config: Mapping[str, Any], dynamic: bool) -> ov.CompiledModel:
    """Compile a model with its weights bound; the user's own property for kernels is taken.

    The kernels of dynamic sizes are kept, because sizes come back, which are ten times as fast then; of 74,000 sums in such
    graphs none was answered by another one's kernel.

    Raises:
        RuntimeError: the device cannot compile it.
    """
    devices.starts_threads()
    if "CPU" not in devices.members(device) or not _takes_kernels():
        return devices.core().compile_model(model, device, dict(config))
    kernels = _SHARED if dynamic or not may_confuse(model) else _NOT_SHARED
    if device == "CPU":
        return devices.core().compile_model(model, device, {KERNELS: kernels, **config})
    with _lock:
        if kernels != _told[0]:
            devices.core().set_property("CPU", {KERNELS: kernels})
            _told[0] = kernels
        return devices.core().compile_model(model, device, dict(config))


def import_model(data: bytes, device: str, config: Mapping[str, Any], dynamic: bool) -> ov.CompiledModel:
    """Import a compiled model; what it holds is not known, so no kernels are shared unless sizes are dynamic.

    Raises:
        RuntimeError: the device does not accept it.
    """
    kernels = {KERNELS: _SHARED if dynamic else _NOT_SHARED} if device == "CPU" and _takes_kernels() else {}
    return devices.core().import_model(data, device, {**kernels, **config})


def may_confuse(model: ov.Model) -> bool:
    """Whether two chains of a model may differ by nothing but the bytes of a number.

    That is so where operators of one kind and one shape have different numbers.
    """
    constants: dict[str, Hashable] = {}  # by a node's name, the number that it is once constants are folded; None for others
    places: defaultdict[Hashable, set[Hashable]] = defaultdict(set)
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_name()
        if kind == "Constant":
            constants[name] = node.get_data().item() if _is_number(node) else None
            continue
        sources = [value.get_node().get_name() for value in node.input_values()]
        if sources and all(source in constants for source in sources):
            folded = tuple(constants[source] for source in sources)
            constants[name] = None if not _is_number(node) else folded[0] if kind in _MOVES else (kind, *folded, name)
        elif kind in _ELEMENTWISE:
            place = (_ARITHMETIC.get(kind, kind), str(node.get_output_partial_shape(0)))
            for i, source in enumerate(sources):
                if constants.get(source) is not None:
                    places[place, 0 if kind in _ARITHMETIC else i].add(constants[source])
            if kind == "ScaledDotProductAttention" and len(sources) < 5:
                places[place, 4].add("the usual scale")
    return any(len(different) > 1 for different in places.values())


def _is_number(node: ov.Node) -> bool:
    """Whether a node's only output has one element."""
    shape = node.get_output_partial_shape(0) if node.get_output_size() == 1 else None
    return shape is not None and shape.is_static and math.prod(shape.to_shape()) == 1


@functools.cache
def _takes_kernels() -> bool:
    """Whether there is a CPU device that can be told how many kernels to keep."""
    x = ops.parameter([1], np.float32)
    try:
        devices.core().compile_model(ov.Model([ops.relu(x)], [x]), "CPU", {KERNELS: _SHARED})
    except RuntimeError as error:
        if not is_failure(error):
            raise
        return False
    return True
