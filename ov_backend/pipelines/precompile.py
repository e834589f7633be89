"""Precompile: capture, convert and compile networks for picture sizes before these are needed.

The host generates a picture in one step as a warm-up (``engine/ahead/warmup.py``): the networks are compiled and compute
nothing. So they are called exactly as they will be later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ov_backend.core.errors import Interrupted, SettingsError
from ov_backend.engine.ahead.warmup import warming_up

#: Width and height in pixels, and the number of pictures at once.
Size = tuple[int, int, int]


def precompile(
    sizes: Iterable[Size],
    generate: Callable[[Size], Any],
    *,
    begin: Callable[[Size], None] = lambda size: None,
    done: Callable[[Size], None] = lambda size: None,
    cancel: Callable[[], bool] = lambda: False,
) -> list[Size]:
    """Compile every network that ``generate`` calls, for every size.

    Args:
        sizes: to compile for.
        generate: generates pictures of one size, in as few steps as it can; the result is not used.
        begin: called before each size.
        done: called after each size.
        cancel: once it returns true, this function returns within a second; a running compile goes on in the background.

    Returns:
        The sizes that are compiled.
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
            if cancel():  # a host may end its generation without an error when it is interrupted
                break
            ready.append(size)
            done(size)
    return ready


def every(sizes: Iterable[tuple[int, int]], batches: Iterable[int] = (1,)) -> list[Size]:
    """Every combination of a width and height with a number of pictures, each once, in order."""
    batches = tuple(batches)
    return list(dict.fromkeys((width, height, batch) for width, height in sizes for batch in batches))


def generator_of(pipe: Any, arguments: Mapping[str, Any] | None = None) -> Callable[[Size], Any]:
    """A function that runs a diffusers pipeline for one size, in one step; it is ``generate`` for :func:`precompile`.

    Args:
        pipe: a pipeline that generates pictures from a prompt, and from a picture or a mask if it takes them.
        arguments: added to its call, or replacing others: those that change how networks are called, such as
            ``guidance_scale``.

    Raises:
        SettingsError: ``pipe`` is no pipeline that can be called with a prompt.
    """
    try:
        parameters = set(inspect.signature(type(pipe).__call__).parameters)
    except (AttributeError, ValueError):
        parameters = set()
    if "prompt" not in parameters or isinstance(pipe, torch.nn.Module):
        raise SettingsError(
            f"{type(pipe).__name__} is no pipeline that makes pictures of a prompt; give generate=, a function that calls"
            " the networks for one (width, height, batch)."
        )

    def generate(size: Size) -> Any:
        width, height, batch = size
        picture = torch.zeros(1, 3, height, width)
        defaults: dict[str, Any] = {
            "prompt": "",
            "width": width,
            "height": height,
            "num_images_per_prompt": batch,
            "num_inference_steps": 1,
            "strength": 1.0,  # else image-to-image may run no step
            "image": picture,
            "mask_image": torch.ones(1, 1, height, width),
            "generator": torch.Generator().manual_seed(0),  # leaves the state of the global generator as it is
            "output_type": "pt",
        }
        return pipe(**{**{name: value for name, value in defaults.items() if name in parameters}, **(arguments or {})})

    return generate
