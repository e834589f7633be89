"""Replace attributes, and restore them: every patch has its undo in this file."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.errors import PatchError

_ABSENT = object()

#: Attribute that marks a function as a replacement made by this module.
PATCHED = "_ov_backend_patched"


def is_patched(value: object) -> bool:
    """Whether a function is a replacement made by this module, and so no part of the patched code itself."""
    kinds = (types.FunctionType, types.MethodType, _Replacement, _StateWithoutPatches)
    return isinstance(value, kinds) and hasattr(value, PATCHED)


def unwrap(value: Any) -> Any:
    """The original function below this module's patches; any other value as it is."""
    while isinstance(value, (types.FunctionType, _Replacement)) and is_patched(value):
        value = value.__wrapped__  # type: ignore[union-attr]
    return value


def class_member(cls: type, name: str) -> Any:
    """What stands under a name on a class or on those it is derived from, as it stands there; None where nothing does."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


class Inherited:
    """What an instance without an attribute of its own has of its class now; the same object until its class or that changes.

    Args:
        owner: the instance.
        name: the attribute.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._seen = (type(owner), class_member(type(owner), name), getattr(owner, name))

    def now(self) -> Any:
        """The function, bound to the instance, that would be called now if nothing stood in its place."""
        cls = type(self._owner)
        member = class_member(cls, self._name)
        seen_class, seen_member, bound = self._seen
        if cls is seen_class and member is seen_member:
            return bound
        bound = member.__get__(self._owner, cls) if hasattr(type(member), "__get__") else member
        self._seen = cls, member, bound
        return bound


def inherited(owner: Any, name: str) -> Inherited | None:
    """The attribute as an instance has it of its class; None where something stands on the instance itself."""
    return None if isinstance(owner, type) or name in vars(owner) else Inherited(owner, name)


#: Whether another compiler traces the call, which then becomes part of what that compiles.
_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling


class _Replacement:
    """What stands on an instance in the place of its function; a copy of the instance gets the original of its own.

    Copies of a module are made without it (:class:`_StateWithoutPatches`), but for those by code that goes round Python's own
    ways, as ``torch.nn.parallel.replicate`` does; these are known when PyTorch calls them.
    """

    def __init__(
        self, call: Callable[..., Any], original: Any, owner: Any, name: str, inherited: Inherited | None
    ) -> None:
        self._inherited = inherited
        functools.update_wrapper(self, original)
        self._call, self._owner, self._name = call, owner, name

    @property
    def __wrapped__(self) -> Any:
        return self._original if self._inherited is None else self._inherited.now()

    @__wrapped__.setter
    def __wrapped__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        if name in ("_inherited", "_original"):  # while it is being made
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)  # torch.export and torch.jit.script ask for a function's code

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():  # in words that every version of Dynamo can follow
            if self._inherited is None:
                return self._original(*args, **kwargs)
            return getattr(type(self._owner), self._name)(self._owner, *args, **kwargs)
        caller = _module_that_calls(sys._getframe(1))
        if caller is None or caller is self._owner or vars(caller).get(self._name) is not self:
            return self._call(*args, **kwargs)
        original = self.__wrapped__
        if getattr(original, "__self__", None) is self._owner:
            original = types.MethodType(original.__func__, caller)
        return original(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = memo.get(id(self._owner), self._owner)
        original = self.__wrapped__
        if getattr(original, "__self__", None) is self._owner:
            return types.MethodType(original.__func__, owner)
        return copy.deepcopy(original, memo)

    def __reduce__(self) -> Any:
        original = self.__wrapped__
        own = getattr(type(self._owner), self._name, None)
        if getattr(original, "__self__", None) is self._owner and original.__func__ is own:
            return getattr, (self._owner, self._name)  # before its attributes are restored, the class's function is found
        return copy.copy, (original,)


def _module_that_calls(frame: types.FrameType) -> torch.nn.Module | None:
    """The module whose forward PyTorch calls, where the call comes from PyTorch's ``Module.__call__``."""
    if frame.f_globals is not vars(torch.nn.modules.module):
        return None
    caller = frame.f_locals.get("self")
    return caller if isinstance(caller, torch.nn.Module) else None


class _StateWithoutPatches:
    """Stands on a module as its ``__getstate__``: what copies it, deeply or not, or pickles it finds nothing patched."""

    _ov_backend_patched = True

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before: dict[str, Any] = {}

    def keep(self, name: str, own: Any) -> None:
        """An attribute is patched; ``own`` is what the module itself had there."""
        self._before[name] = own
        vars(self._module)["__getstate__"] = self

    def forget(self, name: str) -> None:
        """An attribute is not patched any more; with the last one, this goes as well."""
        self._before.pop(name, None)
        if not self._before and vars(self._module).get("__getstate__") is self:
            del vars(self._module)["__getstate__"]

    def __call__(self) -> Any:
        cls: Any = type(self._module)  # before Python 3.11 few classes have it
        state = cls.__getstate__(self._module) if hasattr(cls, "__getstate__") else vars(self._module)
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], dict):
            return self._without(state[0]), state[1]
        return self._without(state) if isinstance(state, dict) else state

    def _without(self, attributes: dict[str, Any]) -> dict[str, Any]:
        attributes = {name: value for name, value in attributes.items() if value is not self}
        for name, own in self._before.items():
            if isinstance(attributes.get(name), _Replacement):
                attributes[name] = own
                if own is _ABSENT:
                    del attributes[name]
        return attributes


class Patch:
    """Replaces one attribute of one object until :meth:`undo`.

    Args:
        owner: an instance or a class.
        name: the attribute.
        make: makes the replacement from the original, which is what ``getattr`` returns now.

    Raises:
        PatchError: the attribute is patched already.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).get(name, _ABSENT)
        if is_patched(self._own):
            raise PatchError(f"{_named(owner)}.{name} is already accelerated; restore it before accelerating it again.")
        self.original: Callable[..., Any] = getattr(owner, name)
        of_class = inherited(owner, name)
        patched = make(self.original)
        self._active = True

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._active:
                return patched(*args, **kwargs)
            # other code may keep a reference to this function and call it after the undo
            return (self.original if of_class is None else of_class.now())(*args, **kwargs)

        replacement: Any
        if isinstance(owner, type):
            replacement = functools.wraps(self.original)(call)
        else:
            replacement = _Replacement(call, self.original, owner, name, of_class)
        setattr(replacement, PATCHED, True)
        self._replacement = replacement
        setattr(owner, name, replacement)
        self._state = _state_of(owner) if isinstance(owner, torch.nn.Module) else None
        if self._state is not None:
            self._state.keep(name, self._own)

    def undo(self) -> bool:
        """Restore the original; False if other code has replaced the attribute since, which is then left as it is."""
        if not self._active:
            return True
        self._active = False
        if self._state is not None:
            self._state.forget(self._name)
        if vars(self._owner).get(self._name, _ABSENT) is not self._replacement:
            return False
        if self._own is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)
        return True


class Unshadow:
    """Removes an attribute from one instance until :meth:`undo`, so that the class's attribute is used."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).pop(name)

    def undo(self) -> bool:
        """Restore the attribute; False if other code has set it since, in which case that one stays."""
        return vars(self._owner).setdefault(self._name, self._own) is self._own


def _state_of(module: torch.nn.Module) -> _StateWithoutPatches | None:
    """What stands, or may stand, on a module as its ``__getstate__``; None where the module has one of its own."""
    own = vars(module).get("__getstate__")
    if own is None:
        return _StateWithoutPatches(module)
    return own if isinstance(own, _StateWithoutPatches) else None


def patch_forward(module: torch.nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Patch:
    """Replace one module instance's forward; its class and all other instances are unchanged."""
    return Patch(module, "forward", make)


def _named(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__
