"""Half-precision weights on the CPU device, in the type that it computes in.

The CPU device computes in float32 or bfloat16. From a graph in float16 it makes one in float32 first, and keeps those
constants for as long as the compiled graph lives, beside the weights that it has laid out for itself: 4 bytes a weight
that are never read again. So the graph is made one of the type that the device computes in before the device sees it,
and the converted weights lie in a file without a name (:class:`Backing`), whose pages the system can have back.
"""

from __future__ import annotations

import errno
import logging
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import openvino as ov
import openvino.opset13 as ops
import torch

from ov_backend.tensors import TO_OV, constant, share

log = logging.getLogger(__name__)

HALVES = (torch.float16, torch.bfloat16)
_COMPUTED = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
#: What a file of weights leaves free on the disk.
SPARE_BYTES = 1 << 30
_ALIGNMENT = 64


def narrower(weights: Sequence[torch.Tensor], precision: str) -> tuple[torch.dtype, torch.dtype] | None:
    """The half-precision dtype of the weights and the one that the device computes in, if it is another; else None.

    Args:
        weights: a graph's.
        precision: that the device computes in.
    """
    size = {dtype: sum(w.nbytes for w in weights if w.dtype is dtype) for dtype in HALVES}
    source = max(HALVES, key=lambda dtype: size[dtype])
    wanted = _COMPUTED[precision]
    return (source, wanted) if size[source] and wanted not in (source, torch.float16) else None


class Backing:
    """Memory for converted weights over a file that has no name; without a folder, ordinary memory.

    Once a device has laid the weights out for itself, :meth:`release` drops them from memory. Should it read them again
    all the same, they come from the file. The file goes with the process, however that ends.

    Args:
        dtype: of the converted weights.
        weights: what there must be room for.
        folder: where the file is made; None is nowhere.
    """

    def __init__(self, dtype: torch.dtype, weights: Sequence[torch.Tensor], folder: Path | None) -> None:
        self._dtype, self._used = dtype, 0
        self._held: list[torch.Tensor] = []
        size = sum(_aligned(weight.numel() * dtype.itemsize) for weight in weights)
        self._memory = _mapped(size, folder) if size and folder is not None else None

    def converted(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight in the other dtype; it lives as long as the backing."""
        if self._memory is None:
            room = torch.empty(weight.shape, dtype=self._dtype)
        else:
            room = torch.frombuffer(self._memory, dtype=self._dtype, count=weight.numel(), offset=self._used)
            self._used += _aligned(room.nbytes)
        self._held.append(room.view(weight.shape).copy_(weight))
        return self._held[-1]

    def release(self) -> None:
        """Drop what is in memory of the file; the content stays in it."""
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):  # Windows takes such pages back by itself
            self._memory.madvise(mmap.MADV_DONTNEED)


def _aligned(size: int) -> int:
    return math.ceil(size / _ALIGNMENT) * _ALIGNMENT


def _mapped(size: int, folder: Path) -> mmap.mmap | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < size + SPARE_BYTES:
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free there, {(size + SPARE_BYTES) >> 20} are wanted")
        with tempfile.TemporaryFile(dir=folder, prefix="weights-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a disk that is full says so here, not in the middle of a write
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        log.warning("Half-precision weights take %d MiB more memory: no file for them in %s (%s).", size >> 20, folder, error)
        return None


def retype(model: ov.Model, source: torch.dtype, wanted: torch.dtype) -> None:
    """Make everything that ``model`` computes in one floating type be of another, in place; inputs and results stay.

    Weights are expected to be constants of ``wanted`` already.

    Args:
        model: with its weights bound; it need not be valid, it is afterwards.
        source: floating dtype that is to go.
        wanted: floating dtype that it becomes.

    Raises:
        RuntimeError: some operator cannot be of that type; the model is of no use then.
    """
    old, new = TO_OV[source], TO_OV[wanted]
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "Constant" and node.get_element_type() == old:
            _replace(node, constant(_content(node, source).to(wanted), shared=False))
        elif kind == "Convert" and node.get_attributes()["destination_type"] == old.to_string():
            _replace(node, ops.convert(node.input_value(0), new.to_string()))
        elif kind == "Parameter" and node.get_element_type() == old:
            targets = node.output(0).get_target_inputs()
            cast = ops.convert(node, new.to_string())
            for target in targets:
                target.replace_source_output(cast.output(0))
    for result in model.get_results():
        if result.get_element_type() == old:
            value = result.input(0)
            value.replace_source_output(ops.convert(value.get_source_output(), old.to_string()).output(0))
    model.validate_nodes_and_infer_types()
    left = [node for node in model.get_ordered_ops() if _is_left(node, old)]
    if left:
        raise RuntimeError(f"{left[0].get_friendly_name()} ({left[0].get_type_name()}) stays in {source}")


def _is_left(node: ov.Node, old: ov.Type) -> bool:
    """Whether a node other than the graph's own inputs and results is still of the old type."""
    if node.get_type_name() in ("Parameter", "Result") or all(o.get_element_type() != old for o in node.outputs()):
        return False
    targets = [target.get_node().get_type_name() for output in node.outputs() for target in output.get_target_inputs()]
    return node.get_type_name() != "Convert" or any(kind != "Result" for kind in targets)


def _replace(node: ov.Node, by: ov.Node) -> None:
    by.set_friendly_name(node.get_friendly_name())
    for target in node.output(0).get_target_inputs():
        target.replace_source_output(by.output(0))


def _content(node: ov.Node, dtype: torch.dtype) -> torch.Tensor:
    content = torch.empty(list(node.get_output_shape(0)), dtype=dtype)
    if content.numel():
        node.get_tensor_view().copy_to(share(content))
    return content
