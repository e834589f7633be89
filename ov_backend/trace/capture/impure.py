"""Functions whose answer differs from call to call, or which do something beside answering, and who calls them.

A compiled graph would call them once, when it is traced.
"""

from __future__ import annotations

import _socket
import atexit
import builtins
import ctypes
import datetime
import functools
import getpass
import glob
import importlib.machinery
import inspect
import io
import itertools
import logging
import os
import pathlib
import pkgutil
import queue
import random
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import safetensors
import torch
from torch._subclasses import FakeTensor

from ov_backend.guards.versions import versioned

_OWN = __package__.partition(".")[0]
#: Single functions written in C, by their ``id``, with their names.
_IMPURE = {
    id(function): name
    for function, name in [
        *((getattr(builtins, name), f"{name}()") for name in ("print", "input", "open", "eval", "exec", "globals")),
        *((getattr(np, name), f"numpy.{name}()") for name in ("fromfile", "loadtxt", "genfromtxt", "memmap")),
        (io.open_code, "io.open_code()"),
        (sys._getframe, "sys._getframe()"),
        *((getattr(atexit, name), f"atexit.{name}()") for name in ("register", "unregister")),
        *((getattr(sys, name), f"sys.{name}()") for name in ("setrecursionlimit", "setswitchinterval")),
        *((getattr(torch, name), f"torch.{name}()") for name in ("set_num_threads", "set_num_interop_threads")),
        (torch.set_flush_denormal, "torch.set_flush_denormal()"),
        (safetensors.serialize_file, "safetensors.serialize_file()"),
    ]
}
#: Functions of the system that only compute. The environment is followed by itself.
_OF_OS = frozenset({"fspath", "strerror", "putenv", "unsetenv", "_path_normpath", "_path_splitroot", "_path_splitroot_ex"})
#: Modules written in C that act on the process, on other threads or on the system, each with those functions that do not.
_ACTING: dict[str, frozenset[str]] = {
    **dict.fromkeys(("posix", "nt"), _OF_OS),
    "time": frozenset({"strptime", "get_clock_info"}),
    "gc": frozenset({"collect"}),
    "_thread": frozenset({"allocate_lock", "allocate", "RLock"}),
    "_ctypes": frozenset({"sizeof", "alignment", "byref", "POINTER", "pointer", "_unpickle", "buffer_info"}),
    **dict.fromkeys(("_socket", "_ssl", "select", "resource", "fcntl", "termios", "_signal", "syslog"), frozenset()),
    **dict.fromkeys(("_posixsubprocess", "_posixshmem", "_multiprocessing", "_sqlite3", "pwd", "grp"), frozenset()),
    **dict.fromkeys(("_winapi", "_overlapped", "msvcrt", "winreg", "_locale"), frozenset()),
}
#: How programs name these modules, where it is not the name without the underscore.
_NAMED = {"posix": "os", "nt": "os", "_thread": "threading"}
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
#: Objects written in C whose methods read or write something beside the object, or tell what other threads do.
_OUTSIDE = (io.IOBase, random.Random, _socket.socket, queue.SimpleQueue, safetensors.safe_open, *_LOCKS)
#: What ``with`` calls: a lock is then as free after the block as before.
_OF_WITH = ("__enter__", "__exit__")
_OF_PATHS = ("open", "read_text", "read_bytes", "stat", "exists", "is_file", "is_dir", "resolve", "absolute", "cwd", "home")
#: The text of a fake tensor is another than that of a tensor.
_TEXT = "repr() or str() of a tensor"
#: Functions of torch, written in Python, that set something for the whole process.
_SETTERS = (
    *("use_deterministic_algorithms", "set_deterministic_debug_mode", "set_float32_matmul_precision"),
    *("set_printoptions", "set_warn_always", "set_default_dtype", "set_default_device"),
)
#: The code of functions written in Python, with their names.
IMPURE_CODE = {
    function.__code__: name
    for function, name in [
        *((getattr(inspect, name), f"inspect.{name}()") for name in ("currentframe", "stack")),
        *((getattr(pathlib.Path, name), f"Path.{name}()") for name in _OF_PATHS if hasattr(pathlib.Path, name)),
        *((getattr(os.path, name), f"os.path.{name}") for name in ("getsize", "getmtime", "exists", "isfile", "isdir", "islink")),
        *((getattr(os.path, name), f"os.path.{name}") for name in ("abspath", "realpath", "expanduser", "expandvars")),
        *((getattr(glob, name), f"glob.{name}") for name in ("glob", "iglob")),
        *((getattr(uuid, name), f"uuid.{name}()") for name in ("uuid1", "uuid4")),
        *((getattr(threading, name), f"threading.{name}()") for name in ("current_thread", "main_thread", "enumerate")),
        *((getattr(threading.Thread, name), f"Thread.{name}()") for name in ("start", "join", "is_alive")),
        *((getattr(queue.Queue, name), f"Queue.{name}()") for name in ("put", "get")),
        *((getattr(ctypes.CDLL, name), "a function of ctypes") for name in ("__getattr__", "__getitem__")),
        (ctypes.CFUNCTYPE, "ctypes.CFUNCTYPE()"),
        (pkgutil.get_data, "pkgutil.get_data()"),
        (importlib.machinery.SourceFileLoader.get_data, "get_data() of a loader"),
        (threading.active_count, "threading.active_count()"),  # a trace has a thread of its own
        *((getattr(tempfile, name), f"tempfile.{name}()") for name in ("gettempdir", "mkdtemp", "mkstemp")),
        (getpass.getuser, "getpass.getuser()"),
        (shutil.which, "shutil.which()"),
        *((getattr(logging.Logger, name), f"Logger.{name}()") for name in ("isEnabledFor", "getEffectiveLevel", "setLevel")),
        *((getattr(torch, name), f"torch.{name}()") for name in _SETTERS),
        (inspect.unwrap(np.set_printoptions), "numpy.set_printoptions()"),
        *((getattr(torch.Tensor, name), _TEXT) for name in ("__repr__", "__format__")),
        *((vars(kind)["__repr__"], _TEXT) for kind in (torch.nn.Parameter, FakeTensor) if "__repr__" in vars(kind)),
        (torch._tensor_str._str, _TEXT),
        *((kind.__repr__, "repr() or str() of a number") for kind in (torch.SymInt, torch.SymFloat, torch.SymBool)),
    ]
    if hasattr(function, "__code__")  # in another version of Python it may be written in C
}
#: Between the forward's own code and what it calls in the end, these do it for themselves: to write a log, to import, to trace.
_FOR_THEMSELVES = frozenset({"logging", "warnings", "traceback", "importlib", "inspect", "torch", "gc"})
#: Parts of these that do it for the code that calls them.
_FOR_OTHERS = (
    *("torch.serialization", "torch.distributions", "torch.hub", "torch.nn.modules"),
    *("importlib.resources", "importlib.readers", "importlib.abc", "importlib._common"),
)
#: Parts of these that call what they were given: a hook may be a function written in C.
_OF_HOOKS = ("torch.nn.modules.module", "torch.utils._pytree", "torch.utils.checkpoint")
#: Its ``record_function``, which labels a block for a profiler, sets a global when it has looked for another profiler.
PROFILER = "torch.autograd.profiler"
#: Functions of numpy that make generators; these are written in C in such a way that a profiler does not see their calls.
NUMPY_GENERATORS = frozenset(
    {"default_rng", "RandomState", "SeedSequence", "PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64", "BitGenerator"}
)
#: What code asks the interpreter for under these names differs from call to call, or in a trace.
OF_INTERPRETER = frozenset(
    {"__subclasses__", "getrefcount", "getsizeof", "getallocatedblocks", "getprofile", "get_objects", "get_referrers"}
    | {"cache_info", "cache_parameters", "copy_context", "clock_gettime", "get_native_id", "locked", "__globals__", "f_back"}
    | {"__closure__", "cell_contents", "__builtins__", "f_locals", "f_globals", "get_state", "getstate"}
    | {"__import__", "import_module", "get_num_threads"}
    | {"exc_info", "isenabled", "get_running_loop", "get_event_loop", "current_task", "all_tasks"}
    | {"__annotations__", "get_annotations", "get_type_hints", "getsource", "getsourcelines", "getsourcefile", "getfile"}
    | {"co_firstlineno", "co_filename", "co_lines", "co_positions", "co_linetable", "co_lnotab", "getline", "getlines"}
    | {"__args__", "__bound__", "__constraints__", "get_args"}  # what an annotation is made of
    | {"getsignal", "getdefaulttimeout", "sched_getaffinity", "getpriority", "getrlimit", "get_int_max_str_digits", "tracemalloc"}
)
#: Methods of dates that ask for the time.
_OF_DATES = ("now", "utcnow", "today")


def name_of_effect(function: Any, owner: Any) -> str:
    """The name of a function written in C with its ``__self__``, if it does something beside answering or its answer differs;
    else "".
    """
    if id(function) in _IMPURE:
        return _IMPURE[id(function)]
    if type(owner) is ModuleType:
        harmless = _ACTING.get(owner.__name__)
        if harmless is None or function.__name__ in harmless:
            return ""
        return f"{_NAMED.get(owner.__name__, owner.__name__.lstrip('_'))}.{function.__name__}"
    if isinstance(owner, _OUTSIDE):
        of_with = function.__name__ in _OF_WITH and isinstance(owner, _LOCKS)
        return "" if of_with else f"{type(owner).__name__}.{function.__name__}()"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and function.__name__ in _OF_DATES:
        return f"{owner.__name__}.{function.__name__}()"
    return ""


def effect_of_hooks(module: torch.nn.Module) -> str:
    """The name of an effect that a hook below a module has by a ``functools.partial``, which a profiler does not see, or ""."""
    parts = (child for child in module.modules() if child is not module)
    tables = (table for child in parts for table in (child._forward_hooks, child._forward_pre_hooks) if table)
    functions = (hook.func for table in tables for hook in table.values() if isinstance(hook, functools.partial))
    return next(filter(None, (name_of_effect(each, getattr(each, "__self__", None)) for each in functions)), "")


def of_the_forward(frame: FrameType) -> bool:
    """Whether the forward's own code makes a call, itself or by a package that it calls."""
    modules = list(itertools.takewhile(_is_of_others, map(module_of, _outwards(frame))))
    if any(module.partition(".")[0] == "logging" for module in modules):
        return False  # factories, filters and handlers of a program may do what they like for its log, and so may its formatters
    if modules and modules[0] in _OF_HOOKS:
        return True
    for module in modules:
        if module.partition(".")[0] in _FOR_THEMSELVES and not module.startswith(_FOR_OTHERS):
            return False
        if not versioned(module):
            # a package that is imported on the way may do what it likes, and so may the garbage collector's callbacks
            return True
    return False


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it; nothing where a module is being imported."""
    while frame is not None and frame.f_code.co_name != "<module>":
        yield frame
        frame = frame.f_back


def module_of(frame: FrameType) -> str:
    """The name of the Python module whose code a frame runs."""
    return str(frame.f_globals.get("__name__", ""))


def _is_of_others(module: str) -> bool:
    return module.partition(".")[0] != _OWN
