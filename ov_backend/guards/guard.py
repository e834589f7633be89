"""The guard of one kind of trace: the code and state that the trace has read, and the weights."""

from __future__ import annotations

import torch

from ov_backend.guards.code import CodeGuard, FixedCode
from ov_backend.guards.weights import Checksums, WeightsGuard


class Guard:
    """Watches everything that a graph depends on beside the call itself.

    Args:
        module: whose weights are watched.
        code: the guard of code and state.
        checksums: shared by all guards of a network, so that weights are read once.
    """

    def __init__(self, module: torch.nn.Module, code: CodeGuard | FixedCode, checksums: Checksums) -> None:
        self.code = code
        self.weights = WeightsGuard(module, lambda: code.tensors, checksums)

    def check(self, starts: bool = False) -> None:
        """Bring the fingerprint of the code and the digest of the weights up to date.

        Args:
            starts: a run of calls begins, or a compile: the weights are read in full unless they were a moment ago.
        """
        if starts:
            self.weights.read_again()
        if not self.code.untouched():
            self.code.check()
            self.weights.refresh()  # there may be new tensors
        elif not self.code.refused:
            self.weights.check()

    def is_current(self, fingerprint: str, generation: int | None) -> bool:
        """Whether the code, and if a generation is given the weights, are still what they were.

        Args:
            fingerprint: of the code.
            generation: of the weights.
        """
        self.code.check()  # values that a forward stores on its module do not count as a change of code
        if self.code.fingerprint != fingerprint:
            return False
        return generation is None or (self.weights.generation == generation and self.weights.untouched())
