"""The part of a walk that follows the names which code reads from outside: globals, attributes of modules, closures."""

from __future__ import annotations

import builtins
import contextvars
import enum
import functools
import importlib
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ov_backend.core.patching import unwrap
from ov_backend.guards.describe import (
    ANY_ATTRIBUTE,
    CLASS_REGISTRIES,
    FIND_MODELS,
    RESULT_REGISTRIES,
    SCALARS,
    TORCH_VALUES,
    UNSET,
    attribute_or,
    attribute_or_none,
    content_of,
    number_of,
)
from ov_backend.guards.packages import is_by_value, is_container, is_of_user
from ov_backend.guards.process_state import is_of_thread, query_of
from ov_backend.guards.reads import chains_of, imports_of, names_in
from ov_backend.guards.values import SHOWN, ValueWalk
from ov_backend.guards.versions import module_of, versioned

#: How deep values may lie in each other before the interpreter's stack is too small.
_MAX_DEPTH = 50
_FUNCTIONS = (types.FunctionType, types.MethodType)
#: What the import puts into a module. A loader may lead through all that is loaded, as pytest's does.
_OF_IMPORT = frozenset({"__builtins__", "__cached__", "__file__", "__loader__", "__spec__"})
#: Of classes that programs make values of, which packages do not keep in their modules.
_PUT_THERE = (np.ndarray, np.void, functools.partial, types.SimpleNamespace)


class NameWalk(ValueWalk):
    """Describes what functions read by name."""

    def _state(self, read: Callable[[], Any], path: str) -> None:
        """What the process answers now."""
        self.watch.content(read)
        self.description.begin(path)
        self._add(path, repr(read()))

    def _option(self, value: Any, attributes: list[str], path: str) -> None:
        """Look at a global object, or only at the attribute that is read: before a trace, and of an object of options."""
        kind = type(value)
        if kind.__module__ in self._host_modules:
            self._add(kind.__qualname__)
        elif not attributes or not (self._traced is None or isinstance(value, SHOWN) or hasattr(kind, "__getattr__")):
            self._value(value, path)
        else:
            self.watch.type_of(value)
            self._global_class(kind)
            self._attribute_of(value, attributes[0], f"{path}.{attributes[0]}")

    def _attribute_of(self, value: Any, name: str, path: str) -> None:
        read = functools.partial(attribute_or, value, name, UNSET)
        member = read()
        self._add("option", name)
        if member is UNSET or isinstance(member, (*SCALARS, *TORCH_VALUES, enum.Enum)):
            self.watch.content(lambda: (type(read()), read()))  # for 1 and True are equal
        elif read() is member:
            self.watch.attribute(value, name)
        else:  # it is made anew at each reading
            self._value(value, path)
        self._held(member, path, read)

    def _value(self, value: Any, path: str) -> None:
        """Describe a value; one that lies too deep in others comes later."""
        if self._depth >= _MAX_DEPTH:
            self._add("later")
            self._later.append((value, path))
            return
        self._depth += 1
        try:
            self._value_now(value, path)
        finally:
            self._depth -= 1

    def _value_now(self, value: Any, path: str) -> None:
        """Describe a value, below a patch of ours; of a function that shows the state of the process, also that state."""
        value = unwrap(value)  # a closure, an attribute or a list may have kept the patch
        if callable(value):
            self._asks(value, path)
            name = ANY_ATTRIBUTE.get(id(value))
            if name is not None and not re.search(rf"\b{name}$", path):
                self.volatile[path] = f"it calls {name} by another name, so nothing tells what it reads"
        around = self.description.begin(path)
        super()._value(value, path)
        self.description.begin(around)

    def _asks(self, value: object, path: str) -> bool:
        """Whether a value is a function or an object that shows the state of the process, or of the thread."""
        if is_of_thread(value):
            self.volatile[path] = f"it uses {path}, which asks for a state of the calling thread"
            return True
        query = query_of(value)
        if query is not None:
            self._state(query, path)
        return query is not None

    def _cache(self, cache: functools._lru_cache_wrapper[Any], path: str) -> None:
        """A function that keeps its results: what it would answer from these stands in no code."""
        function = cache.__wrapped__
        if isinstance(function, types.FunctionType) and not versioned(module_of(function)) and self._names is not None:
            misses = cache.cache_info().misses
            if cache.cache_info().currsize:
                self.watch.content(lambda: cache.cache_info().misses)
                self._add(misses, number_of(cache))
        self._value(function, path)

    def _cells(self, function: types.FunctionType, path: str) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self.watch.cell(cell)
            if module_of(function) not in self._host_modules or isinstance(content_of(cell), _FUNCTIONS):
                self._cell(cell, f"{path}'s {name}")

    def _host_functions(self, function: types.FunctionType, path: str) -> None:
        """The functions that a host's function names; of its other state the host takes care itself."""
        for chain in chains_of(function.__code__):
            table: Mapping[str, Any] = function.__globals__
            for name in (chain.root, *chain.attributes):
                value = table.get(name)
                if isinstance(value, _FUNCTIONS):
                    self.watch.key(table, name)
                    self._value(value, f"{path}:{name}")
                if value is None or not isinstance(attribute_or_none(value, "__dict__"), dict):
                    break
                table = vars(value)

    def _cell(self, cell: types.CellType, path: str) -> None:
        value = content_of(cell)
        if value is UNSET:
            self._add("empty cell")
        else:
            self._held(value, path, lambda: cell.cell_contents)

    def _global(self, function: types.FunctionType, root: str, attributes: tuple[str, ...], path: str) -> None:
        """What a function reads of a global name: an attribute of a module or class, a constant, a function, an object."""
        if root.startswith("@"):  # pytest's: it tells of an assert that fails; followed, it leads through all that is imported
            return
        table: Mapping[str, Any] = function.__globals__
        if root not in table:
            self._builtin(table, root, path)
            return
        name, rest, of_package = root, list(attributes), False
        self.watch.key(table, name)
        while isinstance(table[name], types.ModuleType) and rest:
            module = table[name]
            table, name, of_package = vars(module), rest.pop(0), versioned(module.__name__)
            self.watch.key(table, name)
            if name not in table:
                self._computed(module, name)
                return
        value = table[name]
        if self._asks(value, ".".join((root, *attributes))):
            return
        if value is sys.modules or value is importlib.import_module:
            self._look_up_of_modules(function, path)
        if of_package and not isinstance(value, (types.FunctionType, type, *SCALARS, torch.Tensor)):
            self._add(root, *attributes)
            self._of_package(value, rest, f"{path}:{name}")
            return
        if isinstance(value, types.ModuleType):
            self._value(value, name)
        elif isinstance(value, torch.Tensor):
            self._add(root, *attributes)
            self._tensor(value, f"{function.__module__}:{'.'.join((root, *attributes))}", functools.partial(table.get, name))
        elif isinstance(value, (type, types.FunctionType, functools.partial, contextvars.ContextVar, *SCALARS, *TORCH_VALUES)):
            self._add("global", root, *attributes)
            self._value(value, name)
            if isinstance(value, types.FunctionType) and not versioned(module_of(value)):
                self._attributes_of_function(value, rest[:1])
        elif root in RESULT_REGISTRIES and isinstance(value, set):
            self._add("global", root)
        elif root in CLASS_REGISTRIES and isinstance(value, dict):
            self._class_registry(value, name)
        elif isinstance(value, (dict, list, tuple, set, frozenset, np.ndarray, np.generic, enum.Enum)):
            self._add("global", root, *attributes)
            self._value(value, f"{function.__module__}:{name}")
        else:
            self._option(value, rest, f"{function.__module__}:{name}")

    def _of_package(self, value: Any, attributes: list[str], path: str) -> None:
        """A value that stands in a package: the package's own, or one that a program has put there."""
        if is_container(value) and not isinstance(value, (set, frozenset)) and not is_by_value(value):
            if isinstance(value, (dict, list)):
                self._watch_table(value)
        elif is_container(value) or isinstance(value, _PUT_THERE) or is_of_user(value):
            self._value(value, path)
        elif attributes:  # an object that shows switches, such as torch.backends.cuda.matmul
            read = functools.partial(attribute_or_none, value, attributes[0])
            if isinstance(read(), SCALARS):
                self._state(read, f"{path}.{attributes[0]}")

    def _builtin(self, table: Mapping[str, Any], name: str, path: str) -> None:
        """One of Python's builtins, or a name that is not there yet: later a global may hide it, or it may be replaced."""
        self.watch.key(table, name)
        self.watch.key(vars(builtins), name)
        value = vars(builtins).get(name)
        if not isinstance(value, (types.BuiltinFunctionType, type, type(None))):
            self._value(value, f"{path}'s {name}")

    def _look_up_of_modules(self, function: types.FunctionType, path: str) -> None:
        """A function that finds Python modules by their names, as far as these stand in its code."""
        if self._names is None and f"{module_of(function)}.{function.__qualname__}" in FIND_MODELS:
            return  # should a trace run it after all, what it reads is found then, and the trace is made once more
        for name in sorted({constant for constant in function.__code__.co_consts if isinstance(constant, str)}):
            self.watch.key(sys.modules, name)
            module = sys.modules.get(name)
            self._add(name, module is not None)
            if module is not None:
                self._python_module(module, path)

    def _python_module(self, module: types.ModuleType, path: str) -> None:
        """A Python module that is passed on as a value: code may read of it whatever it names."""
        self._add("module", module.__name__)
        if versioned(module.__name__):
            named = frozenset(vars(module)) if self._names is None and self._own_names else self._own_names
            self._members_of_import(vars(module), True, named, path)
        elif module.__name__ not in self._host_modules and self._first(module):
            members = frozenset(vars(module)) - _OF_IMPORT if self._names is None else self._names
            self._members_of_import(vars(module), False, members, path)

    def _imports(self, function: types.FunctionType, path: str) -> None:
        """What a function reads of modules that it imports when it is called: whatever of them its code names."""
        package = str(function.__globals__.get("__package__") or "")
        parents = ["", *(f"{package.rsplit('.', level)[0]}." for level in range(package.count(".") + 1) if package)]
        for imported in sorted(imports_of(function.__code__)):
            if imported and not versioned(imported):
                self.watch.key(sys.modules, imported)
                self._add(imported in sys.modules)
            for module in (sys.modules.get(f"{parent}{imported}".strip(".")) for parent in parents):
                if module is not None:
                    self._members_of_import(vars(module), versioned(module.__name__), names_in(function.__code__), path)

    def _members_of_import(self, table: dict[str, Any], of_package: bool, names: frozenset[str], path: str) -> None:
        if not of_package:
            for name in names - table.keys():
                self.watch.key(table, name)
        for name in sorted(names & table.keys()):
            if self._asks(table[name], name):
                continue
            if not isinstance(table[name], types.ModuleType):
                self.watch.key(table, name)
                self._add("import", name)
                if of_package and not isinstance(table[name], (types.FunctionType, type, *SCALARS, torch.Tensor)):
                    self._of_package(table[name], [], f"{path}'s {name}")
                else:
                    self._entry(table, name, f"{path}'s {name}")

    def _read_of_function(self, function: types.FunctionType) -> None:
        """What a function is called, what is written about it, and the attributes that code has put on it and that are read."""
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            self._value(getattr(function, name), f"{function.__qualname__}.{name}")
        if function.__dict__.keys() - {"__wrapped__"}:
            self._attributes_of_function(function, [name for name in sorted(vars(function)) if self._is_read(name)])

    def _attributes_of_function(self, function: types.FunctionType, names: list[str]) -> None:
        attributes = vars(function)
        self._watch_table(attributes)
        for name in names:
            if name not in attributes or name == "__wrapped__":
                continue
            self.description.begin(f"{function.__qualname__}.{name}")
            self._add(name)
            self._entry(attributes, name, f"{function.__qualname__}.{name}")

    def _computed(self, module: types.ModuleType, name: str) -> None:
        """An attribute that a Python module computes, such as ``torch.backends.mkldnn.enabled``."""
        if not versioned(module.__name__):
            self.watch.key(vars(module), "__getattr__")
            self._value(vars(module).get("__getattr__"), f"{module.__name__}.__getattr__")
        read = functools.partial(attribute_or_none, module, name)
        if isinstance(read(), SCALARS):
            self._state(read, f"{module.__name__}.{name}")

    def _class_registry(self, registry: dict[Any, Any], path: str) -> None:
        self._global_class(type(registry))
        for key in sorted(self._tree_classes & registry.keys()):
            self._add(key)
            read = functools.partial(dict.get, registry, key)  # the table's own takes a model
            self.watch.content(read)
            self._value(read(), path)
