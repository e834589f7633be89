"""The state of a module's live weights: has anything changed since a graph was compiled, and is it an old friend?

Checked before every call, so it must be cheap (a few milliseconds for a Stable Diffusion UNet), and it must not miss
what hosts do behind one's back: a parameter replaced by another, written in place (``_version``), or written through
``.data``, which counts no version; for the last, a strided probe of every weight's content is compared.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from ov_backend.guards.values import LooseTensor

#: Elements of every weight that are compared at every check.
PROBES = 16

#: Networks whose weights take no more than this are compared in full at every check.
SMALL_BYTES = 1 << 20

#: Address and version of a tensor's content.
Mark = tuple[int, int]


def weights_of(module: torch.nn.Module, loose: Sequence[LooseTensor] = ()) -> dict[str, torch.Tensor]:
    """Every tensor that a module's result depends on: parameters, buffers, and those that stand elsewhere.

    A tensor that stands under two names is listed once.

    Args:
        module: the module.
        loose: tensors in plain attributes, lists, dicts, closures and globals, as a walk has found them.
    """
    weights: dict[str, torch.Tensor] = dict(module.named_parameters())
    weights.update(module.named_buffers())
    listed = {id(tensor) for tensor in weights.values()}
    for path, read, _ in loose:
        tensor = read()
        if isinstance(tensor, torch.Tensor) and id(tensor) not in listed:
            listed.add(id(tensor))
            weights[path] = tensor
    return weights


@dataclass(frozen=True)
class _Known:
    """What was noted of one weight: which object it was, where and which version, a few elements, its checksum."""

    tensor: weakref.ref[torch.Tensor]  # not its id: that may be another tensor's by now
    mark: Mark
    probe: torch.Tensor
    checksum: str

    def is_still(self, tensor: torch.Tensor) -> bool:
        return self.tensor() is tensor and self.mark == _mark(tensor) and torch.equal(self.probe, _probe(tensor))


@dataclass(frozen=True)
class Placement:
    """Where a set of weights lay in memory; what is compiled may go on reading them there.

    It does not keep them alive: :meth:`exists` says whether their owner still does.
    """

    tensors: tuple[tuple[weakref.ref[torch.Tensor], int], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Placement:
        """The placement of live weights."""
        return cls(tuple((weakref.ref(tensor), _address(tensor)) for tensor in tensors.values()))

    def exists(self) -> bool:
        """Whether every weight is still there, and where it was."""
        return all((tensor := ref()) is not None and _address(tensor) == address for ref, address in self.tensors)


class Checksums:
    """What is known of live tensors, so that several guards read each of them once."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, _Known]:
        """What is known of these tensors now; only those that changed are read in full."""
        self._known = {key: known for key, known in self._known.items() if known.tensor() is not None}
        stale = [tensor for tensor in tensors.values() if not self._is_known(tensor)]
        with ThreadPoolExecutor() as pool:  # hashlib releases the interpreter lock
            for tensor, checksum in zip(stale, pool.map(_checksum, stale)):
                self._known[id(tensor)] = _Known(weakref.ref(tensor), _mark(tensor), _probe(tensor).clone(), checksum)
        return {name: self._known[id(tensor)] for name, tensor in tensors.items()}

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known.is_still(tensor)


class WeightsGuard:
    """Watches the weights of one module.

    ``check()`` is cheap and says whether anything changed; ``digest`` names the content, so that a return to an earlier
    state (a LoRA taken out again) is recognised although every version counter has moved on. ``layout`` names the
    weights' names, shapes and dtypes: a graph fits only weights of its own layout. ``address`` names where they lie, and
    ``generation`` grows whenever anything was found changed.

    Args:
        module: the module.
        loose: tensors outside parameters and buffers, as of now.
        checksums: what is known of the tensors; guards of the same module share it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loose: Callable[[], Sequence[LooseTensor]] = tuple,
        checksums: Checksums | None = None,
    ) -> None:
        self._module = module
        self._loose = loose
        self._checksums = Checksums() if checksums is None else checksums
        self._tensors: dict[str, torch.Tensor] = {}
        self._owners: list[tuple[dict[str, Any], str, Any, Mark]] = []
        self._readers: list[tuple[Callable[[], Any], Any, Mark]] = []
        self._probes: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        self.digest = ""
        self.layout = ""
        self.address = 0
        self.generation = 0
        self.refresh()

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The live weights by name, as of the last refresh."""
        return self._tensors

    @property
    def bytes(self) -> int:
        """Size of all weights in memory."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def check(self) -> bool:
        """Whether the content is still what it was; takes note of the new one if not."""
        if self.untouched():
            return True
        before = self.digest
        self.refresh()
        return self.digest == before

    def untouched(self) -> bool:
        """Whether nothing has changed since the last refresh; only looks."""
        return self.in_place() and all(torch.equal(_joined(views), content) for views, content in self._probes)

    def in_place(self) -> bool:
        """Whether every weight is the same object, at the same address and of the same version, as at the last refresh."""
        for owner, name, value, mark in self._owners:
            if owner.get(name) is not value or (value is not None and _mark(value) != mark):
                return False
        for read, value, mark in self._readers:
            if read() is not value or (isinstance(value, torch.Tensor) and _mark(value) != mark):
                return False
        return bool(self.digest)  # there is none after a release

    def refresh(self) -> None:
        """Take note of the weights as they are now. Only those that changed are read in full."""
        loose = self._loose()
        tensors = weights_of(self._module, loose)
        known = self._checksums.of(tensors)
        before = (self.digest, self.layout, self.address)
        self._tensors = tensors
        self._owners = [(table, key, value, _mark_or_none(value)) for table, key, value in _places(self._module)]
        self._readers = [(read, value, _mark_or_none(value)) for _, read, _ in loose for value in [read()]]
        self._probes = self._gather()
        self.digest = _digest(f"{name}={known[name].checksum}" for name in tensors)
        self.layout = _digest(f"{name}={tensor.dtype}{tuple(tensor.shape)}" for name, tensor in tensors.items())
        self.address = hash(tuple(_address(tensor) for tensor in tensors.values()))
        self.generation += (self.digest, self.layout, self.address) != before

    def release(self) -> None:
        """Hold on to no memory of weights that their module has let go of; the next check takes note anew."""
        self._tensors, self._owners, self._readers, self._probes = {}, [], [], []
        self.generation += 1
        self.digest = ""

    def _gather(self) -> list[tuple[list[torch.Tensor], torch.Tensor]]:
        """Views on what is compared at every check, by dtype, and its content now: one comparison for each dtype.

        Small networks are compared in full: there are writes that no version counter sees, and these cost nothing there.
        """
        views = defaultdict(list)
        whole = self.bytes <= SMALL_BYTES
        for tensor in self._tensors.values():
            if tensor.numel() and tensor.device.type == "cpu":
                probe = _as_bits(tensor).reshape(-1) if whole and tensor.is_contiguous() else _probe(tensor)
                views[probe.dtype].append(probe)
        return [(group, _joined(group).clone()) for group in views.values()]


def _joined(views: list[torch.Tensor]) -> torch.Tensor:
    return views[0] if len(views) == 1 else torch.cat(views)


def _places(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Every place in the module's tables that holds a tensor, or nothing where a tensor might come to be."""
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, value in table.items():
                yield table, name, value


def _mark(tensor: torch.Tensor) -> Mark:
    return _address(tensor), 0 if tensor.is_inference() else tensor._version


def _mark_or_none(value: Any) -> Mark:
    return _mark(value) if isinstance(value, torch.Tensor) else (0, 0)


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.device.type == "cpu" else 0


def _bits(dtype: torch.dtype) -> torch.dtype:
    """An integer dtype of the same width: bits compare equal where NaN would not."""
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]


def _probe(tensor: torch.Tensor) -> torch.Tensor:
    """A view on a few elements, spread over the whole of a weight (contiguous or not)."""
    if not tensor.numel() or tensor.device.type != "cpu":
        return torch.empty(0)
    bits = _as_bits(tensor)
    if bits.is_contiguous():
        return bits.view(-1)[:: _step(bits.numel(), bits.numel() // (len(bits) if bits.dim() else 1))]
    sizes, strides = bits.shape, bits.stride()
    longest = max(sizes)
    steps = [size // min(PROBES, longest) if size >= min(PROBES, longest) else 0 for size in sizes]  # along a diagonal
    count = min(math.ceil(size / step) for size, step in zip(sizes, steps) if step)
    return bits.as_strided((count,), (sum(map(int.__mul__, steps, strides)),), bits.storage_offset())


def _step(count: int, row: int) -> int:
    """A step through ``count`` elements that meets about :data:`PROBES` of them, in ever other places of their rows."""
    step = max(1, count // PROBES)
    if step < row:
        return step
    return step - step % row - row + max(1, round(0.618 * row))  # whole rows only would always meet the same column


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The content as integers, without a copy."""
    data = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return data.view(_bits(data.dtype))


def _checksum(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.device.type == "cpu" and tensor.numel():
        digest.update(memoryview(_as_bits(tensor).contiguous().reshape(-1).numpy()).cast("B"))
    return digest.hexdigest()[:32]


def _digest(parts: Iterator[str]) -> str:
    return hashlib.sha256(";".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
