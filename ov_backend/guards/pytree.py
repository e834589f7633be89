"""Nested Python values around tensors: taken apart into a flat list, described in JSON, and put together again.

A description holds no code. Where it names a class (a transformers or diffusers output type), that class is looked
up among those already imported, and accepted only if it is an output type; nothing is imported for its sake.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ov_backend.errors import CaptureError

Spec = dict[str, Any]
_PLAIN = (bool, int, float, str, type(None))


def flatten(value: Any, path: str = "") -> tuple[list[tuple[str, torch.Tensor]], Spec]:
    """The tensors in ``value``, each with its dotted path, and the JSON description of everything around them.

    Raises:
        CaptureError: a value in there has a type that no description can hold.
    """
    leaves: list[tuple[str, torch.Tensor]] = []
    return leaves, _describe(value, path, leaves)


def _describe(value: Any, path: str, leaves: list[tuple[str, torch.Tensor]]) -> Spec:
    if isinstance(value, torch.Tensor):
        leaves.append((path, value))
        return {"tensor": len(leaves) - 1}
    if isinstance(value, _PLAIN):
        return {"value": value}
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return {"torch": str(value)}
    if isinstance(value, Mapping):
        items = {str(key): _describe(item, _join(path, key), leaves) for key, item in value.items()}
        spec: Spec = {"dict": items}
    elif isinstance(value, (tuple, list)):
        spec = {"list": [_describe(item, _join(path, i), leaves) for i, item in enumerate(value)]}
    else:
        raise CaptureError(f"{path or 'the value'} is a {type(value).__name__}, which cannot be part of a graph's key")
    if type(value) not in (dict, list):
        spec["class"] = f"{type(value).__module__}:{type(value).__qualname__}"
    return spec


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def restore(spec: Spec, tensors: Sequence[torch.Tensor]) -> Any:
    """Put together again what :func:`flatten` took apart.

    Raises:
        CaptureError: the description names something that is not an imported output type.
    """
    if "tensor" in spec:
        return tensors[spec["tensor"]]
    if "value" in spec:
        return spec["value"]
    if "torch" in spec:
        name = spec["torch"]
        return getattr(torch, name.removeprefix("torch.")) if name.startswith("torch.") else torch.device(name)
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
