"""The command ``generate``: the pictures of a prompt, with LoRAs, each with its own seed and parameters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

pytest.importorskip("diffusers")

from ov_backend.cli import main as cli
from ov_backend.ui.infotext import Parameters
from tests.cli.conftest import Refusal

#: Runs the command, and returns what it tells of each picture.
Generate = Callable[..., list[dict[str, Any]]]
LAYER = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loras") / "ink.safetensors"
    save_file({f"{LAYER}.lora_down.weight": torch.ones(2, 64), f"{LAYER}.lora_up.weight": torch.ones(32, 2)}, path)
    return path


@pytest.fixture
def generate(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Generate:
    def run(*arguments: str) -> list[dict[str, object]]:
        common = ["--checkpoint", str(checkpoint), "--steps", "1", "--precision", "f32", "--json"]
        folders = ["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "graphs")]
        assert cli.main(["generate", *arguments, *common, *folders]) == 0
        pictures: list[dict[str, object]] = json.loads(capsys.readouterr().out)["pictures"]
        return pictures

    return run


def pixels(picture: dict[str, object]) -> np.ndarray:
    with Image.open(str(picture["file"])) as file:
        return np.asarray(file, dtype=int)


def parameters(picture: dict[str, object]) -> Parameters:
    with Image.open(str(picture["file"])) as file:
        return Parameters.from_text(file.info["parameters"])[0]


def test_several_pictures_have_seeds_one_apart_and_each_is_made_as_alone(generate: Generate) -> None:
    first, second = generate("a cat", "-n", "2", "--seed", "7")
    (alone,) = generate("--prompt", "a cat", "--seed", "8")
    assert (first["seed"], second["seed"], first["answered"]) == (7, 8, "OpenVINO")
    assert np.array_equal(pixels(second), pixels(alone))
    assert not np.array_equal(pixels(first), pixels(second))
    made = parameters(second)
    assert (made.prompt, made.seed, made.steps, made.width, made.batch) == ("a cat", 8, 1, 64, 1)


def test_a_lora_by_its_file_and_by_its_tag_are_the_same(generate: Generate, lora: Path) -> None:
    (plain,) = generate("a cat", "--seed", "7")
    (by_file,) = generate("a cat", "--seed", "7", "--lora", f"{lora}:0.5")
    (by_tag,) = generate("a cat <lora:ink:0.5>", "--seed", "7", "--lora-dir", str(lora.parent))
    (by_name,) = generate("a cat", "--seed", "7", "--lora", "ink:0.5", "--lora-dir", str(lora.parent))
    assert not np.array_equal(pixels(plain), pixels(by_file))
    assert np.array_equal(pixels(by_tag), pixels(by_file))
    assert np.array_equal(pixels(by_name), pixels(by_file))
    assert parameters(by_file) == parameters(by_tag) == parameters(by_name)


def test_what_is_written_of_a_lora_s_strength_is_what_was_added(generate: Generate, lora: Path) -> None:
    (by_file,) = generate("a cat", "--seed", "7", "--lora", f"{lora}:0.123456789")
    assert parameters(by_file).prompt == "a cat <lora:ink:0.123456789>"
    (by_tag,) = generate(parameters(by_file).prompt, "--seed", "7", "--lora-dir", str(lora.parent))
    assert np.array_equal(pixels(by_tag), pixels(by_file))


def test_a_lora_is_added_once_whatever_its_names(lora: Path, checkpoint: Path, assert_refused: Refusal) -> None:
    words = "the LoRA 'ink' is named twice, once as"
    common = ["--checkpoint", str(checkpoint), "--lora-dir", str(lora.parent)]
    assert_refused(["generate", "a <lora:ink:1> <lora:ink.safetensors:1>", *common], words)
    assert_refused(["generate", "a <lora:ink.safetensors:1>", "--lora", str(lora), *common], words)


def test_a_weight_of_a_word_changes_the_picture(generate: Generate) -> None:
    pictures = [generate(text, "--seed", "7")[0] for text in ("a red cat", "a (red:1.8) cat", "a red cat")]
    first, weighted, again = map(pixels, pictures)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, weighted)


def test_without_a_seed_every_run_draws_another(generate: Generate) -> None:
    assert generate("a cat")[0]["seed"] != generate("a cat", "--seed", "-1")[0]["seed"]


BAD = [
    ([], "No prompt is given; give what to draw"),
    (["a", "--lora", "none.safetensors"], "the LoRA 'none.safetensors' is not in . or"),
    (["a", "--lora", "none:many"], "the strength of the LoRA 'none' is 'many'; it must be a number, as 0.8."),
    (["a <lora:none:1>"], "the LoRA 'none' is not in"),
    (["a <lora:none:1"], "a <lora: in the prompt has no end; write <lora:name:0.8>."),
    (["a", "-n", "0"], "it takes a whole number from 1 to 1000, such as 4, not '0'"),
    (["a", "--sampler", "guess"], "The sampler is 'guess'; it must be one of"),
    (["a", "--sampler", "LCM", "--steps", "99"], "LCM takes at most 50 steps"),
    (["a", "--precision", "int8"], "--precision int8 would compute the first picture in another precision; give one of auto"),
    (["a", "--checkpoint", "none.safetensors"], "none.safetensors is no file; give the path of one .safetensors file"),
    (["a", "--lora-dir", "none"], "--lora-dir is 'none', which is no folder"),
    (["a", "--seed", str((1 << 63) - 1), "-n", "2"], "too large for 2 pictures; make it smaller"),
]


@pytest.mark.parametrize("arguments,words", BAD, ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "")
def test_bad_input_is_one_sentence(arguments: list[str], words: str, assert_refused: Refusal) -> None:
    assert_refused(["generate", *arguments], words)


@pytest.mark.parametrize("sampler,steps,timesteps", [("DPM++ 2M", 2, 1), ("Euler", 20, 20), ("DDIM", 1000, 1000), ("LCM", 4, 49)])
def test_steps_are_fewer_than_the_checkpoint_s_timesteps(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, sampler: str, steps: int, timesteps: int, assert_refused: Refusal
) -> None:
    copied = Path(shutil.copy(checkpoint, tmp_path_factory.mktemp("few")))
    copied.with_suffix(".yaml").write_text(f"model: {{params: {{timesteps: {timesteps}}}}}")
    needed = 50 if timesteps == 49 else steps + 1
    words = f"Steps is {steps}, for which {needed} timesteps are needed, and the checkpoint has {timesteps}; give fewer steps"
    assert_refused(["generate", "a", "--checkpoint", str(copied), "--sampler", sampler, "--steps", str(steps)], words)


def test_a_checkpoint_is_no_lora(checkpoint: Path, assert_refused: Refusal) -> None:
    words = "is a checkpoint and no LoRA; give a LoRA as a .safetensors file."
    assert_refused(["generate", "a", "--lora", str(checkpoint)], words)
