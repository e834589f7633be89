"""What is known of networks beside the model, by measurement: their seconds in PyTorch, and how exact a lower precision is.

It is kept beside the graphs, so that a network that took long once is compiled before its first call in a later process.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from ov_backend.core import content_hash
from ov_backend.core.atomic_file import atomic_write
from ov_backend.core.tensors import nested_tensors
from ov_backend.engine.ahead.history import kind_of
from ov_backend.guards.weights import weights_of

#: A network whose call takes so many seconds in PyTorch is compiled before the next one: a compile takes a few.
LONG_CALL_S = 0.5
#: So is one whose calls of equal shapes have taken so many seconds together.
LONG_CALLS_S = 5.0
#: What a lower precision must reach against PyTorch, or the network is computed in f32.
LEAST_PSNR = 50.0
_FILE = "other_networks.json"
_MAX_ENTRIES = 256
_MAX_SUMS = 4096


class Measurements:
    """The measurements of this process and of earlier ones on this machine."""

    def __init__(self) -> None:
        self._path: Path | None = None
        #: By architecture of those of which a call has taken long, its seconds in PyTorch for each element of its inputs.
        self._seconds: dict[str, float] = {}
        #: By architecture and content of the weights, and the precision, the dB of a call against PyTorch.
        self._psnr: dict[str, float] = {}
        #: By architecture of those that are slower when PyTorch runs their forwards and OpenVINO their blocks, how many times.
        self._slower: dict[str, float] = {}
        #: By architecture, the fewest seconds for each element of a call in PyTorch.
        self._fastest: dict[str, float] = {}
        #: By architecture, of this run: the seconds of calls that were answered so, those in PyTorch, and whether one compiled.
        self._divided: dict[str, tuple[float, float, bool]] = {}
        #: By architecture and elements, the seconds of all calls in PyTorch.
        self._sums: defaultdict[tuple[str, int], float] = defaultdict(float)

    def open(self, folder: Path | None) -> None:
        """Read what earlier processes have measured; None is this process alone."""
        if folder is None or self._path is not None:
            return
        self._path = folder / _FILE
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            self._seconds = _numbers(stored.get("seconds")) | self._seconds
            self._psnr = _numbers(stored.get("psnr")) | self._psnr
            self._slower = _numbers(stored.get("slower")) | self._slower

    def is_long(self, kind: str, elements: int) -> bool:
        """Whether a call would take long in PyTorch; False where nothing is known, and where OpenVINO takes longer."""
        if kind in self._slower:
            return False
        if self._sums.get((kind, elements), 0.0) >= LONG_CALLS_S:
            return True
        seconds = self._seconds.get(kind)
        return seconds is not None and seconds * elements >= LONG_CALL_S

    def note_seconds(self, kind: str, elements: int, seconds: float) -> None:
        """A call has taken so long in PyTorch."""
        if len(self._sums) >= _MAX_SUMS:
            self._sums.clear()
        self._sums[kind, elements] += seconds
        self._fastest[kind] = min(seconds / max(elements, 1), self._fastest.get(kind, math.inf))
        if kind in self._seconds:
            self._seconds[kind] = min(seconds / max(elements, 1), self._seconds[kind])
        elif seconds >= LONG_CALL_S:
            self._seconds[kind] = seconds / max(elements, 1)
            self._write()

    def slower(self, kind: str) -> float | None:
        """How many times as long as PyTorch alone a network took whose forward PyTorch had to run; None where it was faster."""
        return self._slower.get(kind)

    def note_divided(self, kind: str, elements: int, seconds: float, compiled: bool) -> None:
        """A call whose forward PyTorch had to run has taken so long, with all that was read and tried for it."""
        so_far, alone, earlier = self._divided.get(kind, (0.0, 0.0, False))
        in_pytorch = self._seconds.get(kind, self._fastest.get(kind, math.inf)) * elements
        self._divided[kind] = so_far + seconds, alone + in_pytorch, earlier or compiled

    def end_run(self) -> None:
        """A generation or job is over: what took longer than PyTorch in it, and compiled nothing, is PyTorch's from now on."""
        known = {kind: (took, alone) for kind, (took, alone, compiled) in self._divided.items() if not compiled}
        slower = {kind: took / alone for kind, (took, alone) in known.items() if took > alone > 0}
        self._divided.clear()
        if slower:
            self._slower |= slower
            self._write()

    def psnr(self, key: str) -> float | None:
        """What :meth:`note_psnr` was told."""
        return self._psnr.get(key)

    def note_psnr(self, key: str, decibels: float) -> None:
        """A lower precision has come so close to PyTorch with these weights."""
        self._psnr[key] = min(decibels, 1000.0)
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        tables = {"seconds": self._seconds, "psnr": self._psnr, "slower": self._slower}
        newest = {name: dict(list(table.items())[-_MAX_ENTRIES:]) for name, table in tables.items()}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._path) as file:
                file.write(json.dumps(newest).encode())


def kind_and_content(module: torch.nn.Module, precision: str) -> str:
    """Names an architecture, the content of its weights, and a precision."""
    content = content_hash.of(_bytes_of(tensor) for tensor in weights_of(module).values())
    return f"{kind_of(module)} {content_hash.NAME} {content.hex()} {precision}"


def elements_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The number of elements of all tensors among the arguments of a call."""
    return sum(tensor.numel() for tensor in nested_tensors([*args, *kwargs.values()]))


def decibels(results: Any, expected: Any) -> float:
    """Peak signal-to-noise ratio of the worst of the tensors in two equal results.

    The peak is what the expected ones span, but at least 1 of a picture [B, 3, H, W]: its dark or plain parts span little.
    """
    pairs = zip(nested_tensors([results]), nested_tensors([expected]))
    return min((_psnr(a.double(), b.double()) for a, b in pairs if b.is_floating_point() and b.numel()), default=0.0)


def is_plain(results: Any) -> bool:
    """Whether results are only parts of pictures that span little, which say little of how exact a network is for others."""
    return all(_is_picture(tensor) and _span(tensor) < 1 for tensor in nested_tensors([results]))


def _psnr(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return 0.0
    error, peak = float((a - b).pow(2).mean()), max(_span(b), float(_is_picture(b)))
    if error == 0:
        return math.inf
    return 10 * math.log10(peak**2 / error) if peak > 0 and math.isfinite(error) else 0.0


def _is_picture(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.shape[1] == 3 and tensor.is_floating_point() and tensor.numel() > 0


def _span(tensor: torch.Tensor) -> float:
    return float(tensor.max() - tensor.min())


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def _numbers(table: Any) -> dict[str, float]:
    """The entries of a table that are finite and positive numbers."""
    entries = table.items() if isinstance(table, dict) else ()
    return {str(key): float(value) for key, value in entries if isinstance(value, (int, float)) and 0 < value < math.inf}
