"""Functions by which a program asks for what a trace answers otherwise: modes are active there, on fake tensors.

They do nothing beside answering, and answer the same from call to call, but for the trace.
"""

from __future__ import annotations

import torch
from torch._subclasses import fake_tensor
from torch.fx.experimental import proxy_tensor
from torch.utils import _python_dispatch

from ov_backend.guards.versions import is_installed

_OWN = __package__.partition(".")[0]
_OVERRIDES = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_C_OF_TRACES = ("_dispatch_keys", "_len_torch_function_stack", "_len_torch_dispatch_stack", "_get_function_stack_at")
#: A trace keeps no casts of weights.
_OF_AUTOCAST = ("is_autocast_cache_enabled",)
_PYTHON_OF_TRACES = (
    (torch.overrides, ("_get_current_function_mode", "_get_current_function_mode_stack", "handle_torch_function")),
    (_python_dispatch, ("_get_current_dispatch_mode", "_get_current_dispatch_mode_stack")),
    (fake_tensor, ("is_fake",)),
    (proxy_tensor, ("get_proxy_mode", "get_innermost_proxy_mode")),
    (torch._guards, ("detect_fake_mode",)),
    (torch.fx._symbolic_trace, ("is_fx_tracing", "is_fx_symbolic_tracing")),
    (torch.nn.modules.activation, ("_is_make_fx_tracing",)),
)
#: Functions written in C that answer something else in a trace, by their ``id``, with their names.
ASKS_TRACE = {
    id(getattr(place, name)): name
    for place, names in ((torch.overrides, _OVERRIDES), (torch._C, _C_OF_TRACES), (torch, _OF_AUTOCAST))
    for name in names
    if hasattr(place, name)
}
#: Those of them by which code asks whether tensors are of a class with operators of its own.
ASKS_OVERRIDES = frozenset(id(getattr(torch.overrides, name)) for name in _OVERRIDES)
#: The code of such functions written in Python, with their names.
ASKS_TRACE_CODE = {
    getattr(place, name).__code__: name
    for place, names in _PYTHON_OF_TRACES
    for name in names
    if hasattr(getattr(place, name, None), "__code__")
}
#: Modules whose checkpointing notes the state of autocast for a backward pass.
_KEEPS_FOR_BACKWARD = frozenset({"ldm.modules.diffusionmodules.util", "sgm.modules.diffusionmodules.util"})
#: Names by which code asks whether it is traced, and what a trace answers otherwise.
OF_TRACES = frozenset({"FakeTensor", "FakeTensorMode", "_is_fx_tracing_flag", "is_set_to"})


def of_program(module: str) -> bool:
    """Whether a Python module is the program's own; installed packages know modes and fake tensors, and often ask for them."""
    return module.partition(".")[0] != _OWN and not is_installed(module)


def is_kept_for_backward(module: str, name: str) -> bool:
    """Whether a Python module asks a question only for a backward pass."""
    return name in _OF_AUTOCAST and module in _KEEPS_FOR_BACKWARD
