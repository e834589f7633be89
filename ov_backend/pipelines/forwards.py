"""What a pipeline's network is called with in place of its forward: arguments that need no graph of their own for each call.

Every way into a pipeline (``accelerate``, ``precompile``, ``demo``, ``serve``, ``batch``) has its networks from
:func:`network_of` and calls them through :func:`forward_of`, so that a graph which one stores is the graph that another finds.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ov_backend.core.patching import inherited
from ov_backend.core.signatures import Exchange, signature_of
from ov_backend.engine import worker
from ov_backend.engine.blocks.hooked_network import HookedNetwork
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.trace.capture.forward import capture

#: Networks whose ``conditioning_scale`` is only multiplied with tensors; other classes ask for its type.
_SCALED = ("ControlNetModel", "MultiControlNetModel")
#: Networks that turn their timesteps into f32 before they compute with them; other classes count with whole ones.
_COUNTING_IN_F32 = ("UNet2DConditionModel", "ControlNetModel", "MultiControlNetModel")
#: Whole timesteps; f32 has each of a sampler's (0 to 1000) exactly.
_WHOLE = (torch.int32, torch.int64)

#: Networks that precision "int8" does not apply to; the others denoise.
_NOT_QUANTIZABLE = ("vae", "movq", "text_encoder", "image_encoder", "adapter")

#: Lists of tensors among the arguments of diffusers' UNet, which takes every one out of them while it reads them.
_EMPTIED = frozenset({"down_intrablock_additional_residuals"})


def is_quantizable(name: str) -> bool:
    """Whether precision "int8" applies to the network of a pipeline that has this name."""
    return not name.startswith(_NOT_QUANTIZABLE)


def network_of(engine: Engine, name: str, module: torch.nn.Module, original: Callable[..., Any]) -> Network:
    """A new network of the engine, for a part of a pipeline that has this name and whose forward is ``original``.

    Raises:
        OVBackendError: the engine's settings say ``fallback="raise"``, and the module can never run in OpenVINO.
    """
    hooks = NetworkHooks(capture=partial(capture, emptied=_emptied_by(original)), quantizable=is_quantizable(name))
    earlier = engine.networks.get(name)
    statistics = earlier.statistics if earlier is not None and earlier.module is module else None
    return engine.add(HookedNetwork(engine.resources, name, module, original, hooks, statistics))


def forward_of(network: Network, module: torch.nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
    """What calls a network of :func:`network_of`; it takes the place of the module's forward, ``original``."""
    call: Callable[..., Any] = network
    numbers = _numbers_of(module, original)
    if numbers:
        call = _with_tensors(call, original, numbers, in_f32=_counts_in_f32(module, original))
    call = _with_recorders(call, module)
    emptied = _emptied_by(original)
    return _emptying(call, original, emptied) if emptied else call


def following(
    module: torch.nn.Module, original: Callable[..., Any], make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[..., Any]:
    """What ``make`` makes of a module's forward, and makes anew when the module has another class, or its class another forward.

    Args:
        module: the module, on which nothing stands in the forward's place yet.
        original: its forward.
        make: see :func:`forward_of`; each time with another network.
    """
    forward = inherited(module, "forward")
    if forward is None:  # it has a forward of its own, whatever its class has
        return make(original)
    made = forward.now(), make(original)
    lock = threading.Lock()

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        now = forward.now()
        if now is not made[0]:
            if worker.inside():  # another network, which contains this one, is being traced
                return now(*args, **kwargs)
            with lock:
                if now is not made[0]:
                    made = now, make(now)
        return made[1](*args, **kwargs)

    return call


def _emptied_by(forward: Callable[..., Any]) -> frozenset[str]:
    return _EMPTIED & signature_of(forward).parameters.keys()


def _numbers_of(module: torch.nn.Module, forward: Callable[..., Any]) -> list[str]:
    """The parameters of a network of diffusers that may be Python numbers, other ones at every call."""
    if not type(module).__module__.startswith("diffusers."):
        return []
    names = ["timestep", "conditioning_scale"] if type(module).__name__ in _SCALED else ["timestep"]
    return [name for name in names if name in signature_of(forward).parameters]


def _counts_in_f32(module: torch.nn.Module, forward: Callable[..., Any]) -> bool:
    """Whether a forward, of diffusers itself, does nothing with whole timesteps but turn them into f32."""
    return type(module).__name__ in _COUNTING_IN_F32 and getattr(forward, "__func__", None) is type(module).forward


def _with_tensors(
    network: Callable[..., Any], forward: Callable[..., Any], names: list[str], *, in_f32: bool
) -> Callable[..., Any]:
    """``network``, with Python numbers turned into tensors; each number would need a graph of its own.

    Args:
        in_f32: whole timesteps become f32: samplers count in int64 or in f32, and each kind would need a graph. Other networks
            keep Python's floats: some, such as UNet2DModel, take only the whole part of a float, but all of a tensor.
    """
    kinds = (int, float) if in_f32 else (int,)
    exchanged = Exchange(forward, names)

    def as_tensors(name: str, value: Any) -> Any:
        value = _as_tensors(value, kinds)
        is_whole_step = in_f32 and name == "timestep" and isinstance(value, torch.Tensor) and value.dtype in _WHOLE
        return value.float() if is_whole_step else value

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = exchanged(as_tensors, args, kwargs)
        return network(*args, **kwargs)

    return call


def _as_tensors(value: Any, kinds: tuple[type, ...]) -> Any:
    if isinstance(value, list):
        return [_as_tensors(each, kinds) for each in value]
    if not isinstance(value, kinds) or isinstance(value, bool):
        return value
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float32)


def _with_recorders(network: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
    """Let a model of transformers install its recorders of hidden states before it is called for these the first time.

    It would do so in the middle of its forward, which could not be traced then.
    """
    # a scripted module's class raises where its forward is read
    recording = next((child for child in module.modules() if _records(getattr(type(child), "forward", None))), None)
    if recording is None:
        return network
    install = sys.modules["transformers.utils.output_capturing"].maybe_install_capturing_hooks

    @functools.wraps(network)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("output_hidden_states"):
            install(recording)
        return network(*args, **kwargs)

    return call


def _records(forward: Any) -> bool:
    """Whether a forward is wrapped by the function of transformers that records hidden states."""
    while forward is not None:
        if getattr(forward, "__globals__", {}).get("__name__") == "transformers.utils.output_capturing":
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


def _emptying(network: Callable[..., Any], forward: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    """``network``, which also empties lists among its arguments as the forward does; a compiled graph would not."""
    exchanged = Exchange(forward, names)

    def call(*args: Any, **kwargs: Any) -> Any:
        passed: list[tuple[list[Any], list[Any]]] = []

        def copied(name: str, value: Any) -> Any:
            if not isinstance(value, list):
                return value
            passed.append((value, list(value)))
            return passed[-1][1]

        args, kwargs = exchanged(copied, args, kwargs)
        result = network(*args, **kwargs)
        for value, copy in passed:  # where PyTorch has answered, its forward has taken out what it read
            value[:] = copy if len(copy) < len(value) else []
        return result

    return call
