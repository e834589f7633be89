"""Half-precision weights on the CPU device, converted to the type that it computes in.

The CPU device computes in float32 or bfloat16. It converts a float16 model to float32 first, and keeps the float32 constants
as long as the compiled model lives, although it reads only the copies in its own layout: 4 bytes a weight that are never read
again. So the model is converted before the device gets it. The converted weights lie in a file without a name
(:class:`WeightBuffer`), and the system can drop its pages from memory.
"""

from __future__ import annotations

import errno
import logging
import math
import mmap
import shutil
import tempfile
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path

import openvino as ov
import openvino.opset13 as ops
import torch

from ov_backend.core import posix
from ov_backend.core.tensors import TO_OV, constant, share

log = logging.getLogger(__name__)

HALVES = (torch.float16, torch.bfloat16)
_COMPUTED = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
#: Bytes on the disk that a file of weights leaves free.
SPARE_BYTES = 1 << 30
_ALIGNMENT = 64


def weight_conversion(weights: Sequence[torch.Tensor], precision: str) -> tuple[torch.dtype, torch.dtype] | None:
    """The half-precision dtype of the weights and the other dtype that the device computes in; None if they are the same.

    Of two half-precision dtypes the one with more bytes counts. ``precision`` is "f32", "bf16" or "f16".
    """
    size = {dtype: sum(w.nbytes for w in weights if w.dtype is dtype) for dtype in HALVES}
    source = max(HALVES, key=lambda dtype: size[dtype])
    target = _COMPUTED[precision]
    return (source, target) if size[source] and target not in (source, torch.float16) else None


class WeightBuffer:
    """Memory for these weights in another dtype, mapped to a file without a name; ordinary memory without a folder.

    When a device has copied the weights into its own layout, :meth:`release` drops them from memory. A later read gets them from
    the file, also for the graph of another size. The system removes the file when the process ends. Weights that are ``packed``
    the device then reads no more.
    """

    def __init__(self, dtype: torch.dtype, weights: Sequence[torch.Tensor], folder: Path | None, packed: bool = False) -> None:
        self._dtype, self._used = dtype, 0
        self._sources = {_place(weight) for weight in weights}
        self._tensors: list[torch.Tensor] = []
        self._converted: dict[Hashable, torch.Tensor] = {}  # by where the weight lies: those that share memory have one place
        size = sum(_aligned(weight.numel() * dtype.itemsize) for weight in weights)
        self._memory = _mapped(size, folder) if size and folder is not None else None
        self._is_file = self._memory is not None
        if packed and size and self._memory is None:
            self._memory = posix.private_memory(size)

    def convert(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight in the dtype of the buffer; the buffer must live as long as it is used."""
        if self._memory is None:
            tensor = torch.empty(weight.shape, dtype=self._dtype)
        else:
            tensor = torch.frombuffer(self._memory, dtype=self._dtype, count=weight.numel(), offset=self._used)
            posix.populate(self._memory, self._used, self._used + tensor.nbytes)
            self._used += _aligned(tensor.nbytes)
        self._tensors.append(tensor.view(weight.shape).copy_(weight))
        self._converted[_place(weight)] = self._tensors[-1]
        return self._tensors[-1]

    def converted(self, weight: torch.Tensor) -> torch.Tensor:
        """As :meth:`convert`, but what lies where a weight did that was converted is that weight, and not converted again."""
        known = self._converted.get(_place(weight))
        return self.convert(weight) if known is None else known

    def release(self, owned: bool = False) -> None:
        """Drop the pages from memory; a file keeps its content, other memory only has pages to drop once the device has copied it
        (``owned``).
        """
        if self._memory is not None and (self._is_file or owned):
            posix.drop_pages(self._memory)

    def is_of(self, dtype: torch.dtype, weights: Sequence[torch.Tensor]) -> bool:
        """Whether it still has the content of weights that lie where these do."""
        has_content = self._is_file or self._memory is None
        places = {_place(weight) for weight in weights}
        return has_content and self._dtype is dtype and self._sources == places == self._converted.keys()


def weight_buffer(
    dtype: torch.dtype, weights: Sequence[torch.Tensor], folder: Path | None, held: Iterable[WeightBuffer], packed: bool = False
) -> WeightBuffer:
    """A buffer for live weights: the one of ``held``, which are of equal content, that was made of them, otherwise a new one."""
    return next((buffer for buffer in held if buffer.is_of(dtype, weights)), None) or WeightBuffer(dtype, weights, folder, packed)


def _place(weight: torch.Tensor) -> Hashable:
    return weight.data_ptr(), weight.shape, weight.stride(), weight.dtype


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


def _mapped(size: int, folder: Path) -> mmap.mmap | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < size + SPARE_BYTES:
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free there, {(size + SPARE_BYTES) >> 20} are needed")
        with tempfile.TemporaryFile(dir=folder, prefix="weights-") as file:
            posix.reserve(file, size)  # a full disk raises here, and not at a write to memory
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        log.warning("Converted weights take %d MiB more memory: no file for them in %s (%s).", size >> 20, folder, error)
        return None


def convert_precision(model: ov.Model, source: torch.dtype, target: torch.dtype) -> None:
    """Change the type of all that ``model`` computes in one floating type, in place; its inputs and results keep their types.

    Its weights are bound, large ones as constants of the target type. It may be invalid before, and is valid afterwards.

    Raises:
        RuntimeError: an operator keeps the source type; the model cannot be used then.
    """
    old, new = TO_OV[source], TO_OV[target]
    for node in model.get_ordered_ops():
        operator = node.get_type_name()
        if operator == "Constant" and node.get_element_type() == old:
            _replace(node, constant(_content(node, source).to(target), shared=False))
        elif operator == "Convert" and node.get_attributes()["destination_type"] == old.to_string():
            _replace(node, _rounded(node, source, target) or ops.convert(node.input_value(0), new.to_string()))
        elif operator == "Parameter" and node.get_element_type() == old:
            readers = node.output(0).get_target_inputs()
            cast = ops.convert(node, new.to_string())
            for reader in readers:
                reader.replace_source_output(cast.output(0))
    for result in model.get_results():
        if result.get_element_type() == old:
            value = result.input(0)
            value.replace_source_output(ops.convert(value.get_source_output(), old.to_string()).output(0))
    model.validate_nodes_and_infer_types()
    unconverted = next((node for node in model.get_ordered_ops() if _computes_in(old, node)), None)
    if unconverted is not None:
        raise RuntimeError(f"{unconverted.get_friendly_name()} ({unconverted.get_type_name()}) stays in {source}")


def _rounded(node: ov.Node, source: torch.dtype, target: torch.dtype) -> ov.Node | None:
    """A small constant that is converted, with the digits of the source type: a number may be 0 in it, or infinite."""
    value = node.input_value(0).get_node()
    if value.get_type_name() != "Constant" or value.get_output_shape(0) != ov.Shape([]):
        return None
    return constant(torch.tensor(value.data.item()).to(source).to(target), shared=False)


def _computes_in(element_type: ov.Type, node: ov.Node) -> bool:
    """Whether a node has this type, other than inputs, results, and conversions for results."""
    if node.get_type_name() in ("Parameter", "Result") or all(o.get_element_type() != element_type for o in node.outputs()):
        return False
    readers = [reader.get_node().get_type_name() for output in node.outputs() for reader in output.get_target_inputs()]
    return node.get_type_name() != "Convert" or any(operator != "Result" for operator in readers)


def _replace(node: ov.Node, by: ov.Node) -> None:
    by.set_friendly_name(node.get_friendly_name())
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(by.output(0))


def _content(node: ov.Node, dtype: torch.dtype) -> torch.Tensor:
    content = torch.empty(list(node.get_output_shape(0)), dtype=dtype)
    if content.numel():
        node.get_tensor_view().copy_to(share(content))
    return content
