"""What tests of offloaded weights share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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
    """Bytes of a tensor's memory that are pages of this process."""
    address = tensor.data_ptr()
    for block in Path("/proc/self/smaps").read_text().split("\nVmFlags")[:-1]:
        lines = block.split("\n")
        head = next(line for line in lines if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0])
        start, end = (int(each, 16) for each in head.split(" ")[0].split("-"))
        if start <= address + tensor.nbytes // 2 < end:
            return int(next(line for line in lines if line.startswith("Rss:")).split()[1]) << 10
    raise AssertionError("the tensor lies nowhere")
