"""What is mutated: a module and one call of it, built anew in every process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


def _nothing() -> None:
    pass


@dataclass
class Case:
    """A module and one call.

    Attributes:
        module: what is accelerated.
        args: of the call.
        kwargs: of the call.
        reset: puts back what a call of the module changes, such as a counter.
        repeats: how many calls follow each other without a reset; more than one where a call changes what the next one reads.
        context: entered around every call.
        roots: what else a mutation may change, by name.
        finish: puts back what building the case changed outside it.
        hooks: what a host changes about the network, ``NetworkHooks`` or None.
        tolerance: of its results, relative to the largest value.
        refused: why the host leaves a call to PyTorch now, or "".
        consumed: names of attributes from which a call itself writes weights; no undo of a change there would put these back.
    """

    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reset: Callable[[], Any] = _nothing
    repeats: int = 1
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    roots: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[], Any] = _nothing
    hooks: Any = None
    tolerance: float = 1e-3
    refused: Callable[[], str] = str
    consumed: tuple[str, ...] = ()

    def call(self, function: Callable[..., Any]) -> Any:
        """Call the module's forward, or what stands for it, with the state and the random numbers of the first call."""
        self.reset()
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with torch.no_grad(), self.context():
            results = [function(*self.args, **self.kwargs) for _ in range(self.repeats)]
        return results if self.repeats > 1 else results[0]


#: Builds a case; its names are the same in every process.
Builder = Callable[[], Case]
