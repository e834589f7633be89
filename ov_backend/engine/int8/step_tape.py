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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from ov_backend.core.errors import last_line, pass_on_signals
from ov_backend.guards import autocast, content

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
        much_noise: it was not in 8 bits for its noise, and will not be.
    """

    outputs: tuple[torch.Tensor, ...] = ()
    much_noise: bool = False
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
        with torch.no_grad(), _under_autocast(None):  # operators were noted with the casts of their time
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
        #: Whether the step is lost because it wrote into a weight, as where a LoRA is applied; the next one may not.
        self.wrote_weights = False
        self._slots = WeakTensorKeyDictionary()
        #: Slots whose tensors share memory have the same number here.
        self._memory: dict[_Slot, int] = {}
        #: By these numbers; no other memory has the number of one that was freed, as long as it stands here.
        self._storages: dict[int, StorageWeakRef] = {}
        #: The memory that holds what was computed from the results of blocks, and that of weights.
        self._derived: set[int] = set()
        self._of_weights: set[int] = set()
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
        before = None if self.lost else self._followed(partial(self._before, func, args, kwargs))
        result = func(*args, **kwargs)
        if before is not None and not self.lost:
            self._followed(partial(self._after, func, before, (args, kwargs), result))
        return result

    def _before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
        """The arguments of an operator as slots, and the states of its random numbers."""
        read = self._read(args, kwargs)
        if any(self._memory[self._slots[tensor]] in self._of_weights for tensor in _written(func, args, kwargs)):
            self.wrote_weights = True
            raise ValueError("it writes into a weight, which must not be done again")
        return read, _random_states(func, kwargs)

    def _after(self, func: Any, before: tuple[Any, list[torch.Tensor]], given: Any, result: Any) -> None:
        read, states = before
        if not all(map(torch.equal, states, _random_states(func, given[1]))):  # its numbers are taken as they are
            if not func.__name__.startswith(_OF_SHAPE):
                self.leaves(given)
            for tensor in _tensors(result):
                self._slots.pop(tensor, None)
        elif _tensors(result):
            self._write(func, read, result)
        else:
            self.leaves(given)  # a number, by which the forward may decide something

    def _followed(self, note: Callable[[], Any]) -> Any:
        try:
            return note()
        except Exception as error:  # no memory for a copy, or an operator of another kind
            pass_on_signals(error)
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
            self.tape._states.append((state, state()))
            again = partial(_run_under_autocast, autocast.of_program(), run)
            self._write(again, self._read(args, dict(kwargs)), result)
            self._derived.update(self._memory[self._slots[tensor]] for tensor in _tensors(result))

        if not self.lost:
            self._followed(write)

    def finished(self, result: Any) -> Tape | None:
        """The tape, or None where the result cannot be had from it."""
        slots = [self._slots.get(tensor) for tensor in _tensors(result)]
        if self.lost or not slots or not all(self._is_derived(slot) for slot in slots):
            return None
        self.tape.finish(slots, result)
        return self.tape

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if any(isinstance(x, torch.UntypedStorage) for x in tree_flatten((args, kwargs))[0]):
            raise ValueError("it is given memory without a tensor")
        return tree_map(lambda x: self._slot_of(x) if isinstance(x, torch.Tensor) else x, (args, kwargs))

    def _slot_of(self, tensor: torch.Tensor) -> _Slot:
        slot: _Slot | None = self._slots.get(tensor)
        memory = self._memory_of(tensor)
        if slot is not None and self._memory[slot] == memory:
            return slot
        if slot is not None or memory in self._derived:  # ``.data`` was read or assigned: no operator says so
            raise ValueError("a tensor's memory was exchanged, or is another one's")
        slot = self._slots[tensor] = self._new(tensor)
        self.tape._given[slot] = tensor if _is_weight(tensor) else tensor.detach().clone()
        if _is_weight(tensor):
            self._of_weights.add(memory)
            self.tape._states.append((partial(content.mark, tensor), content.mark(tensor)))
        return slot

    def _new(self, tensor: torch.Tensor) -> _Slot:
        self._count += 1
        slot = _Slot(self._count)
        self._memory[slot] = self._memory_of(tensor)
        return slot

    def _memory_of(self, tensor: torch.Tensor) -> int:
        """Names the memory that a tensor shares with its views."""
        storage = tensor.untyped_storage()
        number = int(storage._cdata)
        if number not in self._storages:
            self._storages[number] = StorageWeakRef(storage)
        return number

    def _is_derived(self, slot: _Slot | None) -> bool:
        return slot is not None and self._memory[slot] in self._derived

    def _write(self, run: Callable[..., Any], read: tuple[Any, Any], result: Any) -> None:
        derives = any(map(self._is_derived, _slots(read)))
        results: list[_Slot | None] = []
        for value in tree_flatten(result)[0]:
            slot = self._new(value) if isinstance(value, torch.Tensor) else None
            if slot is not None:
                self._slots[value] = slot
            results.append(slot)
        self.tape._steps.append(_Step(run, *read, tuple(results)))
        if derives:
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


def paused() -> contextlib.AbstractContextManager[Recorder | None]:
    """In this block nothing is noted; gives the recorder that is active around it, if there is one."""
    recorder = _recorder.get()
    return contextlib.nullcontext() if recorder is None else _paused(recorder)


@contextlib.contextmanager
def _paused(recorder: Recorder) -> Iterator[Recorder]:
    token, stops = _recorder.set(None), recorder.is_innermost
    if stops:  # else another's mode was entered inside, for which the call stays in PyTorch anyway
        recorder.stop()
    try:
        yield recorder
    finally:
        if stops:
            recorder.go_on()
        _recorder.reset(token)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes into."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    values = [kwargs.get(each.name, args[i] if i < len(args) else None) for i, each in enumerate(schema.arguments)]
    return _tensors([x for x, each in zip(values, schema.arguments) if each.alias_info is not None and each.alias_info.is_write])


def _random_states(func: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The states of the generators that an operator may draw from; attention, for example, does so with a dropout only."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return []
    generator = kwargs.get("generator")
    return [torch.get_rng_state() if generator is None else generator.get_state()]


def _run_under_autocast(dtype: torch.dtype | None, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _under_autocast(dtype):
        return run(*args, **kwargs)


def _under_autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """The autocast of which :func:`ov_backend.guards.autocast.of_program` says a dtype."""
    if dtype is None and autocast.of_cpu() is None:
        return contextlib.nullcontext()
    return autocast.like(dtype)


def _is_weight(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def _slots(values: Any) -> list[_Slot]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, _Slot)]
