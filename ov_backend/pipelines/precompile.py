"""Getting ready ahead: sizes that will be wanted are captured, converted and compiled before they are.

The host's own way of making a picture is rehearsed, one step of it, with networks that get ready and compute nothing
(:mod:`ov_backend.engine.warmup`): what they are called with is then exactly what it will be later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ov_backend.engine.warmup import warming_up
from ov_backend.errors import Interrupted, SettingsError

#: Width and height in pixels, and pictures at once.
Size = tuple[int, int, int]


def precompile(
    sizes: Iterable[Size],
    generate: Callable[[Size], Any],
    *,
    begin: Callable[[Size], None] = lambda size: None,
    done: Callable[[Size], None] = lambda size: None,
    cancel: Callable[[], bool] = lambda: False,
) -> list[Size]:
    """Make every network that ``generate`` calls ready for every size.

    Args:
        sizes: what to make ready for.
        generate: makes a picture of one size, in as few steps as it can; its result is thrown away.
        begin: told of each size before anything is made for it.
        done: told of each size that is ready.
        cancel: once true, the wait ends within a second; what was begun goes on in the background.

    Returns:
        The sizes that are ready.
    """
    ready: list[Size] = []
    with warming_up(cancel):
        for size in sizes:
            if cancel():
                break
            try:
                begin(size)
                generate(size)
            except Interrupted:
                break
            if cancel():  # a host may take an interruption for the end of its picture
                break
            ready.append(size)
            done(size)
    return ready


def every(sizes: Iterable[tuple[int, int]], batches: Iterable[int] = (1,)) -> list[Size]:
    """Every pair of a width and height and a number of pictures, none of them twice, in the order given."""
    batches = tuple(batches)
    return list(dict.fromkeys((width, height, batch) for width, height in sizes for batch in batches))


def generator_of(pipe: Any, arguments: Mapping[str, Any] | None = None) -> Callable[[Size], Any]:
    """How a diffusers pipeline makes a picture of one size, in one step; ``generate`` for :func:`precompile`.

    Args:
        pipe: a pipeline that makes pictures of a prompt, and of a picture or a mask where it asks for them.
        arguments: more for its call, or others: what changes how networks are called, such as ``guidance_scale``.

    Raises:
        SettingsError: ``pipe`` is no pipeline that can be called with a prompt.
    """
    try:
        takes = inspect.signature(type(pipe).__call__).parameters
    except (AttributeError, ValueError):
        takes = {}  # type: ignore[assignment]
    if "prompt" not in takes or isinstance(pipe, torch.nn.Module):
        raise SettingsError(
            f"{type(pipe).__name__} is no pipeline that makes pictures of a prompt; give generate=, a function that calls"
            " the networks for one (width, height, batch)."
        )

    def generate(size: Size) -> Any:
        width, height, batch = size
        picture = torch.zeros(1, 3, height, width)
        given: dict[str, Any] = {
            "prompt": "",
            "width": width,
            "height": height,
            "num_images_per_prompt": batch,
            "num_inference_steps": 1,
            "strength": 1.0,  # all of that one step
            "image": picture,
            "mask_image": torch.ones(1, 1, height, width),
            "generator": torch.Generator().manual_seed(0),  # the process's own goes on where it was
            "output_type": "pt",
        }
        return pipe(**{**{name: value for name, value in given.items() if name in takes}, **(arguments or {})})

    return generate
