"""Which parts of a pipeline are networks, under which names, and that a part which is none is told in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings, accelerate
from ov_backend.core.errors import PatchError, SettingsError
from ov_backend.pipelines.accelerate import networks_of
from ov_backend.pipelines.forwards import is_quantizable

Strict = Callable[..., Settings]
SHIFT = torch.nn.Linear(2, 2)


def test_second_transformers_priors_and_decoders_of_pipelines_are_networks() -> None:
    names = ("transformer", "transformer_2", "prior", "decoder")
    pipe = SimpleNamespace(**{name: torch.nn.Linear(2, 2) for name in names})
    assert tuple(networks_of(pipe)) == names
    assert all(map(is_quantizable, networks_of(pipe)))


def test_a_module_under_two_names_is_one_network(strict: Strict) -> None:
    shared, tokens = torch.nn.Linear(2, 2), torch.ones(1, 2)
    pipe = SimpleNamespace(transformer=shared, transformer_2=shared, text_encoder=SHIFT)
    expected = pipe.transformer_2(tokens)
    with accelerate(pipe, strict(model_caching=False)) as accelerated:
        torch.testing.assert_close(pipe.transformer_2(tokens), expected)
        assert {name: stats["calls"] for name, stats in accelerated.stats().items()} == {"transformer": 1, "text_encoder": 0}
    assert "forward" not in vars(shared)


class Steps:
    """A pipeline of two parts, of which the second may be missing."""

    def __init__(self, unet: torch.nn.Module, controlnet: torch.nn.Module | None = None) -> None:
        self.unet, self.controlnet = unet, controlnet

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.unet(tokens if self.controlnet is None else self.controlnet(tokens))


def test_parts_that_a_pipeline_gets_later_run_in_openvino_and_those_it_had_are_restored(strict: Strict) -> None:
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    tokens, pipe = torch.ones(1, 2), Steps(first)
    forms = [(first, None), (second, None), (second, third), (third, second), (first, third)]
    expected = [Steps(*form)(tokens) for form in forms]
    with accelerate(pipe, strict(model_caching=False)) as accelerated:
        for (pipe.unet, pipe.controlnet), picture in zip(forms, expected):
            torch.testing.assert_close(pipe(tokens), picture)
            parts = [part for part in (pipe.unet, pipe.controlnet) if part is not None]
            assert all("forward" in vars(part) for part in parts)
            assert all(accelerated.stats()[name]["calls"] for name, _ in zip(("unet", "controlnet"), parts))
            assert all("forward" not in vars(part) for part in {first, second, third} - set(parts))
    assert all("forward" not in vars(part) for part in (first, second, third))


@pytest.mark.parametrize("hooked", [False, True])
def test_a_part_of_two_pipelines_stays_with_the_first_accelerator_while_that_has_it(
    hooked: bool, strict: Strict, caplog: pytest.LogCaptureFixture
) -> None:
    shared, own, tokens = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.ones(1, 2)
    if hooked:
        hooks = pytest.importorskip("accelerate.hooks")
        hooks.add_hook_to_module(shared, hooks.ModelHook())
    first, second = Steps(shared), Steps(own, shared)
    expected = second(tokens)
    with accelerate(second, strict(model_caching=False)) as alone:
        with pytest.raises(PatchError, match="unet, controlnet: already accelerated by another call"):
            accelerate(Steps(own, shared), strict())
        assert alone.stats().keys() == {"unet", "controlnet"}
    base = accelerate(first, strict(model_caching=False))
    with accelerate(second, strict(model_caching=False)) as accelerated:
        assert "controlnet: already accelerated by another call of accelerate, whose settings hold." in caplog.messages
        torch.testing.assert_close(second(tokens), expected)
        assert (base.stats()["unet"]["calls"], accelerated.stats()["unet"]["calls"]) == (1, 1)
        base.restore()
        torch.testing.assert_close(second(tokens), expected)
        assert accelerated.stats()["controlnet"]["calls"] == 1
    assert "forward" not in vars(own)
    assert ("forward" in vars(shared)) == hooked


def test_the_decoder_of_a_module_is_none() -> None:
    module = torch.nn.Module()
    module.decoder = torch.nn.Linear(2, 2)
    with pytest.raises(SettingsError, match="holds no network"):
        networks_of(module)


def test_a_part_that_accelerate_does_not_know_is_told(strict: Strict, caplog: pytest.LogCaptureFixture) -> None:
    vae = SimpleNamespace(encoder=torch.nn.Linear(2, 2), decoder=torch.nn.Linear(2, 2))
    pipe = SimpleNamespace(unet=SHIFT, vae=vae, safety_checker=torch.nn.Linear(2, 2), scheduler=object(), text_encoder=None)
    with caplog.at_level(logging.INFO, "ov_backend"), accelerate(pipe, strict()):
        pass
    told = [record.getMessage() for record in caplog.records if "does not know" in record.getMessage()]
    assert told == ["safety_checker stays in PyTorch: accelerate does not know this part of a pipeline."]


def test_kandinsky_decodes_in_openvino(strict: Strict) -> None:
    diffusers = pytest.importorskip("diffusers")
    from tests.helpers.networks import seeded

    attention = {"down_block_types": ("SimpleCrossAttnDownBlock2D",), "up_block_types": ("SimpleCrossAttnUpBlock2D",)}
    given: dict[str, Any] = {"encoder_hid_dim": 32, "encoder_hid_dim_type": "image_proj", "addition_embed_type": "image"}
    sizes = {"block_out_channels": (32,), "layers_per_block": 1, "cross_attention_dim": 32, "attention_head_dim": 4}
    unet = diffusers.UNet2DConditionModel(**attention, **given, **sizes, mid_block_type=None, out_channels=8)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    codes = {"latent_channels": 4, "num_vq_embeddings": 12, "vq_embed_dim": 4, "norm_type": "spatial"}
    movq = diffusers.VQModel(**blocks, **codes, block_out_channels=(32, 32), norm_num_groups=8)
    pipe = diffusers.KandinskyV22Pipeline(seeded(unet, 1), diffusers.DDIMScheduler(clip_sample=False), seeded(movq, 2))
    pipe.set_progress_bar_config(disable=True)
    embeds = [torch.randn(1, 32, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]

    def draw() -> Any:
        generator = torch.Generator().manual_seed(5)
        return pipe(*embeds, height=64, width=64, num_inference_steps=2, generator=generator, output_type="np").images

    expected = draw()
    with accelerate(pipe, strict()) as accelerated:
        assert np.linalg.norm(draw() - expected) <= 1e-3 * np.linalg.norm(expected)
        calls = {name: values["calls"] for name, values in accelerated.stats().items()}
    assert calls == {"unet": 2, "movq_encode": 0, "movq_decode": 1}
    assert not is_quantizable("movq_decode")
