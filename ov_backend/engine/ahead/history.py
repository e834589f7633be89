"""Remembers the calls of each run by its request, so that the next run with an equal request can be prepared.

A run is one generation of pictures. Only names, shapes, dtypes and plain values are noted, in a store beside that of the
graphs: one entry for each kind of model, bounded, and checked before it is trusted. A wrong entry can at worst have a stored
graph compiled that nobody calls.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ov_backend.core.tensors import TensorSpec
from ov_backend.guards.signature import Signature
from ov_backend.guards.weights import weights_of
from ov_backend.store.store import GraphStore, run_store

#: The most runs of one kind of model, calls of one run, and characters of one call's static values.
_MAX_RUNS, _MAX_CALLS, _MAX_STATICS = 24, 32, 8192
_FILE = "runs.json"


class RememberedCall(NamedTuple):
    """One call of a run, of a network with this role (its name, without a number) and kind; number 0 is the first one called."""

    role: str
    kind: str
    number: int
    signature: Signature


@dataclass(frozen=True)
class RememberedRun:
    """A request as the host describes it, and the calls that followed, each once and in their order."""

    request: str
    calls: tuple[RememberedCall, ...]


class Run:
    """Notes the calls of the run in progress; equal requests of the same kind of model (:func:`kind_of`) lead to equal calls."""

    def __init__(self, model: str, request: str) -> None:
        self.model, self.request = model, request
        self._seen: set[tuple[str, Signature]] = set()
        self._numbers: dict[str, int] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._calls: list[RememberedCall] = []

    def note(self, network: Any, signature: Signature) -> None:
        """A network was called."""
        if (network.name, signature) in self._seen or len(self._calls) >= _MAX_CALLS:
            return
        self._seen.add((network.name, signature))
        role = network.name.partition(" ")[0]
        if network.name not in self._numbers:
            self._numbers[network.name] = self._counts[role, network.kind]
            self._counts[role, network.kind] += 1
        if len(signature.statics) <= _MAX_STATICS:
            self._calls.append(RememberedCall(role, network.kind, self._numbers[network.name], signature))

    def finished(self) -> RememberedRun:
        """The run, now that it is over."""
        return RememberedRun(self.request, tuple(self._calls))


class History:
    """The runs of earlier processes and of this one, in a folder inside the graph store."""

    def __init__(self, graphs: GraphStore) -> None:
        self.graphs = graphs
        self._store = run_store(graphs.folder)

    def runs(self, model: str) -> list[RememberedRun]:
        """The runs of a kind of model, the last one first; an entry that cannot be read is none."""
        return self._store.read(model, _runs_of) or []

    def calls(self, model: str, request: str) -> tuple[RememberedCall, ...]:
        """The calls of the last run with this request; none if there was no such run."""
        return next((run.calls for run in self.runs(model) if run.request == request), ())

    def add(self, model: str, run: RememberedRun) -> None:
        """Remember a run as the last one.

        A host that keeps a prompt's encoding calls no text encoder where a prompt is used again: networks that the earlier run
        with this request has called, and this one has not, stay remembered.
        """
        if not run.calls:
            return
        runs = self.runs(model)
        called = {call[:3] for call in run.calls}
        before = next((each.calls for each in runs if each.request == run.request), ())
        kept = [call for call in before if call[:3] not in called]
        run = RememberedRun(run.request, (*kept, *run.calls)[:_MAX_CALLS])
        if runs[:1] == [run]:
            return
        newest = [run, *(each for each in runs if each.request != run.request)][:_MAX_RUNS]
        self._store.put(model, {_FILE: json.dumps({"runs": [_as_json(each) for each in newest]}).encode()})


def kind_of(module: torch.nn.Module) -> str:
    """Names an architecture: the module's class, and names, shapes and dtypes of its weights."""
    parts = [f"{type(module).__module__}.{type(module).__qualname__}"]
    parts += [f"{name}={tensor.dtype}{tuple(tensor.shape)}" for name, tensor in weights_of(module).items()]
    return hashlib.sha256(";".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def match(calls: Sequence[RememberedCall], networks: Sequence[Any]) -> list[tuple[Any, Signature]]:
    """Each remembered call with its network of those that will be called, in the order of their first calls; or left out."""
    matched = []
    for call in calls:
        same = [each for each in networks if each.name.partition(" ")[0] == call.role and each.kind == call.kind]
        if call.number < len(same):
            matched.append((same[call.number], call.signature))
    return matched


def _as_json(run: RememberedRun) -> list[Any]:
    tensors = [[[spec.name, spec.shape, spec.dtype] for spec in call.signature.tensors] for call in run.calls]
    return [run.request, [[*call[:3], each, call.signature.statics] for call, each in zip(run.calls, tensors)]]


def _runs_of(files: Mapping[str, bytes]) -> list[RememberedRun]:
    return [_run_of(each) for each in json.loads(files[_FILE])["runs"][:_MAX_RUNS]]


def _run_of(value: list[Any]) -> RememberedRun:
    request, calls = value
    return RememberedRun(str(request), tuple(_call_of(*each) for each in calls[:_MAX_CALLS]))


def _call_of(role: object, kind: object, number: int, tensors: list[Any], statics: object) -> RememberedCall:
    specs = tuple(TensorSpec(str(name), tuple(map(int, shape)), str(dtype)) for name, shape, dtype in tensors)
    return RememberedCall(str(role), str(kind), abs(int(number)), Signature(specs, str(statics)[:_MAX_STATICS]))
