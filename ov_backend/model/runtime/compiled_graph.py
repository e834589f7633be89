"""Compiles a graph with its weights, and runs it. The result is for these weights only; its owner notices when they change."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import openvino as ov
import torch

from ov_backend.core import devices
from ov_backend.core.errors import InputMismatch, PositionOutOfRange, as_failure, is_failure, last_line
from ov_backend.core.settings import Settings
from ov_backend.core.tensors import FROM_NAME, TO_OV, TensorSpec, resolved, share, with_strides
from ov_backend.model.conversion.index_limits import Limit, check_limits
from ov_backend.model.conversion.model import WeightlessModel
from ov_backend.model.runtime import shared_kernels
from ov_backend.model.runtime.bound_model import bound_model
from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.model.transformations.convert_precision import WeightBuffer
from ov_backend.model.transformations.quantize import Observe, Observer, Quantize, Range, Rewrite, observed_value

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timings:
    """Seconds to bind and compile one graph, or to import it from the blob cache."""

    bind: float = 0.0
    compile: float = 0.0
    imported: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        return Timings(self.bind + other.bind, self.compile + other.compile, self.imported + other.imported)


@dataclass
class CompiledGraph:
    """One graph, bound to its weights and compiled for one device.

    Calls take the inputs in the order of ``inputs`` and return tensors that the caller owns. Unless it ``owns`` all that it
    reads, ``weights`` are the live tensors, in the order of the slots: the device may go on reading them in place, or the graph
    returns one of them.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    returns: tuple[tuple[str, int], ...]
    limits: tuple[tuple[str, int, Limit], ...]
    weights: tuple[torch.Tensor, ...]
    device: str
    precision: str
    timings: Timings
    owns: bool
    layers_in_8_bits: int
    buffers: tuple[WeightBuffer, ...]
    _request: ov.InferRequest
    _ports: tuple[tuple[int, int], ...]
    #: Of the device's results: float32 where PyTorch rounds to bfloat16.
    _result_types: tuple[torch.dtype, ...]
    _observed: _Observed | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once.

        Raises:
            InputMismatch: a tensor has another shape or dtype than the graph was compiled for.
            OVBackendError: OpenVINO has failed.
            PositionOutOfRange: a position among the inputs, or one that was computed, is out of range.
        """
        arguments = self._checked(tensors)
        dynamic = any(spec.dynamic for spec in self.outputs)
        results = [] if dynamic else self._empty()
        try:
            with self._lock:  # a request serves one caller at a time
                results = self._run(arguments, results, dynamic)
        except RuntimeError as error:
            if not is_failure(error):
                raise
            if any(kind == "output" for kind, _, _ in self.limits):  # some operators look at their positions themselves
                raise PositionOutOfRange(f"a position may be out of range: {last_line(error)}") from error
            raise as_failure(error) from error
        check_limits(self.limits, "output", results)
        return self._returned(results, tensors)

    def _run(self, arguments: Sequence[torch.Tensor], results: list[torch.Tensor], dynamic: bool) -> list[torch.Tensor]:
        for port, i in self._ports:
            self._request.set_input_tensor(port, share(arguments[i]))
        for i, result in enumerate(results):
            self._request.set_output_tensor(i, share(result))
        try:
            self._request.start_async()
        finally:  # also where a signal's handler raises in between: it reads and writes these tensors
            self._request.wait()
        if dynamic:
            results = self._copied()
        if self._observed is not None:
            self._observed.report(self._request, len(self.outputs))
        return results

    def blank(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Zeros of the shapes and dtypes that a call returns; nothing is computed unless a shape is dynamic."""
        self._checked(tensors)
        if any(spec.dynamic for spec in self.outputs):  # the shapes are only known afterwards
            return self(tensors)
        return self._returned([result.zero_() for result in self._empty()], tensors)

    def release_memory(self) -> None:
        """Give back what lies between operators, on the CPU, which keeps it otherwise.

        A graph with dynamic sizes keeps it: at the next call with the sizes of its last one the CPU would write to it again.

        Raises:
            RuntimeError: it computes just now.
        """
        if self.device == "CPU" and not any(spec.dynamic for spec in (*self.inputs, *self.outputs)):
            self._request.get_compiled_model().release_memory()

    def _empty(self) -> list[torch.Tensor]:
        return [torch.empty(spec.shape, dtype=dtype) for spec, dtype in zip(self.outputs, self._result_types)]

    def _copied(self) -> list[torch.Tensor]:
        """Copies of the device's outputs, whose shapes are known only after the run."""
        results = []
        for i, (spec, dtype) in enumerate(zip(self.outputs, self._result_types)):
            output = self._request.get_output_tensor(i)
            if not spec.takes(tuple(output.shape)):
                raise InputMismatch(f"Output {i} is {list(output.shape)}; the graph was compiled for {list(spec.shape)}.")
            result = torch.empty(tuple(output.shape), dtype=dtype)
            output.copy_to(share(result))
            results.append(result)
        return results

    def _returned(self, results: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = [x.to(FROM_NAME[spec.dtype]) for x, spec in zip(results, self.outputs)]
        results = [with_strides(x, spec.strides) if spec.strides else x for x, spec in zip(results, self.outputs)]
        sources = {"output": results, "input": tensors, "slot": self.weights}
        return [sources[kind][i] for kind, i in self.returns]

    def _checked(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if len(tensors) != len(self.inputs):
            raise InputMismatch(f"{len(tensors)} inputs given; the compiled graph takes {len(self.inputs)}.")
        arguments = []
        for spec, tensor in zip(self.inputs, tensors):
            if not spec.takes(tensor.shape) or tensor.dtype is not FROM_NAME[spec.dtype]:
                raise InputMismatch(
                    f"Input {spec.name} is {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}; the graph was"
                    f" compiled for {spec.dtype}{list(spec.shape)}. A new shape needs a graph of its own."
                )
            arguments.append(resolved(tensor.detach()).contiguous())
        check_limits(self.limits, "input", arguments)
        return arguments


@dataclass(frozen=True)
class _Observed:
    """Reports the ranges that a graph has as additional results; ``pairs`` is what :func:`observe` returned."""

    pairs: Sequence[str]
    observer: Observer

    def report(self, request: ov.InferRequest, first: int) -> None:
        """Report the ranges of the last inference; ``first`` is the index of the first additional result."""
        ranges = {}
        for i, names in enumerate(self.pairs):
            low, high = (observed_value(request.get_output_tensor(first + 2 * i + j)) for j in range(2))
            ranges.update(dict.fromkeys(names.split("\n"), Range(low, high)))
        self.observer(ranges)


class BlobEntry(Protocol):
    """One compiled graph's entry in the blob cache; see :mod:`ov_backend.store.blobs`."""

    def load(self) -> bytes | None:
        """The stored blob, or None."""

    def save(self, data: bytes) -> None:
        """Store the blob."""

    def remove(self) -> None:
        """Remove a blob that cannot be used."""


def bind_and_compile(
    graph: WeightlessModel,
    weights: Mapping[str, torch.Tensor],
    settings: Settings,
    blob_entry: BlobEntry | None = None,
    rewrite: Rewrite | None = None,
    bound: Callable[[], object] = bool,
    held: Sequence[WeightBuffer] = (),
) -> CompiledGraph:
    """Bind live weights, given by slot name, to a graph and compile it.

    The blob is imported from ``blob_entry`` if it exists, and exported to there otherwise. ``rewrite`` observes the ranges of the
    layers, or computes layers in 8 bits; on the CPU device only, and without blobs. ``bound`` is called when what is left is
    OpenVINO's, which keeps no other thread of Python waiting. ``held`` are converted weights that other graphs hold, of weights
    with the same content.

    Raises:
        InputMismatch: a weight is missing or has another shape or dtype than its slot.
        DeviceError: the device does not exist, or cannot compute in that precision.
    """
    devices.check(settings)
    live = {spec.name: _weight(spec, weights) for spec in graph.slots}
    buffers: tuple[WeightBuffer, ...] = ()
    pairs, in_8_bits = None, 0
    check_limits(graph.limits, "slot", list(live.values()))
    blob_entry = None if rewrite is not None else blob_entry
    config, dynamic = devices.compile_config(settings), _is_dynamic(graph)
    if devices.takes_autocast_types(settings) and not isinstance(rewrite, Quantize):
        config["INFERENCE_PRECISION_HINT"] = "f32"  # the device computes in the types that it finds
    imported = _import(blob_entry, settings.device, config, dynamic) if blob_entry is not None else None
    if imported is not None:
        compiled, timings = imported
    else:
        start = time.perf_counter()
        model, buffers, pairs, in_8_bits = bound_model(graph, live, settings, rewrite, held)
        made = time.perf_counter()
        config |= _without_overflow(model, settings.device)
        bound()
        compiled = shared_kernels.compile_model(model, settings.device, config, dynamic)
        del model  # the compiled model holds all that the device needs of the constants
        timings = Timings(bind=made - start, compile=time.perf_counter() - made)
        if blob_entry is not None:
            blob_entry.save(compiled.export_model().getvalue())
    start = time.perf_counter()
    request = compiled.create_infer_request()
    seconds = time.perf_counter() - start
    timings += Timings(imported=seconds) if imported is not None else Timings(compile=seconds)
    owns = _owns(graph, compiled, settings)
    for buffer in buffers:
        buffer.release(owns)
    return CompiledGraph(
        inputs=graph.inputs,
        outputs=graph.outputs,
        returns=graph.returns,
        limits=graph.limits,
        weights=() if owns else tuple(live.values()),
        device=_property(compiled, "EXECUTION_DEVICES", settings.device),
        precision=f"{'int8, ' * isinstance(rewrite, Quantize)}{devices.resolved_precision(settings)}",
        timings=timings,
        owns=owns,
        layers_in_8_bits=in_8_bits,
        _request=request,
        _ports=tuple((i, int(_input_name(port).removeprefix("input_"))) for i, port in enumerate(compiled.inputs)),
        _result_types=tuple(_result_type(spec, port) for spec, port in zip(graph.outputs, compiled.outputs)),
        buffers=buffers,
        _observed=_Observed(pairs, rewrite.observer) if pairs is not None and isinstance(rewrite, Observe) else None,
    )


def _result_type(spec: TensorSpec, port: ov.ConstOutput) -> torch.dtype:
    return torch.float32 if port.get_element_type() == TO_OV[torch.float32] else FROM_NAME[spec.dtype]


def _without_overflow(model: ov.Model, device: str) -> dict[str, str]:
    """The property that keeps what a graph quantizes in floating point, on a CPU whose products of 8-bit integers overflow."""
    quantizes = any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())
    if not quantizes or "CPU" not in devices.members(device) or multiplies_8_bits_exactly():
        return {}
    log.warning("Quantized layers compute in floating point: products of 8-bit integers overflow on a CPU without VNNI.")
    return {"LP_TRANSFORMS_MODE": "NO"}


def _is_dynamic(graph: WeightlessModel) -> bool:
    return any(spec.dynamic for spec in (*graph.inputs, *graph.outputs))


def _owns(graph: WeightlessModel, compiled: ov.CompiledModel, settings: Settings) -> bool:
    """Whether the device has copied all that it reads; what other devices do, and with dynamic sizes, was not observed."""
    if settings.device != "CPU" or any(kind == "slot" for kind, _ in graph.returns):
        return False
    if _is_dynamic(graph):  # weights may be packed at the first inference
        return False
    return int(compiled.get_property("NUM_STREAMS")) == 1  # each further stream packs weights at its first inference


def _import(blob_entry: BlobEntry, device: str, config: dict[str, Any], dynamic: bool) -> tuple[ov.CompiledModel, Timings] | None:
    """The compiled model from the blob cache, if there is one and the device accepts it."""
    start = time.perf_counter()
    data = blob_entry.load()
    if data is None:
        return None
    try:
        compiled = shared_kernels.import_model(data, device, config, dynamic)
    except RuntimeError as error:
        if not is_failure(error):
            raise
        log.warning("Ignoring a stored blob: %s. It will be compiled again.", last_line(error).rstrip("."))
        blob_entry.remove()
        return None
    return compiled, Timings(imported=time.perf_counter() - start)


def _weight(spec: TensorSpec, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
    tensor = weights.get(spec.name)
    if tensor is None:
        raise InputMismatch(f"The weight {spec.name} is missing; the graph needs {spec}.")
    if tuple(tensor.shape) != spec.shape or tensor.dtype is not FROM_NAME[spec.dtype]:
        raise InputMismatch(f"The weight {spec.name} is {tensor.dtype}{list(tensor.shape)}; the graph needs {spec}.")
    return tensor.detach()  # keeps this memory alive: the owner may give the tensor other memory


def _input_name(port: ov.ConstOutput) -> str:
    return next(name for name in port.get_names() if name.startswith("input_"))


def _property(compiled: ov.CompiledModel, name: str, default: str) -> str:
    value = compiled.get_property(name) if name in compiled.get_property("SUPPORTED_PROPERTIES") else default
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
