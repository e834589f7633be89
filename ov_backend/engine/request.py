"""What a call asks to be compiled, under which keys, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ov_backend.cache.key import CacheKey
from ov_backend.guards.pytree import Spec
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import Placement
from ov_backend.runtime.program import CompiledProgram
from ov_backend.settings import Settings


class Superseded(Exception):
    """Weights or code changed while something was compiled of them."""


class GraphKey(NamedTuple):
    """The key of a graph within the process; no weight is in it.

    Attributes:
        function: fingerprint of the forward.
        signature: of the call.
        code: fingerprint of the module.
        layout: names, shapes and dtypes of the weights.
        host: what the host says that the result depends on.
        settings: those that affect the graph.
    """

    function: str
    signature: Signature
    code: str
    layout: str
    host: str
    settings: str


class CompiledKey(NamedTuple):
    """The key of a compiled graph within the process.

    Attributes:
        network: its name.
        signature: of the call.
        graph: key of the graph.
        weights: digest of their content.
        address: where the weights lie.
        settings: those that affect the compile.
    """

    network: str
    signature: Signature
    graph: GraphKey
    weights: str
    address: int
    settings: str


@dataclass(frozen=True)
class CompileRequest:
    """One thing to be compiled, as the world was when a call asked for it.

    Attributes:
        call: the call that needs it.
        graph_key: of the graph.
        compiled_key: of its compiled form.
        cache_key: of the graph on disk, or None: then the text of the graph is its key.
        weights: the live weights.
        settings: of this compile.
        code: fingerprint of the module's code.
        digest: of the weights' content.
        generation: of the weights' state.
        epoch: of the resources; it grows when everything is cleared.
        autocast: PyTorch's mode in the caller's thread, None where it is off.
    """

    call: Call
    graph_key: GraphKey
    compiled_key: CompiledKey
    cache_key: CacheKey | None
    weights: Mapping[str, torch.Tensor]
    settings: Settings
    code: str
    digest: str
    generation: int
    epoch: int
    autocast: torch.dtype | None


@dataclass(frozen=True)
class CompiledEntry:
    """A program that runs, how to make a call's result from its flat outputs, and where its weights lie."""

    program: CompiledProgram
    output: Spec
    placement: Placement
