"""What tests of offloaded weights share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ov_backend.memory.linux_memory import PAGE
from ov_backend.memory.offload_weights import CannotOffload, check, offload_weights
from ov_backend.memory.regions import regions


def on_disk(folder: Path) -> Path:
    """The folder, if weights can be offloaded there; else the test is skipped."""
    try:
        check(folder)
    except CannotOffload as error:
        pytest.skip(str(error))
    return folder


def offloaded(module: torch.nn.Module, folder: Path) -> int:
    """Give the weights of a module back; returns their number."""
    offload_weights(module.parameters(), on_disk(folder))
    return sum(regions.unwritten(parameter) is not None for parameter in module.parameters())


def resident(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's memory that are in this process's pages now; it may lie in several mappings."""
    first, last = tensor.data_ptr() // PAGE, (tensor.data_ptr() + tensor.nbytes - 1) // PAGE
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(first * 8)
        entries = np.frombuffer(file.read((last - first + 1) * 8), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum()) * PAGE  # the highest bit: the page is present
