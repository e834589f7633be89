"""How single values and code objects are described, and which of them say nothing of what a forward computes."""

from __future__ import annotations

import abc
import array
import contextvars
import ctypes
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import logging
import mmap
import operator
import pathlib
import pickle
import queue
import random
import re
import threading
import types
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ov_backend.core.errors import pass_on_signals
from ov_backend.guards.versions import HEAP_TYPE, is_installed, is_of_package

SCALARS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
#: What torch keeps on every module: tables that are walked by themselves, and hooks of gradients and state dicts.
MODULE_TABLES = frozenset(
    {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks", "_backward_pre_hooks"}
    | {"_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"}
    | {"_is_full_backward_hook", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"}
    | {"_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl"}
)
#: Those of them that no call of a module reads for what it computes: code that names one may do so all the same.
QUIET_TABLES = MODULE_TABLES - {"_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"}
#: What ``state_dict`` reads of each module. Only PyTorch's method of that name, and what overrides it, names the first word.
SAVES_STATE = "_save_to_state_dict"
OF_STATE_DICT = frozenset({"_non_persistent_buffers_set", "_state_dict_hooks", "_state_dict_pre_hooks"})
#: Names of documentation in configurations of transformers and diffusers: where a model came from, not what it is.
DOCUMENTATION = frozenset(
    {"name_or_path", "_name_or_path", "_commit_hash", "transformers_version", "_diffusers_version", "_is_hf_initialized"}
    | {"_use_default_values"}
)
#: Of no influence on what is computed: identity of a logger, a lock, a weak reference.
INERT = (logging.Filterer, logging.LoggerAdapter, type(threading.Lock()), type(threading.RLock()))
#: Generators of random numbers that a trace advances; PyTorch's own draw nothing for fake tensors.
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
#: What else answers something else each time it is asked, or in another thread.
STREAMS = (
    *(Iterator, io.IOBase, queue.Queue, queue.SimpleQueue, threading.local),
    *(torch.Generator, np.random.BitGenerator, ctypes._CFuncPtr),  # type: ignore[attr-defined]
)
#: Objects of torch and numpy, written in C, that are what they were made as.
_CONSTANTS = (
    *(np.dtype, torch.finfo, torch.iinfo, torch.qscheme, torch.jit.ScriptFunction, torch._C.DispatchKeySet),
    type(np.concatenate),
)
#: Bytes and numbers that code can write in place, and a trace too.
BUFFERS = (bytearray, memoryview, array.array, mmap.mmap, ctypes.Array, ctypes.Structure, ctypes.Union, ctypes._SimpleCData)
#: What its text says: patterns, paths, torch's operators, annotations of types.
BY_TEXT = (
    *(re.Pattern, pathlib.PurePath, torch._ops.OpOverload, torch._ops.OpOverloadPacket),
    *(types.UnionType, types.GenericAlias, typing.TypeVar, type(typing.Any), type(typing.Union[int, str])),  # noqa: UP007
)
#: Functions written in C: their names say what they are.
BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, type(inspect.FullArgSpec.args))
#: What reads or shows something that is not watched: functions that keep the names of attributes, views on dicts.
UNWATCHED: tuple[type, ...] = (
    *(operator.attrgetter, operator.methodcaller, type({}.keys()), type({}.values()), type({}.items())),
    types.MethodWrapperType,
)
#: Builtins and functions that read any attribute; where code calls them by another name, nothing tells what it reads.
ANY_ATTRIBUTE: dict[int, str] = {
    id(function): function.__name__
    for function in (
        *(getattr, hasattr, setattr, delattr, vars, dir, operator.attrgetter, operator.methodcaller),
        *(object.__getattribute__, pickle.dumps, pickle.dump, pickle.Pickler),
    )
}
#: Attributes that known forwards set and nobody reads: ldm's and sgm's decoders note the shape of what they decode.
NOTED = frozenset({"last_z_shape"})
#: Global tables that are filled as models are made, one entry for the text of each class: only those of the module's own count.
CLASS_REGISTRIES = frozenset({"_CAN_RECORD_REGISTRY"})
#: Global sets of the classes whose results PyTorch knows how to flatten; a class is added when its first result is made.
RESULT_REGISTRIES = frozenset({"_registered_model_output_types"})
#: Functions of packages that find classes of models by their names among all that are loaded, to make or to patch one. No forward
#: calls them, but the names in code that a forward may call lead to them, and they lead to some thousand objects.
FIND_MODELS = frozenset(
    {"transformers.models.auto.auto_factory._LazyAutoMapping._load_attr_from_module"}
    | {"transformers.models.auto.auto_factory.getattribute_from_module", "transformers.monkey_patching.apply_patches"}
    | {"transformers.models.auto.configuration_auto._LazyConfigMapping.__getitem__"}
)
#: Called when an object is made: of no matter for modules, which are made before they are called.
MAKING = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__setstate__"})
#: Members of classes that are no code and no values of a forward.
NO_CODE = frozenset(
    {"__doc__", "__module__", "__annotations__", "__weakref__", "__dict__", "__firstlineno__", "__static_attributes__"}
    | {"__slots__", "__qualname__", "__parameters__", "__orig_bases__", "__abstractmethods__", "_abc_impl", "__match_args__"}
    | {"__dataclass_fields__", "__dataclass_params__", "__signature__", "__type_params__"}
    | {"__slotnames__", "_autograd_function_id", "___needs_generation_tag_patch", "next_id"}  # notes of Python and PyTorch
)
#: Members that Python or a function of its library calls when an object is printed, hashed, compared with a class or copied.
SPECIAL_CODE = frozenset(
    {"__repr__", "__str__", "__format__", "__hash__", "__dir__", "__sizeof__", "__class_getitem__", "__subclasshook__"}
    | {"__reduce__", "__reduce_ex__", "__getstate__", "__deepcopy__", "__copy__", "__getnewargs__"}
)
#: In the place of a value that is not there.
UNSET = object()
#: An object that is forgotten gets another number, and what was traced for it is traced again.
_MAX_OBJECTS = 1 << 16

_numbers = itertools.count()
_known: OrderedDict[int, tuple[Callable[[], object], int]] = OrderedDict()
#: Names by which code reads or sets the environment.
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "putenv", "setdefault", "load_dotenv"})
#: Functions of ``dataclasses`` that go through the fields of a class.
OF_FIELDS = frozenset({"fields", "asdict", "astuple", "replace"})


def is_called_unnamed(name: str) -> bool:
    """Whether a member is called by operators and statements, which do not name it."""
    return name.startswith("__") and name.endswith("__") and name not in NO_CODE


@functools.lru_cache(maxsize=16384)
def codes_of(code: types.CodeType) -> frozenset[types.CodeType]:
    """A code object and those of the functions that are defined in it."""
    inner = [codes_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset({code}.union(*inner))


def keeps_state(value: Any) -> bool:
    """Whether a value is an object of a class written in C, or derived from one, whose state only C code sees."""
    if isinstance(value, np.ufunc):
        return set("".join(value.types)) == set("O->")  # made of a function by ``numpy.frompyfunc``
    if isinstance(value, _CONSTANTS) or hasattr(type(value), "__members__"):  # the second are enumerations
        return False
    bases = (base for base in type(value).__mro__[:-1] if base is not types.SimpleNamespace)
    return any(type(base).__name__ == "pybind11_type" or not base.__flags__ & HEAP_TYPE for base in bases)


def own_member(cls: type) -> str:
    """A member by which a class of tensors that is no part of PyTorch may compute otherwise than a tensor, or ""."""
    members = (name for base in cls.__mro__ if not is_of_package(base) for name in vars(base))
    return next((name for name in members if name not in NO_CODE | MAKING | SPECIAL_CODE), "")


def array_digest(value: np.ndarray) -> str:
    """A digest of an array's content, shape and dtype."""
    content = np.ascontiguousarray(value).view(np.uint8).data if value.size else b""
    return f"{value.dtype}{value.shape}{hashlib.sha256(content).hexdigest()}"


def attribute_or(value: Any, name: str, default: Any) -> Any:
    """An attribute, or the default where there is none or its own code fails: a ``__getattr__`` may raise any error."""
    try:
        return getattr(value, name)
    except Exception as error:  # whatever the attribute's own code raises: it is not what it was
        pass_on_signals(error)
        return default


def attribute_or_none(value: Any, name: str) -> Any:
    """An attribute, or None where there is none or its own code fails."""
    return attribute_or(value, name, None)


def item_or_none(values: Any, index: int) -> Any:
    """An item of a list or tuple, or None where there are fewer."""
    return values[index] if index < len(values) else None


def own_kind(table: dict[Any, Any]) -> Any:
    """The class whose methods show a dict's own items in their order: transformers' activations are made anew at each access."""
    return OrderedDict if isinstance(table, OrderedDict) else dict


def asks_for_gradients(module: torch.nn.Module) -> tuple[bool, ...]:
    """For each of a module's parameters, whether a gradient is asked for."""
    return tuple(parameter.requires_grad for parameter in module.parameters())


def registered_with(cls: abc.ABCMeta) -> list[str]:
    """The names of the classes that were registered with an abstract class; Python keeps them behind weak references.

    Packages that are installed register theirs with Python's own when they are imported, which says nothing of a forward.
    """
    dump = getattr(importlib.import_module("_abc"), "_get_dump", None)
    found = [] if dump is None else [each() for each in dump(cls)[0]]
    whole = not is_of_package(cls)
    own = (each for each in found if each is not None and (whole or not is_installed(each.__module__)))
    return sorted(f"{each.__module__}.{each.__qualname__}" for each in own)


def content_of(cell: types.CellType) -> Any:
    """What a variable that functions share holds; :data:`UNSET` where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNSET


def held_by(variable: contextvars.ContextVar[Any]) -> Any:
    """What a variable of contexts holds in the caller's context, its default included."""
    try:
        return variable.get()
    except LookupError as error:
        pass_on_signals(error)
        return UNSET


def which_is_held_by(variable: contextvars.ContextVar[Any]) -> Any:
    """A number or text, for a host may set an equal one at each call, or which object it is."""
    value = held_by(variable)
    return (type(value), repr(value)) if type(value) in SCALARS else id(value)


def text_of_key(key: Any) -> str:
    """A key of a dict in a path: the repr of another object may have its address in it."""
    return repr(key) if isinstance(key, SCALARS) else type(key).__name__


def _slots_of(cls: type) -> tuple[str, ...]:
    """The names of a class's slots, and of those of the classes that it is made of."""
    kinds = [(base, vars(base).get("__slots__", ())) for base in cls.__mro__]
    names = [(base, name) for base, slots in kinds for name in ((slots,) if isinstance(slots, str) else slots)]
    return tuple(mangled(base, name) for base, name in names if name not in ("__dict__", "__weakref__"))


slots_of: Callable[[type], tuple[str, ...]] = functools.lru_cache(maxsize=1024)(_slots_of)


def mangled(cls: type, name: str) -> str:
    """The name under which a class keeps a private member such as ``__scale``."""
    return f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def number_of(value: object) -> int:
    """The number of an object in this process; its ``id`` could be that of an object that is gone."""
    known = _known.get(id(value))
    if known is not None and known[0]() is value:
        return known[1]
    number = next(_numbers)
    _known[id(value)] = _reference(value), number
    _known.move_to_end(id(value))
    while len(_known) > _MAX_OBJECTS:
        _known.popitem(last=False)
    return number


def _reference(value: object) -> Callable[[], object]:
    try:
        return weakref.ref(value)
    except TypeError as error:  # it is kept alive instead, so that its ``id`` stays its own
        pass_on_signals(error)
        return lambda: value
