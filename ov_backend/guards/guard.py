"""The guard of one kind of trace: the code and state that the trace has read, and the weights."""

from __future__ import annotations

import torch

from ov_backend.guards.code import CodeGuard, FixedCode
from ov_backend.guards.weights import Checksums, WeightsGuard


class Guard:
    """Watches everything that a graph depends on beside the call itself.

    All guards of a network share their checksums, so that weights are read once.
    """

    def __init__(self, module: torch.nn.Module, code: CodeGuard | FixedCode, checksums: Checksums) -> None:
        self.code = code
        self.weights = WeightsGuard(module, lambda: code.tensors, checksums)

    def check(self, starts: bool = False) -> None:
        """Bring the fingerprint of the code and the digest of the weights up to date.

        Where a run of calls ``starts``, or a compile, the weights are read in full unless they were a moment ago.
        """
        if starts:
            self.weights.read_again()
        if not self.code.untouched():
            self.code.check()
            self.weights.refresh()  # there may be new tensors
        elif not self.code.refused:
            self.weights.check()

    def is_current(self, fingerprint: str, generation: int | None) -> bool:
        """Whether the code, and if a generation of the weights is given these, are still what they were."""
        self.code.check()  # values that a forward stores on its module do not count as a change of code
        if self.code.fingerprint != fingerprint:
            return False
        return generation is None or (self.weights.generation == generation and self.weights.untouched())
