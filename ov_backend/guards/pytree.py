"""Nested Python values around tensors: taken apart into a flat list, described in JSON, and put together again.

A description holds no code. Where it names a class (a transformers or diffusers output type), that class is looked
up among those already imported, and accepted only if it is an output type; nothing is imported for its sake. Of a result it can
be a class of objects that are no more than their attributes, such as a dataclass or what transformers caches keys and values in.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections import OrderedDict, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ov_backend.core.errors import CaptureError
from ov_backend.guards.versions import HEAP_TYPE, module_of

Spec = dict[str, Any]
#: Containers of Python and torch, and the libraries whose classes of results derive from them.
_BUILTIN = (dict, list, tuple, OrderedDict, torch.Size)
_LIBRARIES = frozenset({"transformers", "diffusers", "torch", "collections", "dataclasses", "builtins", "typing"})
_PLAIN = (bool, int, float, str, type(None))
#: Where transformers has the classes of its caches.
_CACHES = "transformers.cache_utils"


def flatten(value: Any, path: str = "", made: Container[int] = ()) -> tuple[list[tuple[str, torch.Tensor]], Spec]:
    """The tensors in ``value``, each with its dotted path, and the JSON description of everything around them.

    A tensor that stands in several places is listed once: code may ask whether two of its arguments are one object. Objects that
    nobody else has, by their identities in ``made``, are described by their attributes.

    Raises:
        CaptureError: a value in there has a type that no description can hold.
    """
    leaves: list[tuple[str, torch.Tensor]] = []
    spec = _describe(value, path, leaves, made)
    _refuse_repeated(value, set(), made)
    return leaves, spec


def items_of(value: Any, made: Container[int]) -> Iterable[Any] | None:
    """What is in a container, or in an object that is described by its attributes; None for any other value."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    return vars(value).values() if id(value) in made and not isinstance(value, torch.Tensor) else None


def _refuse_repeated(value: Any, seen: set[int], made: Container[int]) -> None:
    """Refuse a list or dict that stands in two places: what is put together again has two of them."""
    items = items_of(value, made)
    if items is not None:
        if id(value) in seen and not isinstance(value, tuple):
            raise CaptureError(f"one {type(value).__name__} stands in two places")
        seen.add(id(value))
        for item in items:
            _refuse_repeated(item, seen, made)


def _describe(value: Any, path: str, leaves: list[tuple[str, torch.Tensor]], made: Container[int]) -> Spec:
    if isinstance(value, (torch.Tensor, torch.SymFloat, torch.SymInt)):  # the last are numbers of a trace
        seen = next((index for index, (_, tensor) in enumerate(leaves) if tensor is value), None)
        if seen is None:
            leaves.append((path, value))
        return {"tensor": len(leaves) - 1 if seen is None else seen}
    if type(value) in _PLAIN:
        return {"value": value}
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    if id(value) in made and _object_class(_name_of(type(value))) is type(value):
        attributes = {name: _describe(item, _join(path, name), leaves, made) for name, item in vars(value).items()}
        return {"object": attributes, "class": _name_of(type(value))}
    if made and isinstance(value, type) and _object_class(_name_of(value)) is value:
        return {"type": _name_of(value)}
    if type(value) is dict and made and all(type(key) is int for key in value):
        return {"numbered": [[key, _describe(item, _join(path, key), leaves, made)] for key, item in value.items()]}
    if isinstance(value, defaultdict) or (isinstance(value, Mapping) and not all(type(key) is str for key in value)):
        raise CaptureError(f"{path or 'the value'} is a {type(value).__name__} whose keys or default cannot be written down")
    if isinstance(value, (dict, list, tuple)) and type(value) not in _BUILTIN:
        _refuse_own_code(value, path)
    if isinstance(value, Mapping):
        items = {str(key): _describe(item, _join(path, key), leaves, made) for key, item in value.items()}
        spec: Spec = {"dict": items}
    elif isinstance(value, (tuple, list)):
        spec = {"list": [_describe(item, _join(path, i), leaves, made) for i, item in enumerate(value)]}
    else:
        raise CaptureError(f"{path or 'the value'} is a {type(value).__name__}, which cannot be part of a graph's key")
    if type(value) not in (dict, list):
        spec["class"] = _name_of(type(value))
    return spec


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _object_class(name: str) -> type | None:
    """The class of this name, if it is imported here and its objects are no more than their attributes."""
    module, _, qualname = name.partition(":")
    kind = getattr(sys.modules.get(module), qualname, None)
    if not isinstance(kind, type) or not (dataclasses.is_dataclass(kind) or module == _CACHES):
        return None
    bases = kind.__mro__[:-1]
    return kind if all(base.__flags__ & HEAP_TYPE and not vars(base).get("__slots__") for base in bases) else None


def _refuse_own_code(value: Any, path: str) -> None:
    """Refuse an object of a class derived from a container if it holds more than its items, or its class has code of its own."""
    attributes = getattr(value, "__dict__", {})
    items = value if isinstance(value, dict) else {}  # an output type of transformers has fields of None that are no items
    if any(items.get(name) is not attribute for name, attribute in attributes.items()):
        raise CaptureError(f"{path or 'the value'} is a {type(value).__name__} with attributes beside its items")
    if _has_own_code(type(value)):  # type: ignore[arg-type]  # the type of a dict is hashable, whatever a dict is
        raise CaptureError(f"{path or 'the value'} is a {type(value).__name__}, a class with functions of its own")


@functools.lru_cache(maxsize=256)
def _has_own_code(cls: Hashable) -> bool:
    """Whether a class, or one it derives from, has functions that neither a library nor a generator of code has written."""
    functions = [
        member
        for base in getattr(cls, "__mro__", ())
        if base.__module__.partition(".")[0] not in _LIBRARIES and base not in _BUILTIN
        for member in map(_function_of, vars(base).values())
    ]
    own = [each for each in functions if isinstance(each, types.FunctionType) and each.__code__.co_filename != "<string>"]
    return any(module_of(each).partition(".")[0] not in _LIBRARIES for each in own)


def _function_of(member: Any) -> Any:
    member = getattr(member, "fget", member)
    return getattr(member, "__func__", member)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def restore(spec: Spec, tensors: Sequence[torch.Tensor]) -> Any:
    """Put together again what :func:`flatten` took apart; raises where that names no output type that is imported."""
    if "tensor" in spec:
        return tensors[spec["tensor"]]
    if "value" in spec:
        return spec["value"]
    if "torch" in spec:
        name = spec["torch"]
        return getattr(torch, name.removeprefix("torch.")) if name.startswith("torch.") else torch.device(name)
    if "numbered" in spec:
        return {key: restore(item, tensors) for key, item in spec["numbered"]}
    if "type" in spec or "object" in spec:
        cls = _object_class(name := spec.get("type") or spec["class"])
        if cls is None:
            raise CaptureError(f"{name} is no class of objects that is imported here")
        if "type" in spec:
            return cls
        restored: Any = object.__new__(cls)
        vars(restored).update({name: restore(item, tensors) for name, item in spec["object"].items()})
        return restored
    kind = _container(spec.get("class"))
    if "dict" in spec:
        items = {key: restore(item, tensors) for key, item in spec["dict"].items()}
        return items if kind is None else kind(items) if kind is OrderedDict else kind(**items)
    values = [restore(item, tensors) for item in spec["list"]]
    if kind is None:
        return values
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def _container(name: str | None) -> Any:
    if name is None:
        return None
    builtin = {"builtins:tuple": tuple, "collections:OrderedDict": OrderedDict, "torch:Size": torch.Size}.get(name)
    if builtin is not None:
        return builtin
    module, _, qualname = name.partition(":")
    kind = getattr(sys.modules.get(module), qualname, None)
    if isinstance(kind, type) and issubclass(kind, (OrderedDict, tuple, dict)):
        return kind
    raise CaptureError(f"{name} is not an output type that is imported here")
