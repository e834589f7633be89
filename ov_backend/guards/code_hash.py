"""Fingerprints: of a module's code and configuration, and of a graph. Equal fingerprints mean equal captures.

A module's fingerprint lets a second process find the stored graph without tracing: it covers the bytecode of every
forward and of every Python function these reach, the classes, the plain attributes (strides, numbers of heads, padding
modes), overridden forwards and hooks. Weights' values are no part of it.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from ov_backend.patching import is_patched, unwrap

#: Packages whose code is identified by their version, not by their bytecode.
VERSIONED = ("torch", "numpy", "openvino", "einops", "packaging")
#: Modules that download and report: no part of what a network computes, and they draw a new id in every process.
_REPORTING = ("huggingface_hub", "transformers.utils.hub", "diffusers.utils.hub_utils")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_SKIP = frozenset(
    {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks", "_backward_pre_hooks"}
    | {"_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"}
    | {"_is_full_backward_hook", "_is_hf_initialized", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"}
    | {"_forward_pre_hooks_with_kwargs", "_internal_dict", "name_or_path", "_name_or_path", "_commit_hash", *_HOOKS}
)
_MAX_DEPTH = 6


def module_fingerprint(module: torch.nn.Module, ignore: frozenset[str] = frozenset()) -> str:
    """Everything about a module, apart from its weights' values, that a trace of its forward depends on.

    Args:
        module: the module.
        ignore: names of attributes that a host keeps on modules for its own ends.
    """
    walker = _Walker(ignore)
    for path, child in module.named_modules():
        walker.module(path, child)
    return walker.digest()


def function_fingerprint(function: Any) -> str:
    """Of one Python function and all it reaches."""
    walker = _Walker()
    walker.value(function, 0)
    return walker.digest()


class _Walker:
    def __init__(self, ignore: frozenset[str] = frozenset()) -> None:
        self._hash = hashlib.sha256()
        self._ignore = _SKIP | ignore
        self._seen: set[int] = set()
        self._keep: list[Any] = []  # an id is only good as long as its object lives

    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, *parts: object) -> None:
        for part in parts:
            self._hash.update(str(part).encode("utf-8", "surrogatepass"))
            self._hash.update(b"\0")

    def first(self, item: object) -> bool:
        if id(item) in self._seen:
            return False
        self._seen.add(id(item))
        self._keep.append(item)
        return True

    def module(self, path: str, module: torch.nn.Module) -> None:
        cls = type(module)
        self.add("module", path, cls.__module__, cls.__qualname__, sorted(module._parameters), sorted(module._buffers))
        self.type(cls)
        ignore = self._ignore | only_written(cls)
        for name in sorted(vars(module)):
            if name not in ignore and not is_patched(vars(module)[name]):
                self.add(name)
                self.value(vars(module)[name], 0)
        for hooks in _HOOKS:
            for hook in getattr(module, hooks).values():
                self.value(hook, 0)

    def type(self, cls: type) -> None:
        if not self.first(cls):
            return
        # a forward put on a class from outside (other extensions do that) counts even on torch's own classes
        self.function_like(getattr(cls, "forward", None))
        for base in cls.__mro__:
            if not _versioned(base.__module__) and base is not object:
                for name in sorted(vars(base)):
                    member = vars(base)[name]
                    if isinstance(member, (types.FunctionType, staticmethod, classmethod, property)):
                        self.add(name)
                        self.function_like(member)
                    elif isinstance(member, _PLAIN) and not name.startswith("__"):
                        self.add(name, repr(member))

    def function_like(self, member: Any) -> None:
        for name in ("__func__", "fget"):
            inner = getattr(member, name, None)
            if inner is not None:
                member = inner
        if isinstance(member, types.FunctionType):
            self.function(member)

    def function(self, function: types.FunctionType) -> None:
        function = unwrap(function)
        if _versioned(function.__module__):
            self.add("function", function.__module__, function.__qualname__)
            return
        if not self.first(function.__code__):
            return
        self.code(function.__code__)
        for default in (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())):
            self.value(default, 1)
        for cell in function.__closure__ or ():
            try:
                self.value(cell.cell_contents, 1)
            except ValueError:
                self.add("empty cell")
        inner = getattr(function, "__wrapped__", None)
        if isinstance(inner, types.FunctionType):
            self.function(inner)
        for name in sorted(set(_names(function.__code__))):
            self.reached(name, function)

    def code(self, code: types.CodeType) -> None:
        self.add(code.co_name, code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant)
            else:
                self.add(repr(constant) if not isinstance(constant, frozenset) else sorted(map(repr, constant)))

    def reached(self, name: str, function: types.FunctionType) -> None:
        """A global that the function names, or an attribute of a module that it names, if it is code or a constant."""
        scope = function.__globals__
        if name in scope:
            value = scope[name]
            if isinstance(value, types.ModuleType):
                if not _versioned(value.__name__):
                    for attribute in sorted(set(_names(function.__code__))):
                        self.global_value(attribute, vars(value).get(attribute))
            else:
                self.global_value(name, value)

    def global_value(self, name: str, value: Any) -> None:
        if isinstance(value, type):
            if issubclass(value, torch.nn.Module):
                return  # modules that are called are in the tree
            self.add("class", value.__module__, value.__qualname__)
        elif isinstance(value, (types.FunctionType, functools.partial, *_PLAIN)):
            self.add("global", name)
            self.value(value, 1)

    def value(self, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN):
            self.add(type(value).__name__, repr(value))
        elif isinstance(value, torch.Tensor):
            self.add("tensor", tuple(value.shape), value.dtype)
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            self.function_like(value)
        elif isinstance(value, functools.partial):
            self.value(value.func, depth + 1)
            self.value([*value.args, *sorted(value.keywords.items())], depth + 1)
        elif isinstance(value, torch.nn.Module):
            self.add("module", type(value).__qualname__)  # in the tree it is walked where it stands
        elif depth >= _MAX_DEPTH or not self.first(value):
            self.add(type(value).__qualname__)
        else:
            self.container(value, depth)

    def container(self, value: Any, depth: int) -> None:
        self.add(type(value).__module__, type(value).__qualname__)
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                self.add(key) if isinstance(key, _PLAIN) else self.add(type(key).__qualname__)
                self.value(value[key], depth + 1)
        elif isinstance(value, (set, frozenset)):
            self.add(sorted(map(repr, value)))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.value(item, depth + 1)
        elif hasattr(value, "to_dict") and not isinstance(value, type):  # transformers configurations
            settings = {k: v for k, v in value.to_dict().items() if k not in ("transformers_version", "_name_or_path")}
            settings["_attn_implementation"] = getattr(value, "_attn_implementation", None)
            self.value(settings, depth + 1)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def only_written(cls: Any) -> frozenset[str]:
    """Attributes that a class's methods set and none of them reads (ldm's decoder notes its last shape): no input."""
    return _only_written(cls)


@functools.lru_cache(maxsize=4096)
def _only_written(cls: Any) -> frozenset[str]:
    written: set[str] = set()
    read: set[str] = set()
    for base in cls.__mro__:
        if not _versioned(base.__module__):
            for name, member in vars(base).items():
                member = unwrap(member)  # ours may stand there while it is asked for the first time
                if isinstance(member, types.FunctionType) and name != "__init__":
                    for instruction in dis.get_instructions(member):
                        if instruction.opname == "STORE_ATTR":
                            written.add(instruction.argval)
                        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "DELETE_ATTR"):
                            read.add(instruction.argval)
    return frozenset(written - read)


def _versioned(module: str | None) -> bool:
    top = (module or "").partition(".")[0]
    return top in VERSIONED or top in sys.stdlib_module_names or (module or "").startswith(_REPORTING)
