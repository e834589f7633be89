"""Reports of diffusers, peft and transformers, with tiny networks of random weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ov_backend
from tests.helpers.diffusers_pipelines import tiny
from tests.helpers.torch_compile import calls
from tests.integration.reports.report import Report, Ways


def _unet_inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    text = torch.randn(1, 7, 32, generator=generator)
    return {"sample": torch.randn(1, 4, 8, 8, generator=generator), "timestep": torch.tensor(7), "encoder_hidden_states": text}


def _close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got - expected).norm() <= 1e-3 * expected.norm()


def adapters_of_a_compiled_network(ways: Ways) -> None:
    """LoRAs loaded, scaled, switched, fused, unfused and deleted count from the next call on, compiled and accelerated."""
    peft = pytest.importorskip("peft")

    unet, inputs = tiny("sd1", shallow=True).unet, _unet_inputs()
    for name, seed in (("one", 1), ("two", 2)):
        unet.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False), name)
        generator = torch.Generator().manual_seed(seed)
        for key, weight in unet.named_parameters():
            if f".{name}." in key:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    changes = [
        lambda: unet.set_adapters(["one"], [1.0]),
        lambda: unet.set_adapters(["two"], [0.5]),
        lambda: unet.set_adapters(["one", "two"], [0.7, -0.4]),
        lambda: unet.disable_adapters(),
        lambda: unet.enable_adapters(),
        lambda: unet.fuse_lora(),
        lambda: unet.unfuse_lora(),
        lambda: unet.delete_adapters(["two"]),
    ]
    seen: list[torch.Tensor] = []
    compiled = ways.compiled(unet, fallback="pytorch")
    for change in changes:
        change()
        expected = unet(**inputs).sample
        seen.append(expected)
        _close(compiled(**inputs).sample, expected)
        with ways.accelerated(unet) as counts:
            _close(unet(**inputs).sample, expected)
            assert counts("calls") == 1
    assert calls() == len(changes)
    assert (seen[0] - seen[1]).norm() > 0.01 * seen[0].norm(), "adapters without effect would prove nothing"


def tiles_and_slices(ways: Ways) -> None:
    """A VAE that decodes in tiles and slices gives eager's picture, accelerated as a pipeline, and compiled."""
    pipe = tiny("sd1", shallow=True)
    vae = pipe.vae
    latents = torch.randn(2, 4, 24, 20, generator=torch.Generator().manual_seed(3))
    vae.enable_slicing()
    vae.enable_tiling()
    vae.tile_latent_min_size, vae.tile_sample_min_size = 8, 16
    expected = vae.decode(latents).sample
    with ov_backend.accelerate(pipe, ways.settings()) as accelerated:
        _close(vae.decode(latents).sample, expected)
        counts = accelerated.stats()["vae_decode"]
        assert counts["calls"] > 2
        assert counts["compiles"] <= 4, "tiles at the edges have other sizes"
    vae.decoder = ways.compiled(vae.decoder, dynamic=None)
    _close(vae.decode(latents).sample, expected)
    vae.disable_tiling()
    vae.decoder = vae.decoder._orig_mod
    whole = vae.decode(latents).sample
    with ov_backend.accelerate(pipe, ways.settings()):
        _close(vae.decode(latents).sample, whole)


def weights_stored_in_8_bits(ways: Ways) -> None:
    """A network whose weights are stored as float8, and cast layer by layer, answers as eagerly."""
    unet, inputs = tiny("sd1", shallow=True).unet, _unet_inputs()
    unet.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    expected = unet(**inputs).sample
    _close(ways.compiled(unet, fallback="pytorch")(**inputs).sample, expected)
    with ways.accelerated(unet, fallback="pytorch"):
        for _ in range(2):
            _close(unet(**inputs).sample, expected)


def guidance_in_turns(ways: Ways) -> None:
    """Pictures without guidance, with a scale below one and with one above are eager's, in any order, in one engine."""
    pipe = tiny("sd1", shallow=True)

    def draw(scale: float, count: int = 1) -> np.ndarray:
        given = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "np", "num_images_per_prompt": count}
        return pipe("a fox", guidance_scale=scale, generator=torch.Generator().manual_seed(5), **given).images

    turns = [(4.0, 1), (1.0, 1), (0.5, 1), (4.0, 1), (1.0, 2)]
    expected = [draw(*turn) for turn in turns]
    assert np.abs(expected[0] - expected[1]).max() > 0.01
    with ov_backend.accelerate(pipe, ways.settings()) as accelerated:
        for turn, picture in zip(turns, expected):
            assert np.abs(draw(*turn) - picture).max() < 1e-2
        assert accelerated.stats()["unet"]["compiles"] == 2, "for batches of 1 and of 2"


def transcription(ways: Ways) -> None:
    """A tiny Whisper writes eager's tokens, with its encoder accelerated, and with its forward compiled."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=16, max_target_positions=24,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    sound = torch.randn(2, 8, 32)

    def tokens() -> torch.Tensor:
        return model.generate(sound, max_new_tokens=5, do_sample=False, num_beams=1)

    expected = tokens()
    hidden = model.model.encoder(sound)[0]
    with ways.accelerated(model.model.encoder) as counts:
        _close(model.model.encoder(sound)[0], hidden)
        assert torch.equal(tokens(), expected)
        assert counts("calls") == 2
    forward = model.forward
    model.forward = ways.compiled(forward, dynamic=None, fallback="pytorch")
    assert torch.equal(tokens(), expected)
    assert calls() > 0


REPORTS = [
    Report("huggingface/diffusers#11408", adapters_of_a_compiled_network, (2, 6), full=True),
    Report("huggingface/diffusers#12521", tiles_and_slices, full=True),
    Report("huggingface/diffusers#10347", weights_stored_in_8_bits, (2, 6), full=True),
    Report("openvinotoolkit/openvino.genai#1109", guidance_in_turns, full=True),
    Report("openvinotoolkit/openvino.genai#1777", transcription, (2, 6), full=True),
]
