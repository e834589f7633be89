"""Functions whose answer differs from call to call, or which do something beside answering, and who calls them.

A compiled graph would call them once, when it is traced.
"""

from __future__ import annotations

import builtins
import getpass
import glob
import inspect
import io
import itertools
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from types import FrameType

import numpy as np
import torch
from torch._subclasses import FakeTensor

from ov_backend.guards.describe import versioned

_OWN = __package__.partition(".")[0]
#: Functions written in C, by their ``id``, with their names.
IMPURE = {
    id(function): name
    for function, name in [
        *((getattr(builtins, name), f"{name}()") for name in ("print", "input", "open", "eval", "exec", "globals")),
        *((getattr(time, name), f"time.{name}") for name in ("time", "time_ns", "perf_counter", "perf_counter_ns")),
        *((getattr(time, name), f"time.{name}") for name in ("process_time", "monotonic", "monotonic_ns", "localtime", "gmtime")),
        *((getattr(time, name), f"time.{name}") for name in ("strftime", "ctime", "asctime", "mktime")),
        *((getattr(os, name), f"os.{name}") for name in ("urandom", "stat", "lstat", "listdir", "scandir", "access", "getcwd")),
        *((getattr(os, name), f"os.{name}") for name in ("open", "read", "times", "getppid", "mkdir", "rename", "remove")),
        *((getattr(os, name), f"os.{name}") for name in ("getlogin", "get_terminal_size", "utime") if hasattr(os, name)),
        *((getattr(time, name), f"time.{name}") for name in ("thread_time", "thread_time_ns") if hasattr(time, name)),
        *((getattr(np, name), f"numpy.{name}()") for name in ("fromfile", "loadtxt", "genfromtxt", "memmap")),
        (io.open_code, "io.open_code()"),
        (sys._getframe, "sys._getframe()"),
        (threading.get_ident, "threading.get_ident()"),
    ]
}
_OF_PATHS = ("open", "read_text", "read_bytes", "stat", "exists", "is_file", "is_dir", "resolve", "absolute", "cwd", "home")
#: The text of a stand-in is another than that of a tensor.
_TEXT = "repr() or str() of a tensor"
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
        (threading.active_count, "threading.active_count()"),  # a trace has a thread of its own
        *((getattr(tempfile, name), f"tempfile.{name}()") for name in ("gettempdir", "mkdtemp", "mkstemp")),
        (getpass.getuser, "getpass.getuser()"),
        (shutil.which, "shutil.which()"),
        *((getattr(logging.Logger, name), f"Logger.{name}()") for name in ("isEnabledFor", "getEffectiveLevel")),
        *((getattr(torch.Tensor, name), _TEXT) for name in ("__repr__", "__format__")),
        *((vars(kind)["__repr__"], _TEXT) for kind in (torch.nn.Parameter, FakeTensor) if "__repr__" in vars(kind)),
        (torch._tensor_str._str, _TEXT),
    ]
    if hasattr(function, "__code__")  # in another version of Python it may be written in C
}
#: Between the forward's own code and what it calls in the end, these do it for themselves: to write a log, to import, to trace.
_FOR_THEMSELVES = ("logging", "warnings", "traceback", "importlib", "inspect", "torch", "functools", "threading", "gc")
#: Parts of these that do it for the code that calls them.
_FOR_OTHERS = ("torch.serialization", "torch.distributions")
#: Functions of numpy that make generators; these are written in C in such a way that a profiler does not see their calls.
NUMPY_GENERATORS = frozenset({"default_rng", "RandomState", "SeedSequence"})
#: What code asks the interpreter for under these names differs from call to call, or in a trace.
OF_INTERPRETER = frozenset(
    {"__subclasses__", "getrefcount", "getsizeof", "getallocatedblocks", "getprofile", "get_objects", "get_referrers"}
    | {"cache_info", "cache_parameters", "copy_context", "clock_gettime", "get_native_id", "locked", "__globals__", "f_back"}
    | {"__closure__", "cell_contents", "__builtins__", "f_locals", "f_globals", "get_state", "getstate", "__import__"}
    | {"exc_info", "isenabled", "get_running_loop", "get_event_loop", "current_task", "all_tasks"}
    | {"__annotations__", "get_annotations", "get_type_hints", "getsource", "getsourcelines", "getsourcefile", "getfile"}
    | {"co_firstlineno", "co_filename", "co_lines", "co_positions", "co_linetable", "co_lnotab", "getline", "getlines"}
    | {"getsignal", "getdefaulttimeout", "sched_getaffinity", "getpriority", "getrlimit", "get_int_max_str_digits", "tracemalloc"}
)
#: Methods of dates that ask for the time.
OF_DATES = ("now", "utcnow", "today")


def of_the_forward(frame: FrameType) -> bool:
    """Whether the forward's own code makes a call, itself or by a package that it calls.

    Args:
        frame: what makes the call.
    """
    modules = list(itertools.takewhile(_is_of_others, map(module_of, _outwards(frame))))
    if any(module.partition(".")[0] == "logging" for module in modules):
        return False  # factories, filters and handlers of a program may do what they like for its log, and so may its formatters
    for module in modules:
        if module.startswith(_FOR_THEMSELVES) and not module.startswith(_FOR_OTHERS):
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
