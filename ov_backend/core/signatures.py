"""What a function says of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def signature_of(forward: Callable[..., Any]) -> inspect.Signature:
    """The signature of a forward; of one that does not say what its parameters are, one that takes any arguments."""
    try:
        return inspect.signature(forward)
    except ValueError:  # it is written in C, as one of torch.jit is
        return inspect.signature(lambda *args, **kwargs: None)


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Exchange:
    """Exchanges arguments of a function by the names of their parameters, and leaves them where the caller gave them.

    What stands around a function may look only at keywords, as that of diffusers which scales LoRAs.
    """

    def __init__(self, forward: Callable[..., Any], names: Iterable[str]) -> None:
        parameters = signature_of(forward).parameters.items()
        named = {name: (position, each.kind) for position, (name, each) in enumerate(parameters) if name in set(names)}
        #: The names that can be given by position, and those that can be given by keyword.
        self._positions = {name: position for name, (position, kind) in named.items() if kind in _BY_POSITION}
        self._keywords = [name for name, (_, kind) in named.items() if kind in _BY_KEYWORD]

    def __call__(
        self, exchange: Callable[[str, Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with ``exchange(name, value)`` in the place of each that has one of the names and is given."""
        positional, keywords = list(args), dict(kwargs)
        for name, position in self._positions.items():
            if position < len(positional):
                positional[position] = exchange(name, positional[position])
        for name in self._keywords:
            if name in keywords:
                keywords[name] = exchange(name, keywords[name])
        return tuple(positional), keywords
