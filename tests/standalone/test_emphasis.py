"""Weights of words: read as the WebUI reads them, and multiplied into what the text encoder makes of each token."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("diffusers")

from ov_backend.standalone.emphasis import has_emphasis, plain_text, weighted
from ov_backend.standalone.prompts import chunk_count, encoded, long_embeddings
from tests.helpers.diffusers_pipelines import tiny

#: Those of the WebUI's modules/prompt_parser.py, in its own examples and beside them.
CASES = {
    "normal text": [("normal text", 1.0)],
    "an (important) word": [("an ", 1.0), ("important", 1.1), (" word", 1.0)],
    "(unbalanced": [("unbalanced", 1.1)],
    r"\(literal\]": [("(literal]", 1.0)],
    "(unnecessary)(parens)": [("unnecessaryparens", 1.1)],
    "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky)))": [
        *(("a ", 1.0), ("house", 1.573), (" ", 1.1), ("on", 1.0), (" a ", 1.1), ("hill", 0.55), (", sun, ", 1.1)),
        ("sky", 1.4641),
    ],
    "time: 3) and 10:30": [("time: 3) and 10:30", 1.0)],
    "(a:1.2": [("a:1.2", 1.1)],
    "[a:b]": [("a:b", 1 / 1.1)],
    "([a)]": [("a", 1.0)],
    "(a:.5)": [("a", 0.5)],
    "(a:-1)": [("a", -1.0)],
    "(a: 1.2 )": [("a", 1.2)],
    "": [],
    "\\": [("\\", 1.0)],
}


@pytest.mark.parametrize("text", CASES)
def test_weights_are_read_as_in_the_webui(text: str) -> None:
    read = weighted(text)
    assert [piece for piece, _ in read] == [piece for piece, _ in CASES[text]]
    assert [weight for _, weight in read] == pytest.approx([weight for _, weight in CASES[text]])
    assert has_emphasis(text) == (plain_text(text) != text)


@pytest.mark.parametrize("kind", ["sd1", "sdxl"])
def test_a_weight_multiplies_the_embeddings_of_its_words_and_the_mean_stays(kind: str) -> None:
    pipe = tiny(kind, shallow=True)
    plain, pooled = encoded(pipe, "a red cat", 1)
    expected = []
    widths = [encoder.config.hidden_size for encoder in (pipe.text_encoder, getattr(pipe, "text_encoder_2", None)) if encoder]
    for part in plain.split(widths, dim=-1):
        changed = part.clone()
        changed[:, 2] *= 1.5  # after the beginning and "a"
        expected.append(changed * (part.mean() / changed.mean()))
    embeddings = long_embeddings(pipe, "a (red:1.5) cat", "", guided=True)
    torch.testing.assert_close(embeddings["prompt_embeds"], torch.cat(expected, dim=-1))
    if kind == "sdxl":
        assert torch.equal(embeddings["pooled_prompt_embeds"], pooled)


def test_brackets_are_not_counted_and_those_of_the_text_are_read() -> None:
    pipe = tiny("sd1", shallow=True)
    assert chunk_count(pipe.tokenizer, f"({'a ' * 75}:1.2)") == 1
    (joined,) = encoded(pipe, r"a \(b\)", 1)[:1]
    own = pipe.encode_prompt("a (b)", device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False)
    assert torch.equal(joined, own[0])
