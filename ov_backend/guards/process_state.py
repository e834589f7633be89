"""What a forward can ask the process: switches of torch, the environment, limits of the interpreter.

Their functions are written in C or belong to packages that are known by their version, so their code says nothing of what they
answer; the answer is compared instead.
"""

from __future__ import annotations

import decimal
import gc
import os
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.utils import parametrize

from ov_backend.core.errors import pass_on_signals


def _environment() -> Any:
    return dict(os.environ)


def _decimal_rules() -> Any:
    """How decimal numbers are computed, without the flags, which their computation sets."""
    now = decimal.getcontext()
    traps = [signal.__name__ for signal, is_on in now.traps.items() if is_on]
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps


def keeps_parametrized() -> bool:
    """Whether ``torch.nn.utils.parametrize.cached()`` is active: then each parametrized weight is computed once, and kept."""
    return bool(parametrize._cache_enabled)


def _torch_functions() -> list[Any]:
    names = [
        *("get_num_interop_threads", "get_float32_matmul_precision", "get_deterministic_debug_mode"),
        *("are_deterministic_algorithms_enabled", "is_deterministic_algorithms_warn_only_enabled", "get_default_device"),
        *("is_warn_always_enabled", "is_autocast_cache_enabled"),
        *("is_anomaly_enabled", "is_anomaly_check_nan_enabled"),
    ]
    cuda = ("flash_sdp_enabled", "math_sdp_enabled", "mem_efficient_sdp_enabled", "cudnn_sdp_enabled", "is_built")
    found = [getattr(torch, name, None) for name in names] + [getattr(torch.backends.cuda, name, None) for name in cuda]
    found += [function for name, function in vars(torch.__future__).items() if name.startswith("get_")]
    return [function for function in found if function is not None]


def _limits() -> list[Any]:
    found = [sys.getrecursionlimit, sys.getswitchinterval, sys.gettrace, gc.isenabled, gc.get_threshold, os.getcwd, os.getpid]
    return [*found, os.cpu_count, np.geterr, np.get_printoptions]


#: Functions without arguments whose answers are compared, by their identity.
_QUERIES: dict[int, Callable[[], Any]] = {id(function): function for function in (*_torch_functions(), *_limits())}
_ENVIRONMENT = ("environ", "getenv", "environb", "getenvb")
_QUERIES.update({id(getattr(os, name)): _environment for name in _ENVIRONMENT if hasattr(os, name)})
_QUERIES[id(warnings.filters)] = lambda: list(warnings.filters)
_QUERIES[id(warnings.warn)] = lambda: [each for each in warnings.filters if each[0] == "error"]  # the warning is raised then
_QUERIES[id(decimal.getcontext)] = lambda: str(decimal.getcontext())
#: How numbers of Python and numpy are computed in this thread, and which way torch's own modules go: the code of programs asks
#: for none of these by a name.
ARITHMETIC: dict[str, Callable[[], Any]] = {
    "decimal": _decimal_rules,
    "numpy": np.geterr,
    "parametrize": keeps_parametrized,
}
if hasattr(torch.backends, "mha"):  # not in PyTorch 2.1
    ARITHMETIC["attention"] = torch.backends.mha.get_fastpath_enabled
_QUERIES[id(torch._tensor_str.PRINT_OPTS)] = lambda: repr(torch._tensor_str.PRINT_OPTS)
#: What the names of torch's functions in C have in common that show a switch, and the states that each thread has for itself.
_SWITCH = re.compile("_get_|_jit_get_|.*_enabled$")
_OF_THREAD = ("grad", "inference", "autocast", "tracing", "dispatch", "stack", "current", "thread", "function", "tls", "caught")
#: Functions that show such a state which the thread of a trace does not take over.
_SHOWS_THREAD = (
    *("_is_multithreading_enabled", "_is_view_replay_enabled", "_is_fwd_grad_enabled", "_is_vmap_fallback_enabled"),
    *("_profiler_enabled", "_saved_tensors_hooks_is_enabled", "_get_graph_executor_optimize"),
)
_OF_OTHER_THREAD = frozenset(
    id(vars(table)[name])
    for table in (torch._C, torch._C._autograd, torch._C._functorch)
    for name in _SHOWS_THREAD
    if name in vars(table)
)


def is_of_thread(value: object) -> bool:
    """Whether a function shows a state of the calling thread that a trace, in another thread, would not see."""
    return isinstance(value, types.BuiltinFunctionType) and id(value) in _OF_OTHER_THREAD


def query_of(value: object) -> Callable[[], Any] | None:
    """How to ask for the state that a function or object of a package shows, or None for all others."""
    if isinstance(value, types.BuiltinFunctionType) and _SWITCH.match(value.__name__) and id(value) not in _QUERIES:
        return _switch(value)
    return _QUERIES.get(id(value))


def _switch(function: types.BuiltinFunctionType) -> Callable[[], Any] | None:
    """How to ask for a switch of torch such as ``torch._C._get_mkldnn_enabled``."""
    name = function.__name__
    if vars(torch._C).get(name) is not function or any(word in name for word in _OF_THREAD):
        return None

    def answer() -> Any:
        try:
            return repr(function())
        except Exception as error:  # it asks for arguments, or for a device that is not there
            pass_on_signals(error)
            return None

    return answer
