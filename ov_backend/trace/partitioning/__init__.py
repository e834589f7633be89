"""Which operators run in OpenVINO, which stay in PyTorch, and the graph split accordingly."""

from __future__ import annotations

from ov_backend.trace.partitioning.partitioner import (
    PREFIX,
    VIEW,
    Coverage,
    Part,
    Split,
    aliased_outputs,
    coverage,
    part_of,
    reason,
    split,
    unsupported,
)

__all__ = [
    "PREFIX",
    "VIEW",
    "Coverage",
    "Part",
    "Split",
    "aliased_outputs",
    "coverage",
    "part_of",
    "reason",
    "split",
    "unsupported",
]
