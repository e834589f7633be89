"""What Dynamo makes no graph of: it gives up a whole frame, and then calls no backend.

PyTorch calls the functions that are registered with :mod:`torch._dynamo.callback` before and after it compiles a frame. For a
frame of this backend they let Dynamo follow recurrent networks, which it refuses otherwise, and see whether Dynamo gives the
frame up. A function that is called before a frame is compiled once more sees that Dynamo's limit forbids it. torch 2.1 has no
such functions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo import external_utils
from torch._dynamo.utils import counters

from ov_backend.core.errors import first_line
from ov_backend.engine.stats import NetworkStats
from ov_backend.torch_compile.options import parse as parse_options

#: ``given_up(where, reason, options)``: Dynamo makes no graph of a frame; the result says whether the caller is to get an error.
GivenUp = Callable[[str, str, Mapping[str, Any]], bool]
#: Where Dynamo's functions that compile a frame stand.
_CONVERTING = "torch._dynamo.convert_frame"


@contextlib.contextmanager
def recurrent_networks_allowed() -> Iterator[None]:
    """Let Dynamo trace ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, where its version can."""
    config: Any = torch._dynamo.config
    with config.patch(allow_rnn=True) if hasattr(config, "allow_rnn") else contextlib.nullcontext():
        yield


@functools.cache
def watch_frames() -> None:
    """See every frame that Dynamo compiles from now on, also after ``torch._dynamo.reset``, which drops all callbacks."""
    _have_dynamo_call()
    if hasattr(torch._dynamo, "register_hook_for_recompile_user_context"):
        torch._dynamo.register_hook_for_recompile_user_context(torch._dynamo.disable(_begin_again))


def _begin_again() -> str:
    """Dynamo is about to compile a frame once more, for calls that none of its graphs answers; it asks what else to log.

    Beyond its limit it makes no graph, and from then on leaves all such calls of the function to eager PyTorch.

    Raises:
        FailOnRecompileLimitHit: the user wants an error where only PyTorch can answer.
    """
    compiling = _compiling(sys._getframe(1))
    configured = _backend_of(compiling)
    if compiling is not None and _is_watched(configured):
        sizes: Any = importlib.import_module("torch._dynamo.cache_size")
        beyond, limit = sizes.exceeds_recompile_limit(*map(compiling.f_locals.get, ("cache_size", "compile_id")))
        reason = f"it has as many graphs as torch._dynamo.config.{limit} allows ({getattr(torch._dynamo.config, limit, 0)})"
        if beyond and _give_up(configured, compiling, reason):
            raise torch._dynamo.exc.FailOnRecompileLimitHit(f"{_place(compiling)}: {reason}")
    return ""


def _give_up(configured: Any, compiling: types.FrameType, reason: str) -> bool:
    """Tell a backend that Dynamo makes no graph of a frame; whether the caller is to get an error."""
    given_up: GivenUp = _function(configured).frame_given_up
    return given_up(_place(compiling), reason, getattr(configured, "kwargs", {}).get("options") or {})


def _have_dynamo_call() -> None:
    with contextlib.suppress(ImportError):
        callbacks = importlib.import_module("torch._dynamo.callback")
        watch = _FrameWatch()
        # PyTorch may call them, with a lock in its hands, where Dynamo would compile what they run
        callbacks.on_compile_start(torch._dynamo.disable(watch.begin))
        callbacks.on_compile_end(torch._dynamo.disable(watch.end))
        weakref.finalize(watch, _have_dynamo_call).atexit = False  # only Dynamo's lists hold it


class _FrameWatch:
    """Looks at the frames of those backends that have an attribute ``frame_given_up``, a :data:`GivenUp`.

    Where the first operator of a function breaks its graph, Dynamo calls no backend for it, and for what follows it may. The
    backend's ``frames_broken``, if it has that, takes a dict of such functions, which is empty as soon as there is a graph.
    """

    def __init__(self) -> None:
        self._allowed = contextlib.ExitStack()
        self._graphs, self._breaks = 0, Counter[str]()
        #: By the ``id`` of what ``torch.compile`` has made of a backend and its options: that, and its functions without a graph,
        #: each with the reason; None once it has a graph.
        self._broken: dict[int, tuple[weakref.ref[Any], dict[str, str] | None]] = {}

    def begin(self, *_: Any) -> None:
        """Dynamo begins to compile a frame."""
        self._graphs, self._breaks = counters["stats"]["unique_graphs"], Counter(counters["graph_break"])
        if _is_watched(_backend_of(_compiling(sys._getframe(1)))):
            self._allowed.enter_context(recurrent_networks_allowed())

    def end(self, *_: Any) -> None:
        """Dynamo has compiled a frame, or the error is under way for which it gives the frame up."""
        self._allowed.close()
        error, compiling = sys.exc_info()[1], _compiling(sys._getframe(1))
        configured = _backend_of(compiling)
        if compiling is None or not _is_watched(configured):
            return
        if isinstance(error, torch._dynamo.exc.Unsupported):
            asked = _give_up(configured, compiling, first_line(error))
            if asked and _has_tensors(compiling) and not _raises_itself(error):
                _raise_it(error)
        elif hasattr(_function(configured), "frames_broken"):
            self._note_break(configured, compiling)

    def _note_break(self, configured: Any, compiling: types.FrameType) -> None:
        known, broken = self._broken.get(id(configured), (None, {}))
        if known is None or known() is not configured:
            known, broken = weakref.ref(configured), {}
        if counters["stats"]["unique_graphs"] > self._graphs and broken is not None:
            broken.clear()
            broken = None
        elif broken is not None and (reasons := Counter(counters["graph_break"]) - self._breaks):
            broken[_place(compiling)] = first_line(next(iter(reasons)))
            _function(configured).frames_broken(broken)
        self._broken[id(configured)] = known, broken


def _place(compiling: types.FrameType) -> str:
    """The name and place of the function that Dynamo compiles; of a function that it has wrapped, those of the latter."""
    code = compiling.f_locals["code"]
    if code.co_filename == external_utils.__file__:
        function: Any = compiling.f_locals["locals"].get("fn")
        function = inspect.unwrap(getattr(function, "forward", function))
        if not hasattr(function, "__code__"):
            return str(getattr(function, "__name__", type(function).__name__))
        code = function.__code__
    return f"{code.co_name} at {code.co_filename}:{code.co_firstlineno}"


def _has_tensors(compiling: types.FrameType) -> bool:
    """Whether a function that Dynamo compiles has tensors or modules; a helper that works on numpy's arrays has none."""
    return any(isinstance(value, (torch.Tensor, torch.nn.Module)) for value in compiling.f_locals["locals"].values())


def _raises_itself(error: BaseException) -> bool:
    """Whether Dynamo gives a frame up because the program raises an error there, which then is its caller's."""
    observed = getattr(torch._dynamo.exc, "ObservedException", ())
    return isinstance(error.__cause__, observed) or isinstance(error.__context__, observed)


def _raise_it(error: Any) -> None:
    """Have Dynamo raise an error that it would pass over, as where the user has said ``error_on_graph_break``."""
    with contextlib.suppress(AttributeError):  # of versions that do not have this
        error._torch_dynamo_tracer_output.error_on_graph_break = True


def _compiling(frame: types.FrameType | None) -> types.FrameType | None:
    """The frame of Dynamo's function that compiles a frame, from which a callback is called."""
    while frame is not None and (frame.f_globals.get("__name__") != _CONVERTING or "compiler_fn" not in frame.f_locals):
        frame = frame.f_back
    return frame


def _backend_of(compiling: types.FrameType | None) -> Any:
    """The backend that a frame is compiled for: what ``torch.compile`` has made of a function and its options, or a function."""
    backend: Any = None if compiling is None else compiling.f_locals["compiler_fn"]
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return backend


def _function(backend: Any) -> Any:
    return getattr(backend, "compiler_fn", backend)


def _is_watched(backend: Any) -> bool:
    return hasattr(_function(backend), "frame_given_up")


class WithoutGraph:
    """Functions that Dynamo has given up, and functions whose first operator breaks the graph; by their names and places."""

    def __init__(self) -> None:
        self._given_up: dict[str, NetworkStats] = {}
        #: For every backend with its options one dict, which is emptied by a graph.
        self._broken: list[dict[str, str]] = []

    def give_up(self, where: str, reason: str, options: Mapping[str, Any]) -> bool:
        """Count a function that Dynamo gives up; returns whether the user wants an error where only PyTorch can answer."""
        self._given_up.setdefault(where, NetworkStats()).fall_back(where, _why(reason))
        return parse_options(options).fallback == "raise"

    def note(self, broken: dict[str, str]) -> None:
        """Take note of functions whose first operator breaks the graph, each with the reason; they may change."""
        if not any(each is broken for each in self._broken):
            self._broken.append(broken)

    def stats(self) -> dict[str, dict[str, Any]]:
        """The statistics of each function."""
        found = {where: reason for broken in self._broken for where, reason in broken.items()}
        statistics = {where: NetworkStats(fallbacks=Counter([_why(reason)])) for where, reason in found.items()}
        return {where: {**each.as_dict(), "answered_by": "eager"} for where, each in (statistics | self._given_up).items()}

    def clear(self) -> None:
        """Forget all."""
        self._given_up.clear()
        self._broken.clear()


def _why(reason: str) -> str:
    return f"Dynamo makes no graph of it: {reason}"
