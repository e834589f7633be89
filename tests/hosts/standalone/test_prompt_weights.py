"""Weights of words: read as the WebUI reads them, and multiplied into what the text encoder makes of each token."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("diffusers")

from ov_backend.hosts.standalone.prompt_weights import between_breaks, has_emphasis, plain_text, weighted
from ov_backend.hosts.standalone.prompts import chunk_count, encoded, long_embeddings
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


BREAKS = {
    "a cat BREAK a dog": [[("a cat", 1.0)], [("a dog", 1.0)]],
    "a BREAK (b BREAK c:1.5) d": [[("a", 1.0)], [("", 1.0), ("b", 1.5)], [("c", 1.5), (" d", 1.0)]],
    "BREAK a": [[("", 1.0)], [("a", 1.0)]],
    "BREAKFAST at BREAK_": [[("BREAKFAST at BREAK_", 1.0)]],
}


@pytest.mark.parametrize("text", BREAKS)
def test_a_break_divides_a_prompt(text: str) -> None:
    assert between_breaks(text) == BREAKS[text]
    assert has_emphasis(text) == (len(BREAKS[text]) > 1)


@pytest.mark.parametrize("kind", ["sd1", "sdxl"])
def test_what_follows_a_break_is_encoded_in_chunks_of_its_own(kind: str) -> None:
    pipe = tiny(kind, shallow=True)
    counts = {"a BREAK b": 2, "a BREAK": 1, "BREAK a": 2, "a BREAK BREAK b": 3, "BREAK": 1, "a break b": 1}
    counts[f"{'a ' * 75}BREAK b"] = 2
    assert {text: chunk_count(pipe.tokenizer, text) for text in counts} == counts
    embeddings = long_embeddings(pipe, "a cat BREAK a dog", "", guided=True)
    parts = [encoded(pipe, text, 1)[0] for text in ("a cat", "a dog")]
    assert torch.equal(embeddings["prompt_embeds"], torch.cat(parts, dim=1))
    assert embeddings["negative_prompt_embeds"].shape == embeddings["prompt_embeds"].shape
    assert torch.equal(long_embeddings(pipe, "a cat BREAK", "", guided=True)["prompt_embeds"], parts[0])


def test_brackets_are_not_counted_and_those_of_the_text_are_read() -> None:
    pipe = tiny("sd1", shallow=True)
    assert chunk_count(pipe.tokenizer, f"({'a ' * 75}:1.2)") == 1
    (joined,) = encoded(pipe, r"a \(b\)", 1)[:1]
    own = pipe.encode_prompt("a (b)", device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False)
    assert torch.equal(joined, own[0])
