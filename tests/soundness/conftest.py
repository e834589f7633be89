"""The harness silences two loggers; other tests read them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.soundness.harness import SILENCED


@pytest.fixture(autouse=True, scope="module")
def _levels_restored() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in SILENCED]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels):
        logger.setLevel(level)
