"""A tape of one step: the operators and the calls of blocks by which a forward that is not ours came to its result.

To know how far a step is off in 8 bits, it has to be computed twice from the same inputs. Other code's forward cannot be called
twice: it may count steps, draw random numbers, or keep what it saw for the next step. So while it runs once, the operators
between its blocks are noted below Python, with the blocks' calls. They can be computed again without it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from ov_backend.errors import last_line
from ov_backend.guards import content

#: Give values to code that no recorder sees.
_LEAVE_TORCH = {getattr(torch.Tensor, name) for name in ("numpy", "tolist", "__array__", "__dlpack__")}
#: Random operators that read no more of a tensor than its shape.
_OF_SHAPE = ("rand_like", "randn_like", "randint_like", "normal_", "uniform_")

_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor on a tape."""

    number: int


@dataclass(frozen=True)
class _Step:
    """One operator, or one call of a block, with slots in the place of its tensors."""

    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[_Slot | None, ...]


@dataclass
class Tape:
    """What one step computed.

    Attributes:
        outputs: the step's results; copies.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    _steps: list[_Step] = field(default_factory=list)
    #: The tensors that were there before: copies, but for parameters.
    _given: dict[_Slot, torch.Tensor] = field(default_factory=dict)
    #: What tells the state of weights now, and what it said then.
    _states: list[tuple[Callable[[], object], object]] = field(default_factory=list)
    _returned: tuple[_Slot, ...] = ()
    #: By the number of a step, the slots that no later one reads.
    _unneeded: dict[int, list[_Slot]] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether the weights of an operator or a block have changed since, as far as a replay has shown."""
        return any(now() != then for now, then in self._states)

    def replay(self) -> list[torch.Tensor]:
        """Compute the step again: the blocks as they answer now, the operators between them in PyTorch."""
        values = {slot: x if _is_weight(x) else x.clone() for slot, x in self._given.items()}
        with torch.no_grad():
            for number, step in enumerate(self._steps):
                args, kwargs = tree_map(lambda x: values[x] if isinstance(x, _Slot) else x, (step.args, step.kwargs))
                for slot, value in zip(step.results, tree_flatten(step.run(*args, **kwargs))[0]):
                    if slot is not None:
                        values[slot] = value
                for slot in self._unneeded.get(number, ()):
                    values.pop(slot, None)
        return [values[slot] for slot in self._returned]

    def finish(self, returned: Sequence[_Slot], result: Any) -> None:
        """End the tape with the result of the forward, and its slots."""
        self._returned = tuple(returned)
        last: dict[_Slot, int] = {}
        for number, step in enumerate(self._steps):
            last.update(dict.fromkeys(_slots((step.args, step.kwargs, step.results)), number))
        kept = set(self._returned)
        for slot, number in last.items():
            if slot not in kept:
                self._unneeded.setdefault(number, []).append(slot)
        self.outputs = tuple(x.detach().clone() for x in _tensors(result))


class Recorder(TorchDispatchMode):
    """Writes a tape of what is computed in its block, in this thread."""

    #: Otherwise PyTorch raises where a forward uses one; here that step is not followed.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.tape = Tape()
        #: Why the step cannot be computed again with other values, or "".
        self.lost = ""
        self._slots = WeakTensorKeyDictionary()
        #: Slots whose tensors share memory have the same number here.
        self._memory: dict[_Slot, int] = {}
        #: The memory that holds what was computed from the results of blocks.
        self._derived: set[int] = set()
        self._count = 0
        self._leaving = _LeavingTorch(self)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """In this block, what is computed is noted."""
        token = _recorder.set(self)
        try:
            with self._leaving, self:
                yield
        finally:
            _recorder.reset(token)

    @property
    def is_innermost(self) -> bool:
        """Whether no other mode was entered since."""
        return _get_current_dispatch_mode() is self and _get_current_function_mode() is self._leaving

    def stop(self) -> None:
        """Note nothing until :meth:`go_on`."""
        self.__exit__(None, None, None)
        self._leaving.__exit__(None, None, None)

    def go_on(self) -> None:
        """Note again what is computed."""
        self._leaving.__enter__()
        self.__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Compute an operator and note it. Nothing that fails here reaches the forward."""
        kwargs = kwargs or {}
        read = None if self.lost else self._followed(partial(self._before, func, args, kwargs))
        result = func(*args, **kwargs)
        if not self.lost:
            self._followed(partial(self._after, func, read, (args, kwargs), result))
        return result

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        """The arguments of an operator as slots; None for random numbers, which are taken as they are."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return self._read(args, kwargs)
        if not func.__name__.startswith(_OF_SHAPE):
            self.leaves((args, kwargs))
        return None

    def _after(self, func: Any, read: tuple[Any, Any] | None, given: Any, result: Any) -> None:
        if read is None:
            for tensor in _tensors(result):
                self._slots.pop(tensor, None)
        elif _tensors(result):
            self._write(func, read, given, result)
        else:
            self.leaves(given)  # a number, by which the forward may decide something

    def _followed(self, note: Callable[[], Any]) -> Any:
        try:
            return note()
        except Exception as error:  # no memory for a copy, or an operator of another kind
            self.lost = f"an operator cannot be noted: {last_line(error)}"
            return None

    def leaves(self, values: Any) -> None:
        """Take note that these values, or what depends on them, are no longer followed."""
        if any(self._is_derived(self._slots.get(tensor)) for tensor in _tensors(values)):
            self.lost = "a value is used outside of PyTorch's operators"

    def note(
        self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, state: Callable[[], object]
    ) -> None:
        """Note a call that was computed without this recorder.

        Args:
            run: computes it again.
            args: of the call.
            kwargs: of the call.
            result: of the call.
            state: tells the state of its weights.
        """

        def write() -> None:
            self._watch(state)
            self._write(run, self._read(args, dict(kwargs)), (args, dict(kwargs)), result)
            self._derived.update(self._memory[self._slots[tensor]] for tensor in _tensors(result))

        if not self.lost:
            self._followed(write)

    def _watch(self, state: Callable[[], object]) -> None:
        self.tape._states.append((state, state()))

    def finished(self, result: Any) -> Tape | None:
        """The tape, or None where the result cannot be had from it."""
        slots = [self._slots.get(tensor) for tensor in _tensors(result)]
        if self.lost or not slots or not all(self._is_derived(slot) for slot in slots):
            return None
        self.tape.finish(slots, result)
        return self.tape

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return tree_map(lambda x: self._slot_of(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))

    def _slot_of(self, tensor: torch.Tensor) -> _Slot:
        slot: _Slot | None = self._slots.get(tensor)
        if slot is None:
            slot = self._slots[tensor] = self._new()
            self.tape._given[slot] = tensor if _is_weight(tensor) else tensor.detach().clone()
            if _is_weight(tensor):
                self._watch(partial(content.mark, tensor))
        return slot

    def _new(self, alias: _Slot | None = None) -> _Slot:
        self._count += 1
        slot = _Slot(self._count)
        self._memory[slot] = self._count if alias is None else self._memory[alias]
        return slot

    def _is_derived(self, slot: _Slot | None) -> bool:
        return slot is not None and self._memory[slot] in self._derived

    def _write(self, run: Callable[..., Any], read: tuple[Any, Any], given: Any, result: Any) -> None:
        inputs = {_memory_of(tensor): slot for slot, tensor in zip(_slots(read), _tensors(given))}
        results: list[_Slot | None] = []
        for value in tree_flatten(result)[0]:
            slot = self._new(inputs.get(_memory_of(value))) if isinstance(value, torch.Tensor) else None
            if slot is not None:
                self._slots[value] = slot
            results.append(slot)
        self.tape._steps.append(_Step(run, *read, tuple(results)))
        if any(map(self._is_derived, inputs.values())):
            self._derived.update(self._memory[slot] for slot in results if slot is not None)


class _LeavingTorch(TorchFunctionMode):
    """Tells a recorder of values that are read by code that is not PyTorch's."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = weakref.ref(recorder)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        recorder = self._recorder()
        if func in _LEAVE_TORCH and recorder is not None:
            recorder.leaves(args[:1])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def paused() -> Iterator[Recorder | None]:
    """In this block nothing is noted; gives the recorder that is active around it, if there is one."""
    recorder = _recorder.get()
    if recorder is None:
        yield None
        return
    token, stops = _recorder.set(None), recorder.is_innermost
    if stops:  # else another's mode was entered inside, for which the call stays in PyTorch anyway
        recorder.stop()
    try:
        yield recorder
    finally:
        if stops:
            recorder.go_on()
        _recorder.reset(token)


def _memory_of(tensor: torch.Tensor) -> int:
    """Names the memory that a tensor and its views share, as long as one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def _slots(values: Any) -> list[_Slot]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, _Slot)]
