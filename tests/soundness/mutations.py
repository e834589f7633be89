"""Everything reachable from a module and one call of it, and single changes of it with their undo.

The walk is made for this proof and shares nothing with the guards of the package: it starts from what a call was seen to run
(``executed.py``) and from the module, and follows attributes, containers, closures, defaults, globals and classes.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensor

from tests.soundness import changes, executed, module_mutations, values, weights
from tests.soundness.case import Case
from tests.soundness.changes import Mutation, Place

_MAX_OBJECTS = 20_000
_MAX_DEPTH = 12
#: Attributes of modules that are tables of torch's, or that no forward reads.
TABLES = {name for name in vars(torch.nn.Module()) if name not in ("training",)}
#: Attributes with which a forward writes its weights, in PyTorch too: no undo takes that back.
WRITES_WEIGHTS = {"max_norm"}
_TORCH_MODULES = ("torch", "torch.nn.functional")


def mutations(case: Case, use: Callable[[], None]) -> Iterator[Mutation]:
    """Every mutation of a case; ``use`` calls the accelerated network once, for mutations of several steps."""
    for mutation in _Walk(case, use).all():
        if not any(mutation.name.partition(": ")[0].endswith(f".{name}") for name in case.consumed):
            yield mutation


def sample(case: Case, use: Callable[[], None], count: int, seed: str) -> list[Mutation]:
    """``count`` mutations, in turn one of each kind, in an order that the seed decides."""
    by_kind: dict[str, list[Mutation]] = collections.defaultdict(list)
    for mutation in mutations(case, use):
        by_kind[mutation.kind].append(mutation)
    generator = random.Random(seed)
    for each in by_kind.values():
        generator.shuffle(each)
    kinds = sorted(by_kind)
    generator.shuffle(kinds)
    chosen: list[Mutation] = []
    while len(chosen) < count and any(by_kind.values()):
        chosen += [by_kind[kind].pop() for kind in kinds if by_kind[kind]]
    return chosen[:count]


def named(case: Case, use: Callable[[], None], names: set[str]) -> list[Mutation]:
    """The mutations of these names."""
    return [mutation for mutation in mutations(case, use) if mutation.name in names]


class _Walk:
    def __init__(self, case: Case, use: Callable[[], None]) -> None:
        self.case, self.use = case, use
        self.codes: set[types.CodeType] = set()
        case.call(executed.observed(self.codes, case.module.forward))
        self.names = executed.names_of(self.codes)
        self.functions = executed.functions_of(self.codes)
        self.seen: dict[int, Any] = {id(sys.modules): sys.modules}
        self.globals_seen: set[tuple[int, str]] = set()
        self.used_names: collections.Counter[str] = collections.Counter()

    def all(self) -> Iterator[Mutation]:
        """All mutations; a name that comes twice gets a number."""
        for mutation in self._all():
            self.used_names[mutation.name] += 1
            number = self.used_names[mutation.name]
            yield mutation if number == 1 else mutation._replace(name=f"{mutation.name} ({number})")

    def _all(self) -> Iterator[Mutation]:
        yield from self._value(self.case.module, "module", 0)
        for name, value in self.case.roots.items():
            yield from self._value(value, name, 0)
        for function in self.functions:
            yield from self._globals(function)
            yield from self._value(function, executed.function_name(function), 1)
        for name, apply, loose in module_mutations.of_the_process():
            yield Mutation(name, "state of the process", apply, loose)

    def _place(self, place: Place, depth: int) -> Iterator[Mutation]:
        """Mutations of what stands at a place, and of all that is reached from it."""
        value = place.read()
        if isinstance(value, torch.Tensor):
            yield from self._tensor(place)
            return
        for how, other in values.others(value):
            yield Mutation(f"{place.path}: {how}", place.kind, functools.partial(changes.exchange, place, other))
        if hasattr(value, "__dict__") and not isinstance(value, _NO_COPY):
            yield Mutation(f"{place.path}: a changed copy", place.kind, functools.partial(changes.changed_copy, place))
        yield from self._value(value, place.path, depth + 1)

    def _tensor(self, place: Place) -> Iterator[Mutation]:
        if place.kind != "weight" and not self._first(place.read()):
            return
        for how, apply in weights.writes(place.read, place.write, self.use):
            kind = "weight" if place.kind == "weight" else "loose tensor"
            yield Mutation(f"{place.path}: {how}", kind, apply, sparse=how.startswith("one element"))
        if isinstance(place.read(), torch.nn.Parameter):
            yield Mutation(f"{place.path}: .data exchanged", "weight", weights.replaced_data(place.read))

    def _first(self, value: Any) -> bool:
        if id(value) in self.seen or len(self.seen) > _MAX_OBJECTS:
            return False
        self.seen[id(value)] = value  # kept alive, so that its id stays its own
        return True

    def _value(self, value: Any, path: str, depth: int) -> Iterator[Mutation]:
        if depth > _MAX_DEPTH or isinstance(value, (*_PLAIN, torch.Tensor, torch.dtype)) or not self._first(value):
            return
        if isinstance(value, torch.nn.Module):
            yield from self._module(value, path, depth)
        elif isinstance(value, (list, collections.deque)):
            yield from self._list(value, path, depth)
        elif isinstance(value, dict):
            yield from self._dict(value, path, depth)
        elif isinstance(value, (tuple, set, frozenset)):
            yield from self._members(value, path, depth)
        elif isinstance(value, np.ndarray):
            yield from changes.array(value, path)
        elif isinstance(value, contextvars.ContextVar):
            yield Mutation(f"{path}: set", "context variable", functools.partial(changes.context_variable, value))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, path, depth)
        elif isinstance(value, types.MethodType):
            yield from self._value(value.__self__, f"{path}.__self__", depth + 1)
            yield from self._value(value.__func__, path, depth)
        elif isinstance(value, functools.partial):
            yield from self._value(value.func, f"{path}.func", depth + 1)
            yield from self._members(value.args, f"{path}.args", depth)
            yield from self._members(tuple(value.keywords.values()), f"{path}.keywords", depth)
        elif isinstance(value, (type, enum.Enum)):
            cls = value if isinstance(value, type) else type(value)
            yield from self._class(cls, depth) if cls is value or self._first(cls) else ()
        elif not isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            yield from self._object(value, path, depth)

    def _members(self, value: Any, path: str, depth: int) -> Iterator[Mutation]:
        for number, each in enumerate(value if isinstance(value, tuple) else sorted(value, key=repr)):
            if isinstance(each, torch.Tensor):
                fixed = Place(f"{path}[{number}]", "loose tensor", functools.partial(lambda item: item, each), lambda _: None)
                yield from (
                    m for m in self._tensor(fixed) if "exchanged" not in m.name and "in " not in m.name.rpartition(": ")[2]
                )
            else:
                yield from self._value(each, f"{path}[{number}]", depth + 1)

    def _list(self, value: Any, path: str, depth: int) -> Iterator[Mutation]:
        for number in range(min(len(value), 16)):
            get, put = functools.partial(value.__getitem__, number), functools.partial(value.__setitem__, number)
            yield from self._place(Place(f"{path}[{number}]", "list", get, put), depth)
        for how, change in changes.LIST_CHANGES.items():
            if value or how == "one more":
                yield Mutation(f"{path}: {how}", "list", functools.partial(changes.list_change, value, change))

    def _dict(self, value: dict[Any, Any], path: str, depth: int, kind: str = "dict") -> Iterator[Mutation]:
        keys = [key for key in value if key is not FakeTensor]  # einops notes the kinds of tensors; a trace adds this one
        for number, key in enumerate(keys[:64]):
            label = key if isinstance(key, (str, int)) and kind != "hook" else number
            get, put = functools.partial(dict.__getitem__, value, key), functools.partial(dict.__setitem__, value, key)
            yield from self._place(Place(f"{path}[{label!r}]", kind, get, put), depth)
            yield Mutation(f"{path}[{label!r}]: removed", kind, functools.partial(changes.remove_key, value, key))
        if kind == "dict":
            yield Mutation(f"{path}: one key more", kind, functools.partial(changes.add_key, value))

    def _function(self, function: types.FunctionType, path: str, depth: int) -> Iterator[Mutation]:
        if executed.is_library(function.__code__.co_filename):
            yield from self._cells(function, path, depth)
            return
        yield from self._defaults(function, path, depth)
        yield from self._cells(function, path, depth)
        if function.__code__ in self.codes:
            yield Mutation(f"{path}: other code", "code", functools.partial(changes.other_code, function))

    def _defaults(self, function: types.FunctionType, path: str, depth: int) -> Iterator[Mutation]:
        for number in range(len(function.__defaults__ or ())):
            place = Place(
                f"{path}'s default {number}",
                "default argument",
                functools.partial(lambda i: function.__defaults__[i], number),  # type: ignore[index]
                functools.partial(changes.set_default, function, number),
            )
            yield from self._place(place, depth)
        for name in sorted(function.__kwdefaults__ or {}):
            table = function.__kwdefaults__
            get, put = functools.partial(table.__getitem__, name), functools.partial(table.__setitem__, name)
            yield from self._place(Place(f"{path}'s default {name}", "default argument", get, put), depth)

    def _cells(self, function: types.FunctionType, path: str, depth: int) -> Iterator[Mutation]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if name == "__class__" or not self._first(cell):
                continue
            try:
                cell.cell_contents  # noqa: B018
            except ValueError:
                continue
            get, put = functools.partial(getattr, cell, "cell_contents"), functools.partial(setattr, cell, "cell_contents")
            yield from self._place(Place(f"{path}'s cell {name}", "closure", get, put), depth)

    def _globals(self, function: types.FunctionType) -> Iterator[Mutation]:
        for name in sorted(executed.names_of({function.__code__}) & function.__globals__.keys()):
            yield from self._global(vars_of(function), name, f"global {function.__module__}.{name}", 0)

    def _global(self, table: dict[str, Any], name: str, path: str, depth: int) -> Iterator[Mutation]:
        value = table[name]
        if isinstance(value, types.ModuleType):
            if depth < 3 and self._first(value):
                for inner in sorted(self.names & vars(value).keys()):
                    if not inner.startswith("__"):
                        yield from self._global(vars(value), inner, f"global {value.__name__}.{inner}", depth + 1)
            return
        of_library = (
            table.get("__name__", "").partition(".")[0] in ("torch", *_STANDARD) or table.get("__name__") in _TORCH_MODULES
        )
        if of_library and not (callable(value) and not isinstance(value, type) and table.get("__name__") in _TORCH_MODULES):
            return
        if (id(table), name) not in self.globals_seen:
            self.globals_seen.add((id(table), name))
            get, put = functools.partial(table.__getitem__, name), functools.partial(table.__setitem__, name)
            yield from self._place(Place(path, "function of torch" if of_library else "global", get, put), depth)

    def _class(self, cls: type, depth: int) -> Iterator[Mutation]:
        for base in cls.__mro__:
            if base is object or (base is not cls and not self._first(base)):
                continue
            library = base.__module__.partition(".")[0] in ("torch", "builtins", *_STANDARD)
            if library and not (issubclass(base, torch.nn.Module) and base is not torch.nn.Module and "forward" in vars(base)):
                continue
            for name in ["forward"] if library else sorted(vars(base)):
                if library or self._is_used(name, vars(base)[name]):
                    yield from self._class_member(base, name, depth)

    def _is_used(self, name: str, member: Any) -> bool:
        function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
        while hasattr(function, "__wrapped__"):
            if getattr(function, "__code__", None) in self.codes:
                return True
            function = function.__wrapped__
        return getattr(function, "__code__", None) in self.codes or (name in self.names and not name.startswith("__"))

    def _class_member(self, base: type, name: str, depth: int) -> Iterator[Mutation]:
        member, path = vars(base)[name], f"class {base.__module__}.{base.__qualname__}.{name}"
        place = Place(path, "class", functools.partial(changes.class_value, base, name), functools.partial(setattr, base, name))
        if issubclass(base, enum.Enum) and not isinstance(member, types.FunctionType):
            return
        if isinstance(member, (staticmethod, classmethod)):
            for how, other in values.others(member.__func__):
                yield Mutation(f"{path}: {how}", "class", functools.partial(changes.exchange, place, type(member)(other)))
            yield from self._value(member.__func__, path, depth + 1)
        elif isinstance(member, property):
            other = property(values.scaled(member.fget))
            yield Mutation(f"{path}: wrapped", "class", functools.partial(changes.exchange, place, other))
            yield from self._value(member.fget, path, depth + 1)
        elif isinstance(member, functools.cached_property):
            other = functools.cached_property(values.scaled(member.func))
            other.__set_name__(base, name)
            yield Mutation(f"{path}: wrapped", "class", functools.partial(changes.exchange, place, other))
        elif not isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)) and not changes.is_descriptor(
            member
        ):
            yield from self._place(place, depth)

    def _object(self, value: Any, path: str, depth: int) -> Iterator[Mutation]:
        cls = type(value)
        yield from self._class(cls, depth) if self._first(cls) else ()
        if cls.__module__.partition(".")[0] in ("torch", *_STANDARD) and not isinstance(value, _OPEN):
            return
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            for name in sorted(table, key=str):
                get, put = functools.partial(table.__getitem__, name), functools.partial(table.__setitem__, name)
                yield from self._place(Place(f"{path}.{name}", "object", get, put), depth)
            yield from self._methods(value, table, path)
        for base in cls.__mro__:
            for name in changes.slots(base):
                if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                    get, put = functools.partial(getattr, value, name), functools.partial(object.__setattr__, value, name)
                    yield from self._place(Place(f"{path}.{name}", "object", get, put), depth)

    def _methods(self, value: Any, table: dict[str, Any], path: str) -> Iterator[Mutation]:
        """Methods that ran, put on the instance; Python finds them there unless their names are special."""
        for name in sorted(self.names):
            member = getattr(type(value), name, None)
            if isinstance(member, types.FunctionType) and member.__code__ in self.codes and name not in table:
                yield Mutation(
                    f"{path}.{name}: on the instance",
                    "instance method",
                    functools.partial(changes.on_instance, value, table, name),
                )

    def _module(self, module: torch.nn.Module, path: str, depth: int) -> Iterator[Mutation]:
        for kind, table in (("weight", module._parameters), ("weight", module._buffers)):
            for name in sorted(table):
                if isinstance(table[name], torch.Tensor):
                    get, put = functools.partial(table.__getitem__, name), functools.partial(table.__setitem__, name)
                    yield from self._place(Place(f"{path}.{name}", kind, get, put), depth)
        for name, kind, apply in module_mutations.of_a_module(module, path):
            yield Mutation(name, kind, apply)
        for table_name in ("_forward_hooks", "_forward_pre_hooks"):
            yield from self._dict(getattr(module, table_name), f"{path}.{table_name}", depth, "hook")
        attributes = vars(module)
        for name in sorted(attributes, key=str):
            if name not in TABLES | WRITES_WEIGHTS:
                get, put = functools.partial(attributes.__getitem__, name), functools.partial(attributes.__setitem__, name)
                yield from self._place(Place(f"{path}.{name}", "attribute", get, put), depth)
        yield from self._methods(module, attributes, path)
        yield from self._class(type(module), depth) if self._first(type(module)) else ()
        for name, child in module._modules.items():
            if child is not None:
                yield from self._value(child, f"{path}.{name}", depth)


_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic, range, slice)
_STANDARD = ("numpy", *sys.stdlib_module_names)
_OPEN = (types.SimpleNamespace,)


_NO_COPY = (torch.nn.Module, enum.Enum, type, types.FunctionType, types.MethodType, types.ModuleType, types.BuiltinFunctionType)


def vars_of(function: types.FunctionType) -> dict[str, Any]:
    """A function's globals."""
    return function.__globals__
