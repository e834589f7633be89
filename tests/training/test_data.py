"""The training code: captions, held-out combinations, tokens and saved states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training import heldout, shards
from training.bpe import END, START, Tokenizer
from training.captions import Sampler, Spec, caption
from training.paths import CHECKPOINT_DIR, TOKENIZER_DIR

NAMES = sorted({name for prompt in heldout.PROMPTS for name in prompt["concepts"]})


def sampler(seed: int) -> Sampler:
    return Sampler([{"name": name, "aliases": []} for name in NAMES], seed, heldout.forbidden(NAMES))


def test_there_are_24_prompts_and_no_training_picture_holds_one_of_their_combinations() -> None:
    held_out = [spec.combinations() for spec in heldout.specs(NAMES)]
    training = sampler(3)
    assert len(held_out) == 24
    for _ in range(3000):
        pairs = training.draw().combinations()
        assert all(pairs.isdisjoint(combination) for combination in held_out)


def test_the_same_seed_draws_the_same_captions() -> None:
    first, second, other = ([s.caption(s.draw()) for _ in range(20)] for s in (sampler(5), sampler(5), sampler(6)))
    assert first == second != other


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec((0,)), "a alpha"),
        (Spec((0,), background="night"), "a alpha under a night sky"),
        (Spec((1, 0), tint="red"), "a red bus and a red alpha"),
        (Spec((1, 1, 1), style="flat"), "a flat three buses"),
        (Spec((0,), style="line art", background="orange", size="small"), "line art of a small alpha on an orange background"),
    ],
)
def test_captions(spec: Spec, words: str) -> None:
    text = caption(spec, ["alpha", "bus"])
    assert text.replace("an alpha", "a alpha").replace("three bus", "three buses") == words


def test_tokens_are_those_of_clip() -> None:
    tokens = Tokenizer(TOKENIZER_DIR).encode("a cat, flat on a blue background")
    assert tokens[:10] == [START, 320, 2368, 267, 6313, 525, 320, 1746, 5994, END]
    assert len(tokens) == 77
    assert set(tokens[9:]) == {END}


def test_long_text_is_cut() -> None:
    tokens = Tokenizer(TOKENIZER_DIR).encode("cat " * 200)
    assert len(tokens) == 77
    assert tokens[-1] == END


def test_shards_are_small_and_can_be_loaded(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.randn(100) for n in range(10)}
    paths = shards.save(tensors, tmp_path, "state", {"step": 7}, limit=1000)
    assert len(paths) == 5
    loaded = shards.load(tmp_path, "state")
    assert loaded is not None
    assert loaded[1] == {"step": 7}
    assert all(torch.equal(loaded[0][name], tensor) for name, tensor in tensors.items())
    assert shards.load(tmp_path, "another") is None


def test_the_shipped_folder_is_at_most_32_mb() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT_DIR.rglob("*") if path.is_file()) <= 32_000_000
