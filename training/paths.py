"""The folders that the training code reads and writes."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT_DIR = ROOT / "demo_checkpoint"
CONFIG_FILE = CHECKPOINT_DIR / "fluent-sd.yaml"
COMPANION_DIR = CHECKPOINT_DIR / "fluent-sd"
TOKENIZER_DIR = COMPANION_DIR / "tokenizer"
RESULTS_DIR = ROOT / "training" / "results"


def work_dir() -> Path:
    """The folder of downloads, rendered pictures and states: ``$FLUENT_WORK``, or ``.train`` in the checkout."""
    path = Path(os.environ.get("FLUENT_WORK", ROOT / ".train"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def data_dir() -> Path:
    """The folder of the prepared data set."""
    return work_dir() / "data"
