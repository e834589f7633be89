"""Watches what Python code does while it is traced, in the tracing thread alone; nothing is patched.

The interpreter tells a profiler of every call: which functions ran, which attributes of modules were set, and whether the code
asked for the time, printed or read a file. It does so per thread, so that what other threads do in the meantime is not mistaken
for the trace's own doing.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, CodeType, FrameType, ModuleType, TracebackType
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensor

from ov_backend.core import garbage
from ov_backend.guards.describe import UNSET, attribute_or_none, content_of
from ov_backend.guards.reads import UNNAMED, asked_of_variables, compares_with_tensor, globals_set_by, outer_set_by
from ov_backend.guards.traced_code import own_code
from ov_backend.trace.capture import impure, trace_detection
from ov_backend.trace.capture.fast_paths import beside_fast_path, takes_fast_path
from ov_backend.trace.capture.impure import IMPURE_CODE, NUMPY_GENERATORS, OF_INTERPRETER, name_of_effect, of_the_forward
from ov_backend.trace.capture.left_behind import cells_of, clear_caches, is_same, random_state, table_of
from ov_backend.trace.capture.process_tables import ArithmeticState

#: Run where a module is imported for the first time, or looked for: code objects by their ``id``, which stay alive here.
_IMPORTS = {
    id(code): code
    for name in ("_find_and_load", "_find_spec")
    for code in [getattr(getattr(getattr(importlib, "_bootstrap", None), name, None), "__code__", None)]
    if code is not None
}
#: What sets an attribute of a module; ``nn.ModuleList.append`` and its like call the last one.
_SETTERS = tuple(getattr(torch.nn.Module, name).__code__ for name in ("__setattr__", "__delattr__", "add_module"))
#: Their hooks compute a module's weight of other weights before each of its calls, and set it.
_COMPUTING_WEIGHTS = frozenset({"torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"})
#: What has to be done when a function begins; most functions do nothing that counts.
_SETS, _MAKES, _CLASSES, _ACTS, _ASKS = 1, 2, 4, 8, 16
#: Classes of Python's own, by their ``id``, whose methods only compute; a forward calls many of them. (The hash of a program's
#: class may be the program's own code.)
PLAIN = frozenset(map(id, (list, dict, tuple, str, bytes, int, float, bool, set, frozenset)))
_ABSENT = object()
#: Python's generator for the whole process.
_GENERATOR: Any = random._inst


class Stopped(BaseException):
    """Raised in the place of an effect, which then comes about where PyTorch answers alone; no error that code would catch."""


class Observer:
    """Notes what runs between ``with`` and its end, and which attributes of modules are set; that can be undone.

    Where it ``stops``, :class:`Stopped` is raised before a call that has an effect.

    Attributes:
        made: objects of classes with an ``__init__`` in Python that the code made while it ran and that are neither gone nor in
            a cache at its end, by their ``id``.
        cached: what a ``functools.lru_cache`` held at the end, by its ``id``.
        executed: code objects of the functions that ran, each with its Python module; what torch's operators call is left out.
        effects: what the code did beside computing, in words.
        asked: what the code asked for that a trace answers otherwise, in words.
        fast_attention: whether the next attention of ``torch.nn`` is computed by PyTorch's fast path outside of a trace.
        disturbed: whether random numbers of Python or numpy were drawn, and not seen: probably in another thread, as servers of
            web sockets and extensions do.
    """

    def __init__(self, caches: Iterable[Any] = (), stops: bool = False) -> None:
        self._caches, self._stops = caches, stops
        self.made: dict[int, object] = {}
        self.executed: dict[CodeType, str] = {}
        self.effects: list[str] = []
        self.asked: list[str] = []
        self.fast_attention = False
        self.disturbed = self._draws = False
        #: PyTorch's generators whose methods were called, each with its state before the first call.
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        #: Globals that code which ran may set, and what they were.
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        #: Variables of functions around those that ran and set them, with what they held before.
        self._cells: dict[int, tuple[CellType, Any]] = {}
        #: Code objects of programs that ask for the class of something, or for its table of attributes, with the words for it and
        #: the variables. Installed packages know fake tensors.
        self._classes: dict[CodeType, list[tuple[str, frozenset[tuple[str, tuple[str, ...]]]]]] = {}
        #: What code has asked of a tensor, and so of a fake tensor: its class, its table.
        self._asked_of_tensor: dict[str, None] = {}
        self._importing = 0
        self._pause = contextlib.ExitStack()
        #: What each function that began has to be looked at for, by the ``id`` of its code, and these code objects: an ``id`` is
        #: only good as long as its object lives. Code objects are compared part by part, which takes longer than most calls.
        self._roles: dict[int, int] = {}
        self._begun: list[CodeType] = []
        #: Functions written in C that belong to a Python module or to nothing and only compute, by their ``id``.
        self._harmless: dict[int, Any] = {}
        self._previous: Any = None
        #: Where an attribute was set, and what was there before the first time.
        self._before: dict[tuple[int, str], tuple[torch.nn.Module, Any]] = {}
        #: Those of them that somebody may read before they are set anew.
        self._lasting: set[tuple[int, str]] = set()
        #: What the code makes, without keeping it alive: it may ask whether something is gone, or act when it goes.
        self._made: dict[int, weakref.ref[Any]] = {}
        #: One function object: the interpreter compares it when it is set again.
        self._callback: Callable[[FrameType, str, Any], None] = self._on_event

    def __enter__(self) -> Observer:
        self._random, self._arithmetic = random_state(), ArithmeticState()
        self._pause.enter_context(garbage.paused())  # its callbacks and finalizers would be taken for the forward's own code
        self._previous = sys.getprofile()
        sys.setprofile(self._callback)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.setprofile(self._previous)
        self._pause.close()
        if self._arithmetic.put_back():
            self.effects.append("sets how numbers are computed (by decimal, numpy or autocast)")
        (python, numpy), (python_now, numpy_now) = self._random, random_state()
        self.disturbed = (python != python_now and not self._draws) or numpy != numpy_now
        if self._draws:
            self.effects.append("draws random numbers of Python or numpy")
        self.cached = clear_caches(self.executed, self._caches)
        made = ((key, reference()) for key, reference in self._made.items() if key not in self.cached)
        self.made = {key: value for key, value in made if value is not None}
        self.effects += self._effects_of_code()
        if self._generators:
            self.effects.append("seeds or reads a generator of random numbers")
        for generator, state in self._generators.values():
            generator.set_state(state)
        if self._draws:
            random.setstate(python)
        if numpy != numpy_now:  # a profiler does not see these draws
            np.random.set_state((numpy[0], np.frombuffer(numpy[1], dtype=np.uint32), *numpy[2:]))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Not watching in this block: torch's own code makes a hundred times as many calls as a module's."""
        watching = sys.getprofile()
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(watching)

    def undo(self, slots: Mapping[int, torch.Tensor]) -> list[tuple[torch.nn.Module, str]]:
        """Put back every attribute that was set; returns those that had changed by it: not to the slot of what was there."""
        changed = []
        for (_, name), (module, before) in self._before.items():
            table = table_of(module, name)
            now, then = (slots.get(id(value), value) for value in (table.get(name, _ABSENT), before))
            if (id(module), name) in self._lasting and not is_same(now, then):
                changed.append((module, name))
            if before is not _ABSENT:
                table[name] = before
            elif name in table:
                del table[name]
        return changed

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if id(code) in _IMPORTS:  # what a module does when it is imported is no part of the forward
            self._importing += {"call": 1, "return": -1}.get(event, 0)
        elif self._importing:
            return
        elif event == "call":
            role = self._roles.get(id(code))
            if role := self._role(code, frame.f_globals) if role is None else role:
                self._call(frame, role)
        elif event == "c_call":
            owner = getattr(argument, "__self__", None)
            if id(type(owner)) not in PLAIN and id(argument) not in self._harmless:
                self._call_c(frame, argument, owner)
        elif event == "return" and self._roles.get(id(code), 0) & _CLASSES:
            self._ask_for_classes(frame)

    def _role(self, code: CodeType, table: dict[str, Any]) -> int:
        """What calls of a function have to be looked at for, which begins for the first time."""
        if code in _SETTERS:
            role = _SETS
        else:
            if code not in self.executed:
                self._begins(code, table)
            role = _MAKES * (code.co_name == "__init__" and code.co_argcount > 0) | _CLASSES * (code in self._classes)
            role |= _ACTS * (code in IMPURE_CODE) | _ASKS * (code in trace_detection.ASKS_TRACE_CODE)
        self._roles[id(code)] = role
        self._begun.append(code)
        return role

    def _call(self, frame: FrameType, role: int) -> None:
        """A function with a role is called."""
        code = frame.f_code
        if role == _SETS:
            module, name = frame.f_locals["self"], frame.f_locals["name"]
            # the tracer keeps literals on a bare Module: these must stay; a module made by the forward is nobody else's yet
            if type(module) is not torch.nn.Module and id(module) not in self._made:
                self._before.setdefault((id(module), name), (module, table_of(module, name).get(name, _ABSENT)))
                if frame.f_back is None or frame.f_back.f_globals.get("__name__") not in _COMPUTING_WEIGHTS:
                    self._lasting.add((id(module), name))
            return
        made = frame.f_locals.get(code.co_varnames[0]) if role & _MAKES else None
        if not getattr(made, "__dict__", True) and type(made).__weakrefoffset__:  # no attribute is set yet
            self._made[id(made)] = weakref.ref(made)
        if role & _CLASSES:
            self._ask_for_classes(frame)
        if role & _ACTS and frame.f_back is not None:
            self._note(frame.f_back, IMPURE_CODE[code])
        elif role & _ASKS and frame.f_back is not None:
            self._note_question(frame.f_back, trace_detection.ASKS_TRACE_CODE[code])

    def _call_c(self, frame: FrameType, function: Any, owner: Any) -> None:
        """A function written in C is called, whose ``__self__`` is the owner."""
        if owner is _GENERATOR:
            self._draws |= function.__name__ != "getstate"
        elif isinstance(owner, torch.Generator):
            self._generators.setdefault(id(owner), (owner, owner.get_state()))
        elif id(function) in trace_detection.ASKS_TRACE:
            self._note_question(frame, trace_detection.ASKS_TRACE[id(function)])
            if id(function) in trace_detection.ASKS_OVERRIDES and takes_fast_path(frame):
                if different := beside_fast_path(frame):
                    self.asked.append(f"takes PyTorch's fast path for {different}, which a trace does not see")
                self.fast_attention = True
        elif effect := name_of_effect(function, owner):
            self._note(frame, effect)
        elif owner is None or type(owner) is ModuleType:
            self._harmless[id(function)] = function

    def _ask_for_classes(self, frame: FrameType) -> None:
        """Note whether one of the variables whose class or table this code asks for is a tensor, when it begins or ends."""
        for words, asked in self._classes[frame.f_code]:
            for name, attributes in asked:
                value = frame.f_locals.get(name)
                for attribute in attributes:
                    value = (attribute_or_none(value, "__dict__") or {}).get(attribute)
                if isinstance(value, FakeTensor):
                    self._asked_of_tensor[words] = None

    def _begins(self, code: CodeType, table: dict[str, Any]) -> None:
        """A function runs for the first time in this trace."""
        self.executed[code] = table.get("__name__", "")
        if trace_detection.of_program(self.executed[code]):
            for words, asked in asked_of_variables(code):
                if named := asked - {UNNAMED}:
                    self._classes.setdefault(code, []).append((words, named))
                if UNNAMED in asked:
                    self._asked_of_tensor[words] = None
            if names := [name for name in code.co_names if name in trace_detection.OF_TRACES or table.get(name) is FakeTensor]:
                self.asked.append(_question(names[0]))
        for name in globals_set_by(code) if self.executed[code] != impure.PROFILER else ():
            self._globals.setdefault((id(table), name), (table, name, table.get(name, _ABSENT)))
        if outer_set_by(code) and not any(code in outer.co_consts for outer in self.executed):
            for cell in cells_of(code):
                self._cells.setdefault(id(cell), (cell, content_of(cell)))

    def _effects_of_code(self) -> Iterator[str]:
        """What the code that ran does and a profiler does not see."""
        for table, name, before in self._globals.values():
            if table.get(name, _ABSENT) is not before:
                yield f"sets the global {name}"
        for cell, content in self._cells.values():
            if content_of(cell) is not content:
                if content is not UNSET:
                    cell.cell_contents = content
                yield "sets a variable of the function around it"
        for words in self._asked_of_tensor:
            yield f"asks for the {words} of a tensor"
        for code in own_code(self.executed):
            if drawn := NUMPY_GENERATORS.intersection(code.co_names):
                yield f"draws random numbers ({min(drawn)})"
            texts = code.co_consts if "getattr" in code.co_names else ()
            if asked := OF_INTERPRETER.intersection((*code.co_names, *(text for text in texts if isinstance(text, str)))):
                yield f"asks the interpreter ({min(asked)})"
            if compares_with_tensor(code):
                yield "asks whether the class of something is torch.Tensor"

    def _note(self, frame: FrameType, name: str) -> None:
        """Take note that a function of :mod:`ov_backend.trace.capture.impure` is called, if it is the forward's doing."""
        if of_the_forward(frame):
            self.effects.append(f"calls {name}")
            if self._stops:
                raise Stopped(name)

    def _note_question(self, frame: FrameType, name: str) -> None:
        """Take note of a question that a trace answers otherwise, if the code that asks is the program's."""
        module = str(frame.f_globals.get("__name__", ""))
        if trace_detection.of_program(module) and not trace_detection.is_kept_for_backward(module, name):
            self.asked.append(_question(name))


def _question(name: str) -> str:
    return f"asks for {name}, which a trace answers otherwise"
