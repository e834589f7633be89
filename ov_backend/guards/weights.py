"""The state of a module's live weights: have they changed since a graph was compiled, and was a graph compiled for them before?

They are checked before every call, so the check must be cheap (a few milliseconds for a Stable Diffusion UNet). It must find
every change: a parameter that is replaced by another, written in place (``_version``), or written through ``.data``, which
counts no version. For the last, some elements of every weight are compared at every call, and the whole content from time to
time.
"""

from __future__ import annotations

import hashlib
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ov_backend.core.errors import CaptureError
from ov_backend.core.tensors import kind_of
from ov_backend.guards import content
from ov_backend.guards.checksums import Checksums, Known
from ov_backend.guards.content import Mark
from ov_backend.guards.watch import LooseTensor
from ov_backend.memory.regions import Region, regions

#: Networks whose weights take no more than this are compared in full at every check.
SMALL_BYTES = 1 << 20


def weights_of(module: torch.nn.Module, loose: Sequence[LooseTensor] = ()) -> dict[str, torch.Tensor]:
    """Every tensor that a module's result depends on, once: parameters, buffers, and those that a walk has found elsewhere."""
    weights: dict[str, torch.Tensor] = dict(module.named_parameters())
    weights.update(module.named_buffers())
    listed = {id(tensor) for tensor in weights.values()}
    for path, read, _ in loose:
        tensor = read()
        if isinstance(tensor, torch.Tensor) and id(tensor) not in listed:
            listed.add(id(tensor))
            weights[path] = tensor
    return weights


def ties_of(module: torch.nn.Module, loose: Sequence[LooseTensor], weights: Mapping[str, torch.Tensor]) -> str:
    """Which further names stand for the same tensors as those that are listed; "" without such names."""
    listed = {id(tensor): name for name, tensor in weights.items()}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    named += [(path, tensor) for path, read, _ in loose if isinstance(tensor := read(), torch.Tensor)]
    return " ".join(f"{name}={known}" for name, tensor in named if (known := listed.get(id(tensor), name)) != name)


@dataclass(frozen=True)
class Placement:
    """Where a set of weights lay in memory; what is compiled may go on reading them there.

    It does not keep them alive: :meth:`exists` says whether their owner still does. ``address`` is one number for all of them,
    as in :class:`WeightsGuard`.
    """

    tensors: tuple[tuple[weakref.ref[torch.Tensor], int], ...]
    address: int

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], gone: Callable[[], None] | None = None) -> Placement:
        """The placement of live weights; ``gone`` is called when one is deleted, at any moment and in any thread."""

        def deleted(_: object) -> None:
            if gone is not None:
                gone()

        pairs = tuple((weakref.ref(tensor, deleted), content.address(tensor)) for tensor in tensors.values())
        return cls(pairs, hash(tuple(address for _, address in pairs)))

    def alive(self) -> list[torch.Tensor]:
        """The weights that are still there."""
        return [tensor for ref, _ in self.tensors if (tensor := ref()) is not None]

    def lives(self) -> bool:
        """Whether every weight is still there; hooks that offload a network may have moved it in memory."""
        return all(ref() is not None for ref, _ in self.tensors)

    def exists(self) -> bool:
        """Whether every weight is still there, and where it was."""
        return all((tensor := ref()) is not None and content.address(tensor) == address for ref, address in self.tensors)


class WeightsGuard:
    """Watches the weights of one module.

    ``check()`` is cheap and says whether anything changed; ``digest`` names the content, so that a return to an earlier
    state (a LoRA taken out again) is recognised although every version counter has moved on. ``layout`` names the
    weights' names, shapes and dtypes, and ``ties`` names that stand for one tensor: a graph fits only weights of its own layout.
    ``address`` names where they lie, and ``generation`` grows whenever anything was found changed. Guards of one module share
    their checksums.
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
        # no reference here keeps a weight alive that its owner has deleted
        self._tensors: dict[str, weakref.ref[torch.Tensor]] = {}
        #: Where tensors stand, or may come to stand: table, name, and what was there.
        self._places: tuple[list[dict[str, Any]], list[str], list[Callable[[], torch.Tensor | None]]] = [], [], []
        self._by_id: dict[int, weakref.ref[torch.Tensor]] = {}
        self._marks: Any = None
        self._readers: list[tuple[Callable[[], Any], Any, Mark]] = []
        #: Views on what is compared at every check, and the bytes that were there.
        self._probes: tuple[list[np.ndarray], list[bytes]] = [], []
        #: Weights whose memory was offloaded: the kernel says whether they were written, and nothing of them is read.
        self._offloaded: list[tuple[weakref.ref[torch.Tensor], Region]] = []
        self._epoch = 0
        self._small = True
        self._changes = 0
        self.digest = ""
        self.layout = self.ties = ""
        self.address = 0
        self.generation = 0
        self.refresh()

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The live weights by name, as of the last refresh."""
        return {name: tensor for name, ref in self._tensors.items() if (tensor := ref()) is not None}

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is one of the weights, as of the last refresh."""
        ref = self._by_id.get(id(tensor))
        return ref is not None and ref() is tensor

    def check(self) -> bool:
        """Whether the content is still what it was; takes note of the new one if not.

        Large networks are also read in full from time to time, see :class:`Checksums`.
        """
        if not self._small:
            self._checksums.read_again()
        before = self.digest
        if self.untouched():
            return True
        self.refresh()
        return self.digest == before

    def is_unchanged(self) -> bool:
        """Whether nothing has changed since the last refresh; unlike :meth:`untouched`, this never takes note of anything.

        Another thread may be writing weights meanwhile, and a note would give what it writes the digest of what was there.
        """
        return self._epoch == regions.epoch and self.untouched()

    def untouched(self) -> bool:
        """Whether nothing has changed since the last refresh; only looks, but at other places once memory was offloaded."""
        if self._changes != self._checksums.changes or not self.in_place():
            return False
        if self._epoch != regions.epoch:
            before = self.generation
            self.refresh()
            return self.generation == before
        views, noted = self._probes
        return list(map(np.ndarray.tobytes, views)) == noted and self._unwritten()

    def _unwritten(self) -> bool:
        pairs = [(tensor, region) for ref, region in self._offloaded if (tensor := ref()) is not None]
        return len(pairs) == len(self._offloaded) and regions.are_unwritten(pairs)

    def in_place(self) -> bool:
        """Whether every weight is the same object, at the same address and of the same version, as at the last refresh."""
        tables, names, refs = self._places
        values = [table.get(name) for table, name in zip(tables, names)]
        if not all(map(operator.is_, values, [ref() for ref in refs])):
            return False
        if content.marks([value for value in values if value is not None]) != self._marks:
            return False
        for read, value, mark in self._readers:
            if read() is not value or (mark and content.mark(value) != mark):
                return False
        return bool(self.digest)  # there is none after a release

    def refresh(self) -> None:
        """Take note of the weights as they are now. Only those that changed are read in full, or all of a small network.

        Raises:
            CaptureError: one has no plain memory that could be compared.
        """
        loose, self._epoch = self._loose(), regions.epoch
        tensors = weights_of(self._module, loose)
        for name, tensor in tensors.items():
            if tensor.layout is not torch.strided or tensor.is_quantized:
                raise CaptureError(f"the weight {name} is {kind_of(tensor)}, whose changes would not be seen")
        self._small = sum(tensor.nbytes for tensor in tensors.values()) <= SMALL_BYTES
        if self._small:
            self._checksums.read_again(always=True)
        known, self._changes = self._checksums.of(tensors), self._checksums.changes
        before = (self.digest, self.layout, self.address)
        self._tensors = {name: weakref.ref(tensor) for name, tensor in tensors.items()}
        self._by_id = {id(tensor): ref for tensor, ref in zip(tensors.values(), self._tensors.values())}
        places = list(_places(self._module))
        tables, names, values = (list(column) for column in zip(*places)) if places else ([], [], [])
        self._places = tables, names, [(lambda: None) if value is None else weakref.ref(value) for value in values]
        self._marks = content.marks([value for value in values if value is not None])
        values = [(read, read()) for _, read, _ in loose]
        self._readers = [(read, x, content.mark(x) if isinstance(x, torch.Tensor) else ()) for read, x in values]
        self._probes = self._gather(known)
        self.digest = _digest(f"{name}={known[name].name}" for name in tensors)
        self.ties = ties_of(self._module, loose, tensors)
        self.layout = _digest((*(f"{name}={content.layout(tensor)}" for name, tensor in tensors.items()), self.ties))
        self.address = hash(tuple(content.address(tensor) for tensor in tensors.values()))
        self.generation += (self.digest, self.layout, self.address) != before

    def read_again(self) -> None:
        """A run of calls begins, or a compile: read all content again, unless that was a moment ago."""
        if not self._small:
            self._checksums.read_again(starts=True)

    def read_since(self, moment: float) -> None:
        """Read all content again, unless that was done since a moment of the monotonic clock."""
        if not self._small:
            self._checksums.read_since(moment)

    def marks(self) -> tuple[Mark, ...]:
        """Address and version of every weight, as of now; versions only grow."""
        return tuple(content.mark(tensor) for tensor in self.tensors.values())

    def release(self) -> None:
        """Hold on to no memory of weights that their module has let go of; the next check takes note anew."""
        self._tensors, self._places, self._readers, self._probes, self._offloaded = {}, ([], [], []), [], ([], []), []
        self.generation += 1
        self.digest = ""

    def _gather(self, known: Mapping[str, Known]) -> tuple[list[np.ndarray], list[bytes]]:
        """Views on what is compared at every check, and its content now.

        Small networks are compared in full: there are writes that no version counter sees, and these cost nothing there. They are
        views of numpy, which copies a few elements in a third of the time that PyTorch takes.
        """
        views: list[np.ndarray] = []
        self._offloaded = []
        for name, tensor in self.tensors.items():
            region = known[name].watched(tensor)
            if region is not None:
                self._offloaded.append((weakref.ref(tensor), region))
            elif tensor.numel() and tensor.device.type == "cpu":
                whole = content.whole(tensor) if self._small else None
                views.append((content.probe(tensor) if whole is None else whole).numpy())
        return views, list(map(np.ndarray.tobytes, views))


def _places(module: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Every place in the module's tables that holds a tensor, or nothing where a tensor might come to be."""
    for child in module.modules():
        for table in (child._parameters, child._buffers):
            for name, value in table.items():
                yield table, name, value


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256(";".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
