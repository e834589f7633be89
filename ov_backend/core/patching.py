"""Replace attributes, and restore them: every patch has its undo in this file."""

from __future__ import annotations

import copy
import copyreg
import functools
import itertools
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ov_backend.core.errors import PatchError

_ABSENT = object()

#: Attribute that marks a function as a replacement made by this module.
PATCHED = "_ov_backend_patched"


def is_patched(value: object) -> bool:
    """Whether a function is a replacement made by this module, and so no part of the patched code itself."""
    kinds = (types.FunctionType, types.MethodType, _Replacement, _Mark)
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
    """What an instance without an attribute of its own has of its class now; the same object until its class or that changes."""

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


#: Whether Dynamo traces the call, which then becomes part of what that compiles; PyTorch 2.1 has another name for it.
_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", None) or torch._utils.is_compiling


class _Mark:
    """Stands on a patched module as an attribute: who has it beside a replacement has it with a copy of the module's table."""

    _ov_backend_patched = True
    #: The attribute.
    NAME = "_ov_backend_patches"

    def __init__(self) -> None:
        self.patches = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _Mark:
        return self


def has_patches(module: torch.nn.Module) -> bool:
    """Whether a replacement made by this module stands on a module now, in the place of its forward or below a hook."""
    return _Mark.NAME in vars(module)


#: By its number, each replacement that lives, which Dynamo names by that.
_REPLACEMENTS: weakref.WeakValueDictionary[int, _Replacement] = weakref.WeakValueDictionary()
_numbers = itertools.count()
#: Whether Dynamo can be told to call a function while it compiles; that of torch 2.1 cannot follow this.
TELLS = hasattr(torch.compiler, "is_dynamo_compiling")


def _say_bypassed(number: int) -> None:
    _REPLACEMENTS[number].bypassed()


#: As ``torch.compiler.assume_constant_result`` does: Dynamo calls it while it compiles, and what it has compiled does not.
_say_bypassed._dynamo_marked_constant = True  # type: ignore[attr-defined]
#: What a replacement keeps for itself.
_OWN_NAMES = {"_inherited", "_original", "_call", "_owner", "_name", "_is_method", "_mark", "_number", "bypassed"}
_OWN_NAMES |= {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", PATCHED}


class _Replacement:
    """What stands on an instance in the place of its function; a copy of the instance gets the original of its own.

    Copies of a module are made without it (:func:`_without_patches`), but for those by code that goes round Python's own ways, as
    ``torch.nn.parallel.replicate`` does; these are known when PyTorch calls them.
    """

    def __init__(
        self, call: Callable[..., Any], original: Any, owner: Any, name: str, inherited: Inherited | None
    ) -> None:
        self._inherited, self._number = inherited, next(_numbers)
        functools.update_wrapper(self, original, updated=())  # the attributes of a function are looked up when they are read
        self._call, self._owner, self._name = call, owner, name
        self._is_method = inherited is not None and isinstance(class_member(type(owner), name), types.FunctionType)
        self._mark = vars(owner).get(_Mark.NAME)

    @property
    def __wrapped__(self) -> Any:
        return self._original if self._inherited is None else self._inherited.now()

    @__wrapped__.setter
    def __wrapped__(self, original: Any) -> None:
        self._original = original

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        """The attributes of the original, which ``functools.wraps`` copies to a function around this one; none of its own."""
        return getattr(self.__wrapped__, "__dict__", {})

    def own_as(self, name: str) -> Any:
        """What the instance itself had there; :data:`_ABSENT` where it had its class's. Under another name a hook keeps this."""
        if self._inherited is None:
            return self._original
        return _ABSENT if name == self._name else self

    def __getattr__(self, name: str) -> Any:
        """Everything else is the original's: ``torch.export`` asks for a function's code."""
        if name in ("_inherited", "_original"):  # while it is being made
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """An attribute that a program gives to the function is the original's."""
        if name in _OWN_NAMES:
            object.__setattr__(self, name, value)
        else:
            setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        """It is taken from the original, too."""
        delattr(self.__wrapped__, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what replaces the original, but the original where Dynamo compiles the call, or where a copy makes it."""
        if _is_compiling():  # in words that every version of Dynamo can follow
            if TELLS:
                _say_bypassed(self._number)
            if self._is_method:
                return getattr(type(self._owner), self._name)(self._owner, *args, **kwargs)
            return self._original(*args, **kwargs)
        caller = _module_that_calls(sys._getframe(1))
        if caller is None or caller is self._owner or not self._is_on_copy(vars(caller)):
            return self._call(*args, **kwargs)
        original = self.__wrapped__
        if self._inherited is not None and getattr(original, "__self__", None) is self._owner:
            original = types.MethodType(original.__func__, caller)
        return original(*args, **kwargs)

    def _is_on_copy(self, attributes: dict[str, Any]) -> bool:
        """Whether a table is a copy of the owner's; another module may have been given the forward alone, which stays bound."""
        return self._mark is not None and attributes.get(_Mark.NAME) is self._mark and attributes.get(self._name) is self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._inherited is not None and id(self._owner) not in memo:
            return self  # of a copy, or by code that keeps no account
        original = self.__wrapped__
        if getattr(original, "__self__", None) is self._owner:
            return types.MethodType(original.__func__, memo.get(id(self._owner), self._owner))
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


#: How many patches stand on instances of a class: while there are any, its instances are copied and pickled without them.
_PATCHES_BY_CLASS: Counter[type] = Counter()
_lock = threading.Lock()


def _reduce(module: torch.nn.Module) -> Any:
    """What ``copy`` and ``pickle`` make a copy of a module from, as if nothing on it was patched."""
    reduced = module.__reduce_ex__(4)
    if not isinstance(reduced, tuple) or len(reduced) < 3:
        return reduced
    return (*reduced[:2], _without_patches(reduced[2]), *reduced[3:])


def reducer_of(cls: type) -> Any:
    """The function that ``copy`` and ``pickle`` have been told to use for a class, other than this module's; None without one."""
    found = copyreg.dispatch_table.get(cls)
    return None if found is _reduce else found


def _without_patches(state: Any) -> Any:
    """The state of an object without replacements: with what stood there before, where something did."""
    if isinstance(state, tuple) and len(state) == 2:  # of an object with slots
        return _without_patches(state[0]), state[1]
    if not isinstance(state, dict):
        return state
    state = {name: value for name, value in state.items() if not isinstance(value, _Mark)}
    own = {name: value.own_as(name) if isinstance(value, _Replacement) else value for name, value in state.items()}
    return {name: value for name, value in own.items() if value is not _ABSENT}


class _Copies:
    """Lets copies of one module be made without a patch, until :meth:`undo`.

    Python asks a table of its own, by class, before it copies or pickles an object.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module, self._class = module, type(module)
        self._mark = vars(module).setdefault(_Mark.NAME, _Mark())
        with _lock:
            self._mark.patches += 1
            _PATCHES_BY_CLASS[self._class] += 1
            copyreg.dispatch_table.setdefault(self._class, _reduce)

    def undo(self) -> None:
        """Leave the class's copies to Python, if this was the last patch."""
        with _lock:
            self._mark.patches -= 1
            if not self._mark.patches and vars(self._module).get(_Mark.NAME) is self._mark:
                del vars(self._module)[_Mark.NAME]
            _PATCHES_BY_CLASS[self._class] -= 1
            if not _PATCHES_BY_CLASS[self._class]:
                del _PATCHES_BY_CLASS[self._class]
                if copyreg.dispatch_table.get(self._class) is _reduce:
                    del copyreg.dispatch_table[self._class]


class Patch:
    """Replaces one attribute of an instance or a class until :meth:`undo`.

    ``make`` makes the replacement from the original, which is what ``getattr`` returns now.

    ``bypassed`` is called where Dynamo compiles a call of it, which then is a call of the original.

    Raises:
        PatchError: the attribute is patched already.
    """

    def __init__(
        self, owner: Any, name: str, make: Callable[..., Callable[..., Any]], bypassed: Callable[[], Any] = bool
    ) -> None:
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

        self._copies = _Copies(owner) if isinstance(owner, torch.nn.Module) else None
        replacement: Any
        if isinstance(owner, type):
            replacement = functools.wraps(self.original)(call)
        else:
            replacement = _Replacement(call, self.original, owner, name, of_class)
            replacement.bypassed = bypassed
            _REPLACEMENTS[replacement._number] = replacement
        setattr(replacement, PATCHED, True)
        self._replacement = replacement
        try:
            setattr(owner, name, replacement)
        except Exception:  # some objects refuse new attributes
            if self._copies is not None:
                self._copies.undo()
            raise

    def undo(self) -> bool:
        """Restore the original; False if other code has replaced the attribute since, which is then left as it is."""
        if not self._active:
            return True
        self._active = False
        if self._copies is not None:
            self._copies.undo()
        if vars(self._owner).get(self._name, _ABSENT) is not self._replacement:
            return self._undo_where_it_was_put()
        if self._own is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)
        return True

    def _undo_where_it_was_put(self) -> bool:
        """Restore the original on its module, where a hook that had kept the replacement has put it as it was removed."""
        module = getattr(self.original, "__self__", None)
        if not isinstance(module, torch.nn.Module) or vars(module).get("forward") is not self._replacement:
            return False
        module.forward = self.original
        return True


class Unshadow:
    """Removes an attribute from one instance until :meth:`undo`, so that the class's attribute is used."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).pop(name)

    def undo(self) -> bool:
        """Restore the attribute; False if other code has set it since, in which case that one stays."""
        return vars(self._owner).setdefault(self._name, self._own) is self._own


def patch_forward(module: Any, make: Callable[..., Callable[..., Any]], bypassed: Callable[[], Any] = bool) -> Patch:
    """Replace one module instance's forward, see :class:`Patch`; its class and all other instances are unchanged."""
    return Patch(module, "forward", make, bypassed)


def _named(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__
