"""Capture: a module and one call of it become one ATen graph whose weights are named placeholders ("slots").

The whole module is traced with ``make_fx`` over fake tensors, so that nothing is computed and no weight is read.
Weights are exchanged for slots where they are used, not where they stand: the module itself is never touched, so that
other threads may go on using it, and changing it, while it is being traced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeVar

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.utils.parametrize import is_parametrized

from ov_backend.core.errors import CaptureError
from ov_backend.guards.describe import NOTED
from ov_backend.guards.process_state import keeps_parametrized
from ov_backend.guards.pytree import Spec, flatten, items_of
from ov_backend.trace.capture.container_state import ContainerState
from ov_backend.trace.capture.impure import effect_of_hooks
from ov_backend.trace.capture.observer import Observer, Stopped
from ov_backend.trace.capture.slots import Slots
from ov_backend.trace.capture.trace import Captured, check_operators, trace

#: How often a trace is made that something disturbs: while a WebUI starts, its other threads draw random numbers every second.
_ATTEMPTS = 10

T = TypeVar("T")


@dataclass(frozen=True)
class Reach:
    """What a forward can read and change beside its arguments, and what a trace has done there.

    Attributes:
        tables: dicts, lists, sets and arrays, see :meth:`ov_backend.guards.code.CodeGuard.containers`.
        names: names of Python modules, each list with its table, see :meth:`ov_backend.guards.code.CodeGuard.names`.
        harmless: names of attributes that a forward may set without anybody reading them.
        executed: code objects of the Python functions that ran, each with its Python module.
        before: the state of the containers before the trace, once it has begun.
        gradients: whether ``torch.is_grad_enabled()`` is true for it.
        caches: functions with a ``functools.lru_cache``.
    """

    tables: Sequence[Any] = ()
    names: Sequence[tuple[dict[str, Any], list[str]]] = ()
    harmless: frozenset[str] = frozenset()
    executed: dict[CodeType, str] = field(default_factory=dict)
    before: list[ContainerState] = field(default_factory=list)
    gradients: bool = False
    caches: Sequence[Any] = ()


class Stray(CaptureError):
    """A forward reads a tensor to which the guard of the trace does not lead; a guard of the code that ran may lead there."""


class Disturbed(CaptureError):
    """Random numbers were drawn during a trace, probably by another thread: another attempt tells."""


@contextlib.contextmanager
def in_place_of(
    module: torch.nn.Module,
    weights: Sequence[torch.Tensor],
    slots: Sequence[torch.Tensor],
    reach: Reach | None = None,
) -> Iterator[Observer]:
    """While active, in this thread, slots (fake tensors) stand for weights; what a forward notes on its modules is undone.

    Its value tells afterwards what the code has made.

    Without ``reach`` nothing else is looked after: Dynamo has done so.

    Raises:
        CaptureError: the forward has side effects, asks for what a trace answers otherwise, or reads a tensor that could not be
            found again.
    """
    if reach is not None and keeps_parametrized() and any(map(is_parametrized, module.modules())):
        raise CaptureError("it has parametrizations, and torch.nn.utils.parametrize.cached() keeps what they have computed")
    tables, caches = (reach.tables, reach.caches) if reach is not None else ((), ())
    if reach is not None and (name := effect_of_hooks(module)):
        raise CaptureError(f"its forward calls {name}, which a compiled graph would do once")
    observer, state = Observer(caches, stops=reach is not None), ContainerState(module, tables)
    state.remember(reach.names if reach is not None else ())
    mode = Slots(list(zip(weights, slots)), observer)
    try:
        with torch.set_grad_enabled(reach is not None and reach.gradients), observer, mode:
            yield observer
    except Stopped as stopped:
        raise CaptureError(f"its forward calls {stopped}, which a compiled graph would do once") from None
    finally:
        changed = observer.undo({id(weight): slot for weight, slot in zip(weights, slots)})
        removed = state.remove_fakes()
        if reach is not None:
            reach.executed.update(observer.executed)
            reach.before.append(state)
    if reach is not None:
        if observer.asked:
            raise CaptureError(f"its forward {observer.asked[0]}")
        _check_side_effects(observer.effects, changed, removed, mode.strays, NOTED | reach.harmless)
        if observer.disturbed:
            raise Disturbed("its forward draws random numbers of Python or numpy, which a compiled graph would do once")


def _check_side_effects(
    effects: Sequence[str],
    changed: Sequence[tuple[torch.nn.Module, str]],
    removed: bool,
    strays: Sequence[torch.Tensor],
    harmless: frozenset[str],
) -> None:
    """Raise for what a compiled graph would not do at every call, or could not read again."""
    names = [f"{type(module).__name__}.{name}" for module, name in changed if name not in harmless]
    if effects:
        raise CaptureError(f"its forward {effects[0]}, which a compiled graph would do once")
    if names:
        raise CaptureError(f"its forward sets {names[0]}, which a compiled graph would not do")
    if removed:
        raise CaptureError("its forward collects tensors in a list or dict, which a compiled graph would not do")
    if strays and is_functorch_wrapped_tensor(strays[0]):
        raise CaptureError("its forward gives a weight to a function of torch.func, which a trace does not see")
    if strays:
        shape = list(strays[0].shape)
        raise Stray(f"its forward reads a tensor of shape {shape} that stands in no attribute, list, dict or global")


def capture(
    module: torch.nn.Module,
    forward: Callable[..., Any],
    weights: Mapping[str, torch.Tensor],
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    arguments: Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]],
    reach: Reach | None = None,
    emptied: frozenset[str] = frozenset(),
) -> Captured:
    """Trace one call of ``forward``, usually ``module``'s own, whose weights become slots (see :func:`weights_of`).

    Of the tensors only shape, dtype and stride are used; numbers of a trace stay what they are. ``arguments`` makes the call's
    arguments from other tensors in their place. ``emptied`` names arguments that are lists, which the forward may empty; the
    caller does that after each answer.

    Raises:
        CaptureError: the module cannot be traced, writes to its inputs or weights, or has other side effects.
    """
    specs: list[Spec] = []

    def run(slots: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        args, kwargs = arguments(inputs)
        before, described = flatten((args, kwargs))
        fakes = [each for each in (*inputs, *slots) if isinstance(each, torch.Tensor)]
        kinds = list(map(_kind, fakes))
        with in_place_of(module, live, slots, reach) as observer:
            result = forward(*args, **kwargs)
        after, described_after = flatten((args, kwargs))
        if described != described_after or any(a is not b for (_, a), (_, b) in zip(before, after)):
            others = {id(tensor) for name, tensor in zip(names, inputs) if name.partition(".")[0] not in emptied}
            if len(others) == len(inputs) or {id(tensor) for _, tensor in after} != others:
                raise CaptureError("its forward changes a list or dict among its arguments, which a compiled graph would not do")
        if kinds != list(map(_kind, fakes)):
            raise CaptureError("its forward gives an input or a weight another shape, another attribute or a gradient")
        leaves, spec = flatten(result, made=observer.made)
        specs.append(spec)
        if reach is not None:
            kept = {*map(id, reach.tables), *observer.cached, *_containers_in((args, kwargs), {})}
            _refuse_own(kept.intersection(_containers_in(result, observer.made)), [tensor for _, tensor in leaves], live, inputs)
        _refuse_attributes([tensor for _, tensor in leaves], fakes)
        return [tensor for _, tensor in leaves]

    live = list(weights.values())
    gm = undisturbed(lambda: trace(run, live, list(tensors)))
    check_operators(gm)
    return Captured(gm, tuple(weights), tuple(names), specs[-1])


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a forward could change of an input's fake tensor beside its values."""
    attributes = [name for name in vars(tensor) if not name.startswith("_")]
    has_gradient = tensor.is_leaf and tensor.grad is not None
    return tuple(tensor.shape), tensor.stride(), tensor.requires_grad, has_gradient, attributes


def _refuse_own(
    containers: set[int],
    tensors: Sequence[torch.Tensor],
    live: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
) -> None:
    """Refuse results that a compiled graph would only copy: weights, parameters, what asks for gradients, others' lists."""
    weights, given = set(map(id, live)), set(map(id, inputs))
    for tensor in tensors:
        if id(tensor) in weights:
            raise CaptureError("its result is one of its weights, of which a compiled graph would return a copy")
        if id(tensor) not in given and (tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)):
            raise CaptureError("its result asks for gradients or is a parameter, which a compiled graph would not return")
    if containers:
        raise CaptureError("its result is a list or dict that is not its own, of which a compiled graph would return a copy")


def _containers_in(value: Any, made: Mapping[int, object]) -> Iterator[int]:
    """The identities of the lists and dicts in a result."""
    items = items_of(value, made)
    if items is not None:
        if not isinstance(value, tuple):
            yield id(value)
        for item in items:
            yield from _containers_in(item, made)


def _refuse_attributes(results: Iterable[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    """Refuse results on which the forward has set attributes, which other fake tensors do not have."""
    known = {"proxy"}.union(*map(vars, others))  # PyTorch 2.1 keeps what stands for a constant of the trace there
    for tensor in results:
        own = [name for name in vars(tensor) if name not in known and not name.startswith("_")]
        if others and own:
            raise CaptureError(f"its result has an attribute {own[0]!r}, which a compiled graph would not set")


def undisturbed(attempt: Callable[[], T]) -> T:
    """Trace again while something else disturbs it; what is disturbed every time is the forward's own doing."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(Disturbed):
            return attempt()
    return attempt()
