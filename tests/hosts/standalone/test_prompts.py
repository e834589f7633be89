"""Prompts that are longer than CLIP reads at once, of every kind of pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("diffusers")

from ov_backend.hosts.standalone.pipeline_call import call_pipeline
from ov_backend.hosts.standalone.prompts import chunk_count, encoded, is_short, long_embeddings
from ov_backend.ui.infotext import Parameters
from tests.helpers.diffusers_pipelines import tiny

KINDS = ("sd1", "sd2", "sdxl")


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_encoded_as_the_pipeline_encodes_a_short_prompt(kind: str) -> None:
    pipe = tiny(kind, shallow=True)
    own = pipe.encode_prompt("a cat", device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=True)
    embeds, pooled = encoded(pipe, "a cat", 1)
    assert torch.equal(embeds, own[0])
    assert torch.equal(pooled, own[2]) if kind == "sdxl" else pooled is None
    long = long_embeddings(pipe, "a " * 75 + "a cat", "", guided=True)
    assert torch.equal(long["prompt_embeds"][:, 77:], embeds)
    assert torch.equal(long["negative_prompt_embeds"], own[1].repeat(1, 2, 1)), "of nothing, in as many chunks"
    if kind == "sdxl":
        assert torch.equal(long["pooled_prompt_embeds"], encoded(pipe, "a " * 75, 1)[1]), "of the first chunk"
        assert torch.equal(long["negative_pooled_prompt_embeds"], own[3])
    assert long_embeddings(pipe, "a " * 75, "a " * 76, guided=False) == {}


@pytest.mark.parametrize("strength", [None, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_prompt_says_after_77_tokens_counts(kind: str, strength: float | None) -> None:
    pipe = tiny(kind, shallow=True)
    start = Image.linear_gradient("L") if strength else None
    chosen = Parameters(steps=2, width=32, height=32, batch=2, seed=1, strength=strength)
    for field in ("prompt", "negative_prompt"):
        prompts = [replace(chosen, **{field: "a " * 80 + end}) for end in ("cat", "owl")]
        pictures = [[np.asarray(image) for image in call_pipeline(pipe, pipe.scheduler, each, start)] for each in prompts]
        assert [len(each) for each in pictures] == [2, 2]
        assert not np.array_equal(*pictures), field


def test_a_text_that_counts_as_short_has_one_chunk() -> None:
    tokenizer = tiny("sd1", shallow=True).tokenizer
    texts = ["", "!" * 75, "\u0f77" * 75, "0a" * 37, "a " * 38, "a " * 75, "a " * 76, "a " * 151]
    assert [chunk_count(tokenizer, text) for text in texts][3:] == [1, 1, 1, 2, 3]
    assert [is_short(text) for text in texts] == [True, True, False, True, False, False, False, False]
    for text in filter(is_short, texts):
        assert len(tokenizer(text).input_ids) <= 77
