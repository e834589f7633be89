"""Loads a Stable Diffusion checkpoint file as a diffusers pipeline, without any download."""

from __future__ import annotations

from ov_backend.checkpoint.header import read_header
from ov_backend.checkpoint.loader import TOKENIZER, load_pipeline
from ov_backend.checkpoint.single_file import load_any_pipeline

__all__ = ["TOKENIZER", "load_any_pipeline", "load_pipeline", "read_header"]
