"""The calls of diffusers pipelines: who wants to know of those of one pipeline, and what a call asks for.

Python looks ``__call__`` up on the class, so the class is patched while somebody listens to one of its pipelines; the calls of
others go straight on.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ov_backend.core.errors import pass_on_signals
from ov_backend.core.patching import Patch
from ov_backend.pipelines.sizes import own_size

#: Entered around a call with the request, see :func:`request_of`.
Around = Callable[[str], contextlib.AbstractContextManager[Any]]

#: Arguments that change what is computed, but not which shapes the networks are called with.
_IGNORED = frozenset({"num_inference_steps", "output_type", "return_dict", "generator", "timesteps", "sigmas"})


class Listener:
    """Enters ``around(request)`` around every call of a pipeline, until :meth:`undo`. Only the pipeline keeps it.

    Args:
        pipe: the pipeline.
        around: see above.
    """

    #: The attribute of a pipeline that holds its listener.
    NAME = "_ov_backend_listener"
    #: The patch of each class, and the listeners to its pipelines that live.
    _classes: dict[type, tuple[Patch, weakref.WeakSet[Listener]]] = {}

    def __init__(self, pipe: Any, around: Around) -> None:
        self._pipe, self._around = pipe, around
        cls = self._class = type(pipe)  # a program may give the pipeline another
        if cls not in self._classes:
            listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
            self._classes[cls] = Patch(cls, "__call__", lambda original: _replacement(original, listeners)), listeners
        self._classes[cls][1].add(self)
        vars(pipe)[self.NAME] = self

    def __reduce__(self) -> Any:
        """Nobody listens to a copy of the pipeline."""
        return type(None), ()

    def listens_to(self, pipe: Any) -> bool:
        """Whether this is its pipeline, and not a shallow copy of that."""
        return self._pipe is pipe

    def call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of the pipeline."""
        with self._around(request_of(self._pipe, original, args, kwargs)):
            return original(self._pipe, *args, **kwargs)

    def undo(self) -> None:
        """Listen no more."""
        patch, listeners = self._classes[self._class]
        listeners.discard(self)
        if vars(self._pipe).get(self.NAME) is self:
            del vars(self._pipe)[self.NAME]
        if not listeners:
            patch.undo()
            del self._classes[self._class]


def _replacement(original: Callable[..., Any], listeners: weakref.WeakSet[Listener]) -> Callable[..., Any]:
    def call(pipe: Any, *args: Any, **kwargs: Any) -> Any:
        listener = vars(pipe).get(Listener.NAME)
        if listener not in listeners or not listener.listens_to(pipe):  # a class that this one is derived from, or a copy
            return original(pipe, *args, **kwargs)
        return listener.call(original, args, kwargs)

    return call


def request_of(pipe: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What a call of a pipeline asks for, as far as it decides with which shapes the networks are called; no prompts.

    Returns:
        JSON, or "" where the arguments do not fit.
    """
    try:
        bound = inspect.signature(function).bind(pipe, *args, **kwargs)
        bound.apply_defaults()
    except (TypeError, ValueError) as error:
        pass_on_signals(error)
        return ""
    given = {name: value for name, value in list(bound.arguments.items())[1:] if value is not None and name not in _IGNORED}
    if "width" not in given or "height" not in given:
        try:
            given = {**dict(zip(("width", "height"), own_size(pipe))), **given}
        except Exception as error:  # a pipeline of another kind, whose sizes are those of its pictures
            pass_on_signals(error)
    return json.dumps({name: text for name, value in given.items() if (text := _described(name, value))}, sort_keys=True)


def _described(name: str, value: Any) -> str:
    if name.endswith("guidance_scale") and isinstance(value, (int, float)):
        return "guided" if value > 1 else ""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"{len(value)} of {_described(name, value[0])}" if value else ""
    if isinstance(value, (bool, int)):
        return str(value)
    if isinstance(value, str):
        return "text" if value else ""
    if hasattr(value, "width") and hasattr(value, "height"):
        return f"{value.width}x{value.height}"
    return ""
