"""A pipeline's call says what will be asked of its networks; what it called last for the same is prepared meanwhile."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings, accelerate

pytest.importorskip("diffusers")

from ov_backend.pipelines.calls import Listener, request_of
from tests.helpers.diffusers_pipelines import tiny

Strict = Callable[..., Settings]


def picture(pipe: Any, size: int = 32) -> Any:
    generator = torch.Generator().manual_seed(0)
    return pipe("a cat", width=size, height=size, num_inference_steps=2, generator=generator, output_type="np").images


def test_a_new_process_prepares_what_the_pipeline_called_before(strict: Strict) -> None:
    pipe, pictures = tiny("sd", shallow=True), []
    for is_known in (False, True):
        with accelerate(pipe, strict(low_memory="off")) as accelerated:
            pictures.append(picture(pipe))
            assert (accelerated.engine.resources.ahead.changes > 0) == is_known
            stats = accelerated.stats()
            assert stats["unet"]["compiles"] == stats["vae_decode"]["compiles"] == 1
            assert (stats["unet"]["captures"], stats["unet"]["graph_hits"]) == (1, is_known)
    assert (pictures[0] == pictures[1]).all()


def test_other_sizes_and_guidance_are_other_requests_and_prompts_and_steps_are_not() -> None:
    pipe = tiny("sd")

    def request(*args: Any, **kwargs: Any) -> str:
        return request_of(pipe, type(pipe).__call__, args, kwargs)

    assert request("a cat", num_inference_steps=3) == request(prompt="a dog", num_inference_steps=20, guidance_scale=5.0)
    assert "cat" not in request("a cat")
    requests = [
        request("a cat"),
        request("a cat", width=64, height=32),
        request("a cat", guidance_scale=1.0),
        request("a cat", num_images_per_prompt=2),
        request(["a cat", "a dog"]),
    ]
    assert len(set(requests)) == len(requests)


def test_a_pipelines_class_is_as_it_was_when_nobody_listens() -> None:
    one, other = tiny("sd"), tiny("sd")
    cls = type(one)
    original, signature = cls.__call__, inspect.signature(cls.__call__)
    heard: list[str] = []

    class Around:
        def __init__(self, request: str) -> None:
            heard.append(request)

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    first, second = Listener(one, Around), Listener(other, lambda request: Around("other"))
    assert inspect.signature(cls.__call__) == signature
    picture(one)
    first.undo()
    assert len(heard) == 1
    picture(one)
    picture(other)
    assert heard[1:] == ["other"]
    second.undo()
    assert cls.__call__ is original


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["shallow", "deep"])
def test_nobody_listens_to_a_copy_of_a_pipeline(copied: Callable[[Any], Any]) -> None:
    pipe, heard = tiny("sd", shallow=True), list[str]()

    def around(request: str) -> Any:
        heard.append(request)
        return contextlib.nullcontext()

    listener = Listener(pipe, around)
    picture(copied(pipe))
    assert not heard
    derived = type("Derived", (type(pipe),), {})(**pipe.components, requires_safety_checker=False)
    derived.set_progress_bar_config(disable=True)
    other = Listener(derived, around)
    picture(derived)
    assert len(heard) == 1
    other.undo()
    listener.undo()


def test_a_pipeline_that_got_another_class_is_restored(strict: Strict) -> None:
    pipe = tiny("sd", shallow=True)
    cls = type(pipe)
    before = cls.__call__
    accelerated = accelerate(pipe, strict())
    pipe.__class__ = type("Other", (cls,), {})
    accelerated.restore()
    assert cls.__call__ is before
    assert "forward" not in vars(pipe.unet)
