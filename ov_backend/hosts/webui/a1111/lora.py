"""The LoRA extensions: the built-in one, and LyCORIS, whose functions stand on the same layers and call the built-in one's.

They write LoRAs into a layer's weights at the layer's next forward, which a compiled network never calls. So before each call of
a network, the extensions' own functions are called for every layer, in the order in which its forward would; they also remove
LoRAs that are no longer set. A trace runs PyTorch's own forwards of the layers instead of theirs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from modules import shared

from ov_backend.core.patching import Patch, is_patched, unwrap

#: Attributes of the extensions on the layers, names and backups of weights: neither code nor weights of a network.
ATTRIBUTES = frozenset(
    {"network_layer_name", "network_current_names", "network_weights_backup", "network_bias_backup", "fp16_weight", "fp16_bias"}
)

#: By the extension's Python module, the setting with which it computes LoRAs beside the weights; LyCORIS is loaded later.
_SETTINGS = {"l_networks": "lyco_functional", "networks": "lora_functional"}

#: The extensions' Python modules; their state changes with the LoRAs that are set, which the weights tell already.
MODULES = frozenset(_SETTINGS)

#: The classes whose forwards they replace, to write into their weights.
_LAYERS = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.MultiheadAttention)

#: Names and strengths of the LoRAs of one extension, and whether it computes them beside the weights.
_State = tuple[tuple[Any, ...], bool]

#: Functions of the extensions that are called here instead of by the layers' forwards.
_CALLED_HERE = frozenset({"network_apply_weights", "network_restore_weights_from_backup", "network_reset_cached_weight"})

#: Whether this thread traces a network.
_tracing = threading.local()


class LoraWeights:
    """Brings modules' weights up to date; a module's layers are looked up once."""

    def __init__(self) -> None:
        self._layers: WeakKeyDictionary[torch.nn.Module, list[torch.nn.Module]] = WeakKeyDictionary()
        #: The LoRAs of each extension that a module's weights were last brought up to.
        self._states: WeakKeyDictionary[torch.nn.Module, list[_State]] = WeakKeyDictionary()

    def apply(self, module: torch.nn.Module) -> None:
        """Write the LoRAs that are set now into a module's weights, and take the others out, as its layers' forwards would do."""
        extensions = _extensions()
        if not extensions:
            return
        states = [_state_of(extension) for extension in extensions]
        has_changed = self._states.get(module, states) != states
        self._states[module] = states
        for layer in self._layers_of(module):
            own = [(names, beside and not isinstance(layer, torch.nn.MultiheadAttention)) for names, beside in states]
            if not has_changed and _is_applied(layer, own):
                continue
            for extension, (names, beside) in zip(extensions, own):
                _apply(extension, layer, names, beside)

    def _layers_of(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        if module not in self._layers:
            # an attention's own projection is changed together with it, not by itself
            projections = {id(m.out_proj) for m in module.modules() if isinstance(m, torch.nn.MultiheadAttention)}
            layers = [m for m in module.modules() if isinstance(m, _LAYERS) and id(m) not in projections]
            named = [m for m in layers if hasattr(m, "network_layer_name")]
            if not named:
                return []
            self._layers[module] = named
        return self._layers[module]


def _is_applied(layer: torch.nn.Module, states: list[_State]) -> bool:
    """Whether a layer's weights are as the extensions leave them, the last one last."""
    names: tuple[Any, ...] | None = None
    for of_extension, beside in states:
        if not beside:
            names = of_extension
        elif of_extension:
            names = ()
    return names is None or vars(layer).get("network_current_names", ()) == names


def _apply(extension: Any, layer: torch.nn.Module, names: tuple[Any, ...], beside: bool) -> None:
    """What an extension's forward of a layer does before it computes."""
    if not beside:
        extension.network_apply_weights(layer)
    elif names:
        extension.network_restore_weights_from_backup(layer)
        extension.network_reset_cached_weight(layer)


def traced_functions() -> tuple[Callable[..., Any], ...]:
    """The extensions' functions that a trace may run in the layers' forwards."""
    return tuple(extension.network_apply_weights for extension in _extensions())


@contextlib.contextmanager
def layers_without_extensions() -> Iterator[None]:
    """In this block, this thread's calls of layers are PyTorch's own; the weights are up to date already.

    A layer class whose forward is another one's still, after the known extensions' forwards, is left alone.
    """
    with contextlib.ExitStack() as undo:
        for owner in _LAYERS:
            extensions, inner = _forwards_of(owner)
            if extensions and not is_patched(owner.forward) and _is_of_torch(inner):
                undo.callback(Patch(owner, "forward", functools.partial(_in_traces, inner)).undo)
        before, _tracing.on = getattr(_tracing, "on", False), True
        try:
            yield
        finally:
            _tracing.on = before


def _in_traces(inner: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that is PyTorch's own in a thread that traces, and the extensions' in others."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (inner if getattr(_tracing, "on", False) else original)(*args, **kwargs)

    return forward


def unknown_forwards() -> str:
    """Names the forwards of layer classes that are neither PyTorch's own nor the known extensions' around these; mostly ""."""
    found = ((owner, inner) for owner in _LAYERS for extensions, inner in [_forwards_of(owner)] if extensions)
    foreign = [f"{owner.__name__}={_module_of(inner)}:{id(inner)}" for owner, inner in found if not _is_of_torch(inner)]
    extensions = (sys.modules.get(name) for name in sorted(MODULES))
    exchanged = [f"{name}:{id(value)}" for each in extensions if each is not None for name, value in _exchanged(each)]
    return " ".join([*foreign, *exchanged])


def computed_beside_weights(module: torch.nn.Module) -> bool:
    """Whether LoRAs are set for layers of a module, and computed in the layers' forwards, without touching weights."""
    beside = [extension for extension in _extensions() if _is_beside(extension)]
    names = {name for extension in beside for network in extension.loaded_networks for name in network.modules}
    return bool(names) and any(vars(layer).get("network_layer_name") in names for layer in module.modules())


def _state_of(extension: Any) -> _State:
    networks = extension.loaded_networks
    return tuple((x.name, x.te_multiplier, x.unet_multiplier, x.dyn_dim) for x in networks), _is_beside(extension)


def _is_beside(extension: Any) -> bool:
    return bool(getattr(shared.opts, _SETTINGS[extension.__name__], False))


def _extensions() -> list[Any]:
    """The extensions whose forwards stand on the layers, in the order in which these run them."""
    extensions, inner = _forwards_of(torch.nn.Linear)
    if not _is_of_torch(inner):  # another one's forward hides the next; they run in the reverse order of their loading
        known = (sys.modules.get(name) for name in _SETTINGS)
        extensions += [each for each in known if hasattr(each, "network_apply_weights") and each not in extensions]
    return extensions


def _forwards_of(owner: type[torch.nn.Module]) -> tuple[list[Any], Any]:
    """The extensions whose forwards stand on a layer class, the first to run first, and the forward that the last one calls."""
    extensions: list[Any] = []
    forward = unwrap(owner.forward)
    while True:
        name = _module_of(forward)
        extension = sys.modules.get(name) if name in MODULES else None
        if not hasattr(extension, "network_apply_weights") or extension in extensions or _exchanged(extension):
            return extensions, forward
        extensions.append(extension)
        forward = getattr(getattr(extension, "originals", None), f"{owner.__name__}_forward", None)


def _exchanged(extension: Any) -> list[tuple[str, Any]]:
    """The functions which an extension's forwards of layers call and which stand in another file: somebody exchanged them."""
    members = vars(extension)
    forward = members.get("network_Linear_forward")
    names = _called(forward.__code__, extension.__name__) if isinstance(forward, types.FunctionType) else ()
    return [(name, members.get(name)) for name in names if not _is_written_in(members.get(name), extension.__file__)]


@functools.lru_cache(maxsize=16)
def _called(code: types.CodeType, module: str) -> tuple[str, ...]:
    """The functions of a Python module that code names, and those that these name, apart from those that are called here too."""
    members, found, waiting = vars(sys.modules[module]), dict[str, None](), [code]
    while waiting:
        for name in waiting.pop().co_names:
            value = members.get(name)
            if name in found or name in _CALLED_HERE or isinstance(value, type) or not callable(value):
                continue
            found[name] = None
            if isinstance(value, types.FunctionType):
                waiting.append(value.__code__)
    return tuple(found)


def _is_written_in(value: Any, file: str) -> bool:
    return getattr(getattr(value, "__code__", None), "co_filename", None) == file


def _module_of(function: Any) -> str:
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _is_of_torch(function: Any) -> bool:
    return _module_of(function).partition(".")[0] == "torch"
