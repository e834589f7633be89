"""Shared fixtures. Tests run strict: a fallback to PyTorch raises unless a test is about fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings


@pytest.fixture
def strict(tmp_path: Path) -> Callable[..., Settings]:
    """Settings in f32 with a graph store of the test's own, where every fallback raises."""

    def make(**changes: Any) -> Settings:
        given = {"device": "CPU", "precision": "f32", "cache_dir": str(tmp_path / "graphs"), "fallback": "raise"}
        return Settings(**{**given, **changes})

    return make


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    """No compiled graph and no Dynamo state outlives a test; no gradients are recorded in one."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()
    ov_backend.reset()
