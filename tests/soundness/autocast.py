"""Answers in the default precision are judged by PyTorch's autocast to bfloat16.

With precision auto, no answer may be further from float32 than twice autocast's, plus :data:`SLACK`. Where one rounding decides a
comparison or a whole number, autocast's own distance is a matter of luck. So it is computed several times, with noise of the size
of a rounding error in every result, and the largest distance counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FACTOR, SLACK = 2.0, 0.005
_RUNS, _MORE_RUNS = 6, 40
_NOISE = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-23}
#: Between the smallest numbers of float16 there is no less.
_LEAST = {torch.float16: 2.0**-24}


class _Noise(TorchDispatchMode):
    """Adds a rounding error to every result that is no whole number; notes whether any was bfloat16."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        #: The device makes 0 of numbers too small to be normal.
        self._flushes = seed % 2 == 1
        self.rounded = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(each.alias_info is not None for each in func._schema.returns):
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(self._noisy(each) for each in result)
        return self._noisy(result)

    def _noisy(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in _NOISE:
            return value
        self.rounded |= value.dtype == torch.bfloat16
        noise = (torch.rand(value.shape, generator=self._generator) * 2 - 1) * _NOISE[value.dtype]
        noise[(value == value.round()) & (value.abs() < 1 / _NOISE[value.dtype])] = 0  # whole numbers are exact
        wide = value.double()
        if self._flushes and value.dtype is not torch.float16:
            wide = torch.where(wide.abs() < torch.finfo(value.dtype).tiny, wide * 0, wide)
        return (wide + noise * wide.abs().clamp(min=_LEAST.get(value.dtype, 0) / _NOISE[value.dtype])).to(value.dtype)


@dataclass
class Reference:
    """What eager PyTorch answers in float32 (``exact``), and what autocast answers (``runs``, first without noise)."""

    exact: list[torch.Tensor]
    runs: list[list[torch.Tensor]]
    rounded: bool


Run = Callable[[], Sequence[torch.Tensor]]


def reference(run: Run, count: int = _RUNS, low: Run | None = None) -> Reference | None:
    """Compute the reference; None where autocast cannot."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = [*run()]
        runs, rounded = [], False
        for seed in range(count):
            noise = _Noise(seed)
            try:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low is None):
                    if seed:
                        with noise:
                            runs.append([*(low or run)()])
                    else:
                        runs.append([*(low or run)()])
            except RuntimeError:  # an operator that takes no two dtypes
                return None
            rounded |= noise.rounded
    return Reference(exact, runs, rounded)


def difference(got: Sequence[torch.Tensor], run: Run, low: Run | None = None) -> str | None:
    """What is wrong with results in the default precision: "" if nothing; None where autocast gives no answer.

    ``run`` computes them in eager PyTorch, in float32; ``low`` in bfloat16, None stands for ``run`` under autocast.
    """
    for count in (_RUNS, _MORE_RUNS):
        known = reference(run, count, low)
        if known is None:
            return None
        dtypes = [each.dtype for each in (known.exact if low is None else known.runs[0])]
        wrong = [words for i, each in enumerate(got) if (words := _beyond(each, i, known, dtypes[i]))]
        if not wrong:
            return ""
    return "; ".join(wrong)


def _beyond(got: torch.Tensor, place: int, known: Reference, dtype: torch.dtype) -> str:
    exact, runs = known.exact[place], [run[place] for run in known.runs]
    if got.shape != exact.shape or got.dtype != dtype:
        return f"result {place}: {got.dtype}{list(got.shape)} instead of {dtype}{list(exact.shape)}"
    if any(run.shape != exact.shape for run in runs) or not exact.numel():
        return ""
    if not exact.is_floating_point():
        allowed = FACTOR * max(int((run != exact).sum()) for run in runs)
        allowed += 1 + SLACK * exact.numel() if known.rounded else 0
        count = int((got != exact).sum())
        return f"result {place}: {count} of {exact.numel()} values differ, {allowed:.0f} may" if count > allowed else ""
    same = torch.stack([_pattern(run) == _pattern(exact) for run in runs]).all(0)
    if bool((same & (_pattern(got) != _pattern(exact))).any()):
        return f"result {place}: differs in what is not finite"
    finite = same & exact.isfinite()
    ours, theirs = distance(got, exact, finite), max(distance(run, exact, finite) for run in runs)
    return f"result {place}: off by {ours:.1e}, autocast by {theirs:.1e}" if not ours <= FACTOR * theirs + SLACK else ""


def distance(value: torch.Tensor, exact: torch.Tensor, finite: torch.Tensor | None = None) -> float:
    """The norm of the difference, relative to the norm of what is exact."""
    value, exact = value.double(), exact.double()
    if finite is not None:
        value, exact = value[finite], exact[finite]
    least = torch.finfo(torch.float32).tiny ** 0.5
    return float((value - exact).norm()) / max(float(exact.norm()), least)


def _pattern(value: torch.Tensor) -> torch.Tensor:
    """0 for finite values, and a number each for the others."""
    return value.isnan() * 1 + value.isposinf() * 2 + value.isneginf() * 3
