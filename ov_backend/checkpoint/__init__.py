"""Loads a Stable Diffusion checkpoint file as a diffusers pipeline, without any download.

What needs PyTorch is imported at first use: the command line reads headers before it waits for that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ov_backend.checkpoint.header import read_header
from ov_backend.core.package_files import TOKENIZER

if TYPE_CHECKING:
    from ov_backend.checkpoint.loader import load_pipeline
    from ov_backend.checkpoint.single_file import load_any_pipeline

__all__ = ["TOKENIZER", "load_any_pipeline", "load_pipeline", "read_header"]

_LAZY = {"load_pipeline": "loader", "load_any_pipeline": "single_file"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"ov_backend.checkpoint.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
