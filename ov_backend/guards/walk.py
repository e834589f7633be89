"""A walk over everything that a forward can read, apart from its weights' values: code, attributes, objects, closures, globals.

The walk makes three things at once: a fingerprint by which earlier traces are found again, a cheap look that says whether
anything was exchanged since, and the tensors that lie outside parameters and buffers. What it cannot describe by value it
calls opaque, and describes by its identity.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

from ov_backend.core.patching import reducer_of, unwrap
from ov_backend.guards.describe import ENVIRONMENT, MAKING, NO_CODE, OF_FIELDS, SCALARS, codes_of, is_called_unnamed, number_of
from ov_backend.guards.module_walk import ModuleWalk, quiet_tables_read
from ov_backend.guards.notes import is_ours
from ov_backend.guards.packages import (
    IN_C,
    PUT_HELPERS,
    functions_of,
    is_by_value,
    is_container,
    is_data,
    is_put_there,
    takes_members,
)
from ov_backend.guards.process_state import ARITHMETIC
from ov_backend.guards.reads import chains_of, names_in
from ov_backend.guards.traced_code import TracedCode
from ov_backend.guards.versions import is_of_package, module_of, versioned

#: Code that names one of these may go through a module's weights in their order.
_WEIGHTS = frozenset({"parameters", "named_parameters", "_parameters", "buffers", "named_buffers", "_buffers", "state_dict"})


def _may_be_gone_through(name: str, member: Any) -> bool:
    """Whether code reads this member, a container, without its name: by a computed one, or by ``dataclasses.fields``."""
    return isinstance(member, (dict, list, set)) and (name not in NO_CODE or name == "__dataclass_fields__")


class Walk(ModuleWalk):
    """One walk, from a tree of modules and from functions that are called from outside.

    Args:
        ignore: names of attributes that a host keeps on modules for its own ends.
        host_modules: names of Python modules of a host whose state the host accounts for itself: only their bytecode counts.
        traced: the code that a trace has run, and the names that it reads; the walk goes through no other code and attributes.
            None, before the first trace, goes through everything reachable, up to a bound.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        roots: Sequence[Any] = (),
        ignore: frozenset[str] = frozenset(),
        host_modules: frozenset[str] = frozenset(),
        traced: TracedCode | None = None,
    ) -> None:
        super().__init__(ignore, host_modules, traced)
        self._tables_read = sorted(quiet_tables_read(traced))
        self.watch.quiet = frozenset(self._tables_read)
        self._weights_in_order = self._in_order or (traced is not None and not _WEIGHTS.isdisjoint(traced.names))
        self.codes: set[types.CodeType] = set()
        #: Whether the code that ran names the environment.
        self.reads_environment = traced is None or not ENVIRONMENT.isdisjoint(traced.own_names)
        self.refused = ""
        self._tree, self._weights = {}, {}
        self._package_classes: set[type] = set()
        self._mentioned: set[str] = set()
        self._waiting: dict[str, list[type]] = {}
        if module is not None:
            self._walk_tree(module, "")
            self._gradients_asked_for(module)
        for hooks in (torch.nn.modules.module._global_forward_hooks, torch.nn.modules.module._global_forward_pre_hooks):
            self._watch_table(hooks)
            if hooks:
                self.refused = "a hook for all modules of the process is registered"
        self._torch_functions()
        self._kernels()
        for name, read in ARITHMETIC.items():
            self._state(read, name)
        self._call_of_modules()
        self._einops()
        for cls in (torch.Tensor, torch.nn.Parameter):
            self._package_class(cls)
        for root in roots:
            self._value(root, getattr(root, "__qualname__", "forward"))
        while self._later:
            self._value(*self._later.popleft())
        self.refused = self.refused or self._volatile()
        self.fingerprint = self.description.fingerprint()
        self.watch.begin()

    def _volatile(self) -> str:
        """Why a trace would draw what a later call would not; of modules' attributes those count that code may name."""
        traced = self._traced
        named = self._mentioned if traced is None else traced.names
        for path, reason in self.volatile.items():
            _, attribute, rest = path.rpartition("!")
            name = rest.partition("[")[0].partition(".")[0]
            computed = traced is not None and traced.computes_names and path not in self.seen_in_use
            unnamed = computed or (traced is not None and not (attribute and name.isidentifier()))
            if unnamed or (attribute and name in named):
                return reason
        return ""

    def _class(self, cls: type) -> None:
        if not self._first(cls):
            return
        if not is_of_package(type(cls)):
            self._class(type(cls))
        self.watch.attribute(cls, "__mro__")
        if self._names is None:  # it may be copied
            self.watch.content(functools.partial(reducer_of, cls))
            self._value(reducer_of(cls), f"copyreg of {cls.__qualname__}")
        for base in cls.__mro__[:-1]:
            self._add("class", base.__module__, base.__qualname__, base.__name__)
            if is_of_package(base):
                self._package_class(base)
                continue
            self.watch.class_members(base)
            if base.__module__ not in self._host_modules:
                self._members(base)

    def _package_class(self, base: type) -> None:
        """What a program may have put on a package's class: functions and values; the package's own are known by its version."""
        if base in self._package_classes or not takes_members(base):
            return
        self._package_classes.add(base)
        self._alive.append(base)
        self.watch.class_members(base)
        self._functions_of_package(base.__module__)
        for name, member in list(vars(base).items()):
            named = self._traced is None or self._traced.computes_names or name in self._traced.names
            if named or name == "forward" or is_called_unnamed(name):
                self._package_member(base, name, unwrap(member), named)

    def _package_member(self, base: type, name: str, member: Any, named: bool) -> None:
        path = f"{base.__qualname__}.{name}"
        functions = functions_of(member)
        for function in functions:
            own = isinstance(function, types.FunctionType) and not versioned(module_of(function))
            if own and module_of(function).partition(".")[0] in PUT_HELPERS and name not in self._own_names:
                own = self._was_executed(function)
            if own or is_put_there(function):
                self._add(name)
                self._value(function, path)
        if functions or name in NO_CODE or isinstance(member, IN_C) or not (named or is_put_there(member)):
            return
        if is_container(member) and not is_by_value(member):
            if isinstance(member, (dict, list)):
                self._watch_table(member)
        elif is_data(member) or name in self._own_names:
            self._member(base, name)

    def _members(self, base: type) -> None:
        """A class's functions and values, as far as code that was walked mentions their names; the others wait for a mention."""
        made_here = not issubclass(base, torch.nn.Module)
        for name in sorted(vars(base)):
            called = name == "forward" or (is_called_unnamed(name) and (made_here or name not in MAKING))
            if called or self._is_mentioned(name):
                self._member(base, name)
            elif self._traced is None and _may_be_gone_through(name, vars(base)[name]):
                self._member(base, name)  # code that computes names may read it; what it changes is seen only in here
            elif name not in NO_CODE and self._traced is None:
                self._waiting.setdefault(name, []).append(base)
            elif self._traced is not None and self._is_named(name):
                self._add(base.__qualname__, name)
                self._member(base, name)

    def _is_named(self, name: str) -> bool:
        """Whether code that has a digest names a member that it mostly does not, or reads it by a function of ``dataclasses``."""
        by_function = name == "__dataclass_fields__" and not OF_FIELDS.isdisjoint(self._own_names)
        return by_function or name in NO_CODE & self._own_names

    def _is_mentioned(self, name: str) -> bool:
        return name in self._mentioned if self._traced is None else name not in NO_CODE and self._is_read(name)

    def _member(self, base: type, name: str) -> None:
        path = f"{base.__qualname__}.{name}"
        self.description.begin(path)
        self._add(path)
        member = vars(base).get(name)
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        elif isinstance(member, functools.cached_property):
            member = member.func
        if isinstance(member, property):
            for function in (member.fget, member.fset):
                self._value(function, path)
        elif isinstance(member, torch.Tensor):
            self._tensor(member, path, functools.partial(getattr, base, name))
        elif not isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self._value(unwrap(member), path)

    def _mention(self, code: types.CodeType) -> None:
        """Walk the members of classes that a code object names, those of classes that were met before included."""
        if self._traced is not None:
            return  # it is known which names are read
        names = names_in(code) - self._mentioned
        self._mentioned |= names
        for name in sorted(names & self._waiting.keys()):
            for base in self._waiting.pop(name):
                self._member(base, name)

    def _function(self, function: types.FunctionType, path: str) -> None:
        function = unwrap(function)
        if versioned(module_of(function)):
            self._add("function", function.__module__, function.__qualname__, number_of(function.__code__))
            self.watch.attribute(function, "__code__")
            if function.__closure__ and self._first(function):  # torch's decorators keep what they wrap
                self._cells(function, path)
            return
        if not self._was_executed(function):
            self._add(number_of(function.__code__), "not executed")
            self.watch.function(function)
            for name in ("__defaults__", "__kwdefaults__"):  # it may be asked for its signature, or for these
                self._defaults_of(function, name)
            self._read_of_function(function)
            if is_ours(module_of(function)):  # a model of ours: what its code names of classes counts
                self._mention(function.__code__)
            return
        if not self._first(function):
            return
        self.codes.update(codes_of(function.__code__))
        self._add(number_of(function.__code__))
        self._read_of_function(function)
        self.watch.function(function)
        for name in ("__defaults__", "__kwdefaults__"):
            self._value(getattr(function, name), f"{path}'s defaults")
        host = module_of(function) in self._host_modules
        self._cells(function, path)
        if host:
            self._host_functions(function, path)
        inner = getattr(function, "__wrapped__", None)
        if inner is not None:
            self.watch.key(vars(function), "__wrapped__")
            self._value(inner, path)
        self._mention(function.__code__)
        if not host:
            for chain in chains_of(function.__code__):
                self._global(function, chain.root, chain.attributes, path)
            self._imports(function, path)

    def _defaults_of(self, function: types.FunctionType, name: str) -> None:
        """The defaults of a function that a trace has not run: plain values always, others where code names them."""
        defaults = getattr(function, name)
        values = defaults.values() if isinstance(defaults, dict) else defaults or ()
        if defaults and all(isinstance(value, SCALARS) for value in values):
            self._add(name, defaults)
        elif defaults and self._traced is not None and name in self._traced.own_names:
            self._value(defaults, f"{function.__qualname__}.{name}")

    def _was_executed(self, function: types.FunctionType) -> bool:
        if self._traced is None:
            return len(self._places) < self._max_nodes and not is_ours(module_of(function))
        return function.__code__ in self._traced.codes

    def _global_class(self, cls: type) -> None:
        if is_of_package(cls):
            self._add("class", cls.__module__, cls.__qualname__)
            for base in cls.__mro__[:-1] if takes_members(cls) else ():
                if is_of_package(base):
                    self._package_class(base)
        else:
            self._class(cls)

    def _other_module(self, module: torch.nn.Module, path: str) -> None:
        """A module in a list, a closure or a global: its tensors are as good as weights."""
        if id(module) in self._tree:
            self._add("in tree", self._tree[id(module)])
            return
        if not self._first(module):
            return
        self._walk_tree(module, path)
        for name, child in module.named_modules():
            for table in (child._parameters, child._buffers):
                self.watch.length(table)
                for key, value in table.items():
                    if value is not None:
                        self._tensor(value, f"{path}.{name}.{key}", functools.partial(table.get, key))
                    else:
                        self._add("no tensor", name, key)
                        self.watch.key(table, key)
