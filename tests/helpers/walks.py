"""Counts how often a guard goes through the code of a network again, which takes longer than a step may."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from ov_backend.guards.code import CodeGuard


@contextlib.contextmanager
def no_walks() -> Iterator[None]:
    """In this block, what networks depend on is looked at, and nothing of it seems to have changed."""
    walked: list[CodeGuard] = []
    original = CodeGuard._look

    def counted(guard: CodeGuard) -> None:
        walked.append(guard)
        original(guard)

    with mock.patch.object(CodeGuard, "_look", counted):
        yield
    assert not walked, "a guard took unchanged code for changed"
