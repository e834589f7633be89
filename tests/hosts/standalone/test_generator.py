"""The pipeline behind the standalone page: its pictures are PyTorch's, and no forward stays patched."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from ov_backend.checkpoint import TOKENIZER
from ov_backend.core.errors import Interrupted, OVBackendError, SettingsError
from ov_backend.ui.choices import Choices
from ov_backend.ui.infotext import Parameters

pytest.importorskip("diffusers")
if not TOKENIZER.is_dir():
    pytest.skip("the project's own vocabulary is not here", allow_module_level=True)

from ov_backend.engine.engine import Engine
from ov_backend.hosts.standalone.generator import PictureGenerator
from ov_backend.hosts.standalone.pipeline_call import Masked
from ov_backend.hosts.standalone.pipeline_host import PictureRequest
from ov_backend.hosts.standalone.samplers import NAMES, check_sampler, make_sampler
from ov_backend.pipelines.accelerate import networks_of
from ov_backend.ui.jobs import JobControl, compare, precompile
from ov_backend.ui.snapshot import Job
from tests.helpers.extent import only_in_full
from tests.helpers.layers_in_8_bits import needs_vnni
from tests.helpers.pictures import pixels
from tests.hosts.standalone.checkpoints import write_small_checkpoint

SMALL = Parameters("a cat", steps=2, width=64, height=64, seed=4)
PYTORCH = Choices("CPU", "f32", unet=False, vae=False, text_encoder=False)
OPENVINO = Choices("CPU", "f32")


@pytest.fixture(autouse=True)
def _nothing_stays_patched(generator: PictureGenerator) -> Iterator[None]:
    yield
    assert not [role for role, module in networks_of(generator.pipe).items() if "forward" in vars(module)]
    assert not generator.status.generating



def test_a_lora_of_the_prompt_is_in_its_picture_and_in_no_other(generator: PictureGenerator, tmp_path: Path) -> None:
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_v"
    weights = {f"{layer}.lora_down.weight": torch.ones(2, 64), f"{layer}.lora_up.weight": torch.ones(32, 2)}
    save_file(weights, tmp_path / "ink.safetensors")
    generator.lora_folders = (tmp_path,)
    prompts = ("a cat", "a cat <lora:ink:1>", "a cat", "a (cat:1.5)")
    made = [generator.generate(dataclasses.replace(SMALL, prompt=prompt), OPENVINO) for prompt in prompts]
    plain, styled, again, weighted = (pixels(each.files[0]) for each in made)
    assert np.array_equal(plain, again)
    assert not np.array_equal(plain, styled)
    assert not np.array_equal(plain, weighted)
    assert made[1].infotext.startswith("a cat <lora:ink:1>")
    with pytest.raises(SettingsError, match=r"the LoRA 'none' is not in .*; put its \.safetensors there or give --lora-dir\."):
        generator.generate(dataclasses.replace(SMALL, prompt="<lora:none:1>"), OPENVINO)


@pytest.mark.parametrize("name", ["/etc/hostname", "../ink", "x/../../ink", "{folder}/ink"])
def test_a_tag_names_no_file_outside_of_the_folders_of_loras(generator: PictureGenerator, tmp_path: Path, name: str) -> None:
    (tmp_path / "loras" / "x").mkdir(parents=True)
    (tmp_path / "ink.safetensors").write_bytes(b"no LoRA")
    generator.lora_folders = (tmp_path / "loras",)
    prompt = f"a cat <lora:{name.format(folder=tmp_path)}:1>"
    with pytest.raises(SettingsError, match=r"^the LoRA '.*' is not in "):
        generator.generate(dataclasses.replace(SMALL, prompt=prompt), PYTORCH)


@pytest.mark.parametrize("prompt", ["a cat", "a (cat:1.5)"])
def test_each_picture_of_a_batch_carries_the_seed_that_makes_it_alone(generator: PictureGenerator, prompt: str) -> None:
    both = generator.generate(dataclasses.replace(SMALL, prompt=prompt, batch=2), PYTORCH).files
    for i, path in enumerate(both):
        with Image.open(path) as picture:
            told, _ = Parameters.from_text(picture.info["parameters"])
        assert told == dataclasses.replace(SMALL, prompt=prompt, seed=SMALL.seed + i)
        (alone,) = generator.generate(told, PYTORCH).files
        assert np.abs(pixels(alone) - pixels(path)).max() <= 1


@pytest.mark.parametrize("picture", [None, Image.linear_gradient("L").convert("RGB")], ids=["text", "picture"])
def test_the_picture_is_pytorch_s(generator: PictureGenerator, picture: Image.Image | None) -> None:
    parameters = SMALL if picture is None else Parameters("a cat", steps=4, width=64, height=64, seed=4, strength=0.5)

    def calls() -> dict[str, int]:
        return {name: stats["calls"] for name, stats in generator.status.snapshot()["networks"].items()}

    (by_pytorch,) = generator.generate(parameters, PYTORCH, picture).files
    before = calls()
    (by_openvino,) = generator.generate(parameters, OPENVINO, picture).files
    after = calls()
    assert after["unet"] > before.get("unet", 0)
    assert after["vae_decode"] > before.get("vae_decode", 0)
    assert np.abs(pixels(by_pytorch) - pixels(by_openvino)).max() <= 2
    with Image.open(by_openvino) as opened:
        assert Parameters.from_text(opened.info["parameters"]) == (parameters, OPENVINO)


def test_another_checkpoint_makes_its_own_pictures(generator: PictureGenerator, tmp_path: Path) -> None:
    own = generator.model
    before = pixels(generator.generate(SMALL, OPENVINO).files[0])
    first = write_small_checkpoint(tmp_path, "first", levels=2)
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    folder = {"first": first, "broken": tmp_path / "broken.safetensors", own: generator.folder.parent / "small.safetensors"}
    generator.checkpoints = folder
    try:
        for wrong, expected in (("none", "The checkpoint 'none' is not here; choose one of first, broken"), ("broken", "broken")):
            with pytest.raises(OVBackendError, match=expected):
                generator.generate(SMALL, OPENVINO, model=wrong)
        assert generator.model == own
        made = generator.generate(SMALL, OPENVINO, model="first")
        assert "Model: first" in made.infotext
        assert not np.array_equal(pixels(made.files[0]), before)
        by_pytorch = generator.generate(SMALL, PYTORCH).files[0]
        assert np.abs(pixels(by_pytorch) - pixels(made.files[0])).max() <= 2
        assert np.array_equal(pixels(generator.generate(SMALL, OPENVINO, model=own).files[0]), before)
    finally:
        generator.load(own)


def test_hires_fix_makes_the_enlarged_picture_once_more(generator: PictureGenerator) -> None:
    parameters = dataclasses.replace(SMALL, steps=4, batch=2, hires=1.5, strength=0.5)
    first = generator.generate(dataclasses.replace(SMALL, steps=4, batch=2), PYTORCH).files
    made = generator.generate(parameters, PYTORCH).files
    by_openvino = generator.generate(parameters, OPENVINO).files
    for small, large, same in zip(first, made, by_openvino):
        with Image.open(small) as start:
            enlarged = np.asarray(start.convert("RGB").resize((96, 96), Image.Resampling.LANCZOS), dtype=int)
        assert pixels(large).shape == (96, 96, 3)
        assert not np.array_equal(pixels(large), enlarged), "only enlarged"
        assert np.abs(pixels(large) - pixels(same)).max() <= 2
    with Image.open(made[0]) as opened:
        text = opened.info["parameters"]
    assert "Size: 64x64, Denoising strength: 0.5, Hires upscale: 1.5, Hires upscaler: Lanczos" in text
    assert Parameters.from_text(text)[0] == dataclasses.replace(parameters, batch=1)


def test_an_interrupt_before_the_second_pass_keeps_the_first_one_s_picture(
    generator: PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = generator.status.step

    def interrupt(done: int, total: int) -> None:
        step(done, total)
        if done == total == 2:
            generator.interrupt()

    monkeypatch.setattr(generator.status, "step", interrupt)
    generated = generator.generate(dataclasses.replace(SMALL, hires=2, strength=0.5), PYTORCH)
    assert generated.interrupted == (2, 2)
    assert pixels(generated.files[0]).shape == (64, 64, 3)


@pytest.mark.parametrize("choices", [PYTORCH, OPENVINO], ids=["pytorch", "openvino"])
def test_only_what_lies_under_a_mask_is_made_anew(generator: PictureGenerator, choices: Choices) -> None:
    start = Image.linear_gradient("L").convert("RGB").resize((64, 64))
    mask = Image.new("L", (64, 64))
    mask.paste(200, (32, 0, 64, 64))
    parameters = dataclasses.replace(SMALL, steps=4, strength=0.75)
    generated = generator.generate(parameters, choices, Masked(start, mask))
    made, before = pixels(generated.files[0]), np.asarray(start, dtype=int)
    assert np.array_equal(made[:, :16], before[:, :16])
    assert np.abs(made[:, 40:] - before[:, 40:]).mean() > 5
    assert "Denoising strength: 0.75, Mask blur: 4" in generated.infotext


def test_a_size_far_from_the_checkpoint_s_own_gives_a_message(generator: PictureGenerator) -> None:
    generator.generate(Parameters(steps=1, width=64, height=64), PYTORCH)
    assert any("made for 256x256; at 64x64" in message for message in generator.status.snapshot()["messages"])


def test_a_seed_is_drawn_and_noted(generator: PictureGenerator) -> None:
    generated = generator.generate(Parameters(steps=1, width=64, height=64), PYTORCH)
    assert Parameters.from_text(generated.infotext)[0].seed >= 0
    assert generator.recent == generated.files


@pytest.mark.parametrize(
    "changes,expected",
    [
        ({"steps": 0}, "Steps is 0"),
        ({"width": 65}, "not a multiple of 8"),
        ({"height": 8}, "The size 64x8 cannot be drawn: 8 is"),
        ({"batch": 99}, "Batch size is 99"),
        ({"guidance": -3.0}, r"CFG scale is -3; it must be a number from 1 \(no guidance, and twice as fast\) to 1000, as 7\."),
        ({"steps": 2, "strength": 0.5}, "belong together"),
        ({"steps": 3, "hires": 2.0, "strength": 0.3}, "Denoising strength 0.3 leaves none of 3 steps; give a higher strength"),
        ({"hires": 2.0}, "belong together"),
        ({"hires": 5.0, "strength": 0.5}, r"Hires fix is by 5; it must be from 1 \(none\) to 4\."),
        ({"hires": float("nan"), "strength": 0.5}, "Hires fix is by nan"),
        ({"width": 2048, "height": 2048, "hires": 4.0, "strength": 0.5}, "8192"),
        ({"seed": 1 << 64}, "The seed is"),
        ({"sampler": "best"}, "The sampler is 'best'"),
        ({"sampler": "LCM", "steps": 51}, "LCM takes at most 50 steps"),
        ({"sampler": "TCD", "steps": 51}, "TCD takes at most 50 steps"),
        ({"steps": 1000}, "Steps is 1000, for which 1001 timesteps are needed, and the checkpoint has 1000; give fewer"),
    ],
)
def test_bad_input_is_one_sentence(generator: PictureGenerator, changes: dict[str, int], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        generator.generate(Parameters(**{"width": 64, "height": 64, "steps": 1, **changes}), PYTORCH)


def test_a_comparison_repeats_a_seed_of_any_size() -> None:
    request = PictureRequest(Parameters(seed=1 << 40))
    assert request.with_seed(0) == request
    assert request.with_seed(1).parameters.seed == (1 << 40) + 1


def test_another_sampler_makes_another_picture_with_the_same_graph(generator: PictureGenerator) -> None:
    generator.generate(SMALL, OPENVINO)
    compiles = generator.status.snapshot()["networks"]["unet"]["compiles"]
    # timesteps in f32 and in int64, one call a step and two
    names = ("Euler", "Heun", "DDIM", "LCM", "DPM++ 2S", "DDPM", "SA-Solver", "TCD")
    files = [generator.generate(dataclasses.replace(SMALL, sampler=name), OPENVINO).files[0] for name in names]
    assert generator.status.snapshot()["networks"]["unet"]["compiles"] == compiles
    assert len({pixels(file).tobytes() for file in files}) == len(names)
    with Image.open(files[0]) as picture:
        assert Parameters.from_text(picture.info["parameters"])[0].sampler == "Euler"


@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_can_be_made_of_the_checkpoint_s_configuration(generator: PictureGenerator, name: str) -> None:
    sampler = make_sampler(name, generator.own_sampler)
    sampler.set_timesteps(4)
    assert len(sampler.timesteps) >= 4
    assert sampler.config.beta_end == generator.own_sampler.config.beta_end


@pytest.mark.parametrize("name", NAMES)
def test_every_sampler_takes_as_many_steps_as_are_accepted(generator: PictureGenerator, name: str) -> None:
    own = type(generator.own_sampler).from_config(generator.own_sampler.config, num_train_timesteps=51)
    sampler = make_sampler(name, own)
    check_sampler(name, 50, own.config.num_train_timesteps)
    sampler.set_timesteps(50)
    latents = torch.randn(1, 4, 2, 2) * sampler.init_noise_sigma
    for timestep in sampler.timesteps:
        noise = sampler.scale_model_input(latents, timestep)
        latents = sampler.step(noise, timestep, latents).prev_sample
    assert latents.isfinite().all()


def test_a_picture_to_start_from_is_cut_and_not_distorted(generator: PictureGenerator) -> None:
    wide = Image.new("RGB", (256, 64))
    wide.paste((255, 255, 255), (96, 0, 160, 64))  # a white square in the middle third
    start = Parameters(steps=2, width=64, height=64, strength=0.5, seed=3)
    square, distorted = Image.new("RGB", (64, 64), (255, 255, 255)), wide.resize((64, 64))
    cut, expected, other = (pixels(generator.generate(start, PYTORCH, each).files[0]) for each in (wide, square, distorted))
    assert np.array_equal(cut, expected), "the middle of the picture, whole"
    assert not np.array_equal(cut, other)


def test_a_comparison_repeats_the_last_picture(generator: PictureGenerator) -> None:
    generated = generator.generate(dataclasses.replace(SMALL, batch=2), PYTORCH)
    job = Job("compare", total=2)
    comparison = compare(generator, JobControl(job, threading.Event()), generator.last_request(), OPENVINO)
    assert (comparison.size, comparison.batch) == ((64, 64), 1)
    assert comparison.first.picture is not None
    assert np.abs(np.asarray(comparison.first.picture, dtype=int) - pixels(generated.files[0])).max() <= 1
    result = comparison.as_dict()
    assert result["psnr_db"] is None or result["psnr_db"] > 40
    assert result["pytorch_picture_seconds"] > result["pytorch_seconds"] > 0


def test_loras_are_in_the_weights_before_anything_is_prepared(
    generator: PictureGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    set_loras, begin_run = generator.set_loras, Engine.begin_run
    monkeypatch.setattr(generator, "set_loras", lambda loras: order.append("loras") or set_loras(loras))
    monkeypatch.setattr(Engine, "begin_run", lambda *args: order.append("prepare") or begin_run(*args))
    generator.generate(dataclasses.replace(SMALL, steps=1), OPENVINO)
    assert order == ["loras", "prepare"]


def test_precompiled_sizes_need_no_compile(generator: PictureGenerator) -> None:
    control = JobControl(Job("precompile", total=1), threading.Event())
    precompile(generator, control, [(72, 64)], 1, OPENVINO)
    before = generator.status.snapshot()["networks"]["unet"]["compiles"]
    generator.generate(Parameters(steps=1, width=72, height=64, seed=1), OPENVINO)
    assert generator.status.snapshot()["networks"]["unet"]["compiles"] == before


def test_a_precompile_can_be_cancelled(generator: PictureGenerator) -> None:
    control = JobControl(Job("precompile", total=1), threading.Event())
    control.cancelled.set()
    with pytest.raises(Interrupted):
        precompile(generator, control, [(80, 64)], 1, OPENVINO)


@needs_vnni
@only_in_full
def test_the_second_picture_is_made_in_int8(generator: PictureGenerator) -> None:
    choices = dataclasses.replace(OPENVINO, precision="int8")
    for _ in range(2):
        generator.generate(dataclasses.replace(SMALL, steps=10), choices)
    stats = generator._networks["unet"].stats()["int8"]
    assert stats["error"], "a recipe was made and tried"
    assert not generator._networks["vae_decode"].stats()["int8"]
