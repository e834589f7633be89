"""Getting ready ahead: sizes that will be wanted are captured, converted and compiled before they are.

The host's own way of making a picture is rehearsed, one step of it, with networks that get ready and compute nothing
(:mod:`ov_backend.rehearsal`): what they are called with is then exactly what it will be later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ov_backend.errors import Interrupted
from ov_backend.rehearsal import rehearsing

#: Width and height in pixels, and pictures at once.
Size = tuple[int, int, int]


def precompile(
    sizes: Iterable[Size],
    generate: Callable[[Size], Any],
    *,
    done: Callable[[Size], None] = lambda size: None,
    cancel: Callable[[], bool] = lambda: False,
) -> list[Size]:
    """Make every network that ``generate`` calls ready for every size.

    Args:
        sizes: what to make ready for.
        generate: makes a picture of one size, in as few steps as it can; its result is thrown away.
        done: told of each size that is ready.
        cancel: once true, the wait ends within a second; what was begun goes on in the background.

    Returns:
        The sizes that are ready.
    """
    ready: list[Size] = []
    with rehearsing(cancel):
        for size in sizes:
            if cancel():
                break
            try:
                generate(size)
            except Interrupted:
                break
            ready.append(size)
            done(size)
    return ready
