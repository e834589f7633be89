"""What a host, or the ``torch.compile`` backend, changes about a network; fixed when the network is created."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ov_backend.guards.signature import Call
from ov_backend.trace.capture.forward import capture
from ov_backend.trace.capture.trace import Captured

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class NetworkHooks:
    """What a host, or the torch.compile backend, changes about a network.

    Attributes:
        host_key: returns anything outside of module and call that changes the result; it is a part of the key.
        tracing: entered around a capture, in the worker's thread; a host may patch in simpler code with equal results.
        ignore: names of attributes that the host sets on modules, and that are neither weights nor code.
        host_modules: names of Python modules whose state the host takes care of; only their bytecode is watched.
        traced_code: functions that ``tracing`` patches in; they are watched too.
        fallback: answers a call that OpenVINO cannot; None is the original forward.
        capture: traces a call; graphs with symbolic sizes need another function.
        generalize: maps a call to one with dynamic sizes, under which its graph is looked up.
        watched: whether the module's code and state are looked at before each call; Dynamo does so for its own graphs.
        quantizable: whether the precision "int8" applies to it; other networks are computed in the device's own precision then.
        function: what the module computes, where its class does not tell; a part of the key of a recipe for int8.
        block_refusal: why a module inside must be no network of its own, or ""; for a network that is answered by its blocks.
        block_arguments: from a module inside and a call of it, what the block is called with; the result must be the same.
        block_traced: from a module inside and its forward, what a block computes, called with these or as the module is.
        companion: what answers a module that the forward calls and that is no part of the network, or None for PyTorch;
            without it such a module is a block as well.
    """

    host_key: Callable[[], str] = lambda: ""
    tracing: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    ignore: frozenset[str] = frozenset()
    host_modules: frozenset[str] = frozenset()
    traced_code: tuple[Callable[..., Any], ...] = ()
    fallback: Callable[..., Any] | None = None
    capture: Callable[..., Captured] = capture
    generalize: Callable[[Call], Call] = lambda call: call
    watched: bool = True
    quantizable: bool = False
    function: str = ""
    block_refusal: Callable[[torch.nn.Module], str] = lambda module: ""
    block_arguments: Callable[[torch.nn.Module, tuple[Any, ...], Mapping[str, Any]], Arguments] = (
        lambda module, args, kwargs: (args, kwargs)
    )
    block_traced: Callable[[torch.nn.Module, Callable[..., Any]], Callable[..., Any]] = lambda module, forward: forward
    companion: Callable[[torch.nn.Module], Callable[..., Any] | None] | None = None
