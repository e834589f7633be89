"""Flux and Chroma in Forge, also with weights that are stored in few bits: pictures with and without the script agree (f32).

It needs checkpoints with "flux" or "chroma" in their names, of the transformer alone, and a VAE and text encoders with "flux" in
theirs. Of few bits are checkpoints with "gguf" and the kind, such as "q8_0", in their names, and those with "nf4" or "fp4"
(of bitsandbytes, which needs 0.48 on a CPU). Forge takes all sizes but the text encoder's as those of the true Flux; small ones
need a change to its detection: ``checkpoints.py`` makes it, and writes such files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.e2e.client import Picture, WebUI, psnr
from tests.integration.e2e.extensions import use, with_lora, write_lora
from tests.integration.e2e.helpers import ALL, host_of, need

FEW_BITS = ("gguf", "nf4", "fp4")
BLOCKS = "UNet by its blocks, VAE, text encoder"


@pytest.fixture(autouse=True)
def no_network_ran_in_pytorch(webui: WebUI) -> Any:
    need(host_of(webui) == "Forge", "Flux")
    before = webui.fallbacks()
    yield
    assert not webui.fallbacks() - before


def fields_of(webui: WebUI, *words: str) -> dict[str, Any]:
    """The fields of a generation with a checkpoint of these words; without the others of few bits."""
    names = [name for name in webui.checkpoints if all(word in name.lower() for word in words)]
    names = [name for name in names if set(FEW_BITS) & set(words) or not any(bits in name.lower() for bits in FEW_BITS)]
    checkpoint = need(next(iter(names), None), f"checkpoint called {' and '.join(words)}")
    modules = [name for name in webui.names("/sdapi/v1/sd-modules", "model_name") if "flux" in name and "gguf" not in name]
    if "chroma" in words:  # it has one text encoder, T5
        modules = [name for name in modules if "clip" not in name]
    settings = {"forge_additional_modules": need(modules, "module called flux"), "live_previews_enable": False}
    guidance = 4 if "chroma" in words else 1
    sampling = {"sampler_name": "Euler", "scheduler": "Simple", "cfg_scale": guidance}
    return {"checkpoint": checkpoint, "override_settings": settings, **sampling}


@pytest.mark.parametrize("name", ["flux", "chroma"])
def test_a_transformer_is_whole(name: str, webui: WebUI, compare: Any) -> None:
    fields = fields_of(webui, name)
    first, _ = compare(ALL, **fields)
    compare(ALL, **fields, width=192, batch_size=2)
    again, _ = compare(ALL, **fields)
    assert psnr(first.images[0], again.images[0]) == float("inf")


def few_bits(name: str, bits: str, webui: WebUI, compare: Any) -> tuple[dict[str, Any], Picture]:
    """Fields and picture of a checkpoint of few bits; that layers with such weights stay in PyTorch is said."""
    fields = fields_of(webui, name, *bits.split())
    off, _ = compare(BLOCKS, **fields)
    messages = webui.api("/openvino/status")["messages"]
    assert any("stored in few bits" in message for message in messages), messages
    return fields, off.images[0]


@pytest.mark.parametrize(
    "name,bits", [("flux", "gguf q8_0"), ("flux", "gguf q4_k"), ("flux", "nf4"), ("flux", "fp4"), ("chroma", "gguf q8_0")]
)
def test_weights_of_few_bits_stay_with_their_layers(name: str, bits: str, webui: WebUI, compare: Any) -> None:
    few_bits(name, bits, webui, compare)


@pytest.mark.parametrize("lora_mode", ["Automatic", "Automatic (fp16 LoRA)"])
def test_a_lora_of_weights_of_few_bits(lora_mode: str, webui: WebUI, compare: Any, tmp_path: Path) -> None:
    """Forge merges a LoRA into the few bits, or adds it at each call ("fp16 LoRA"); for nf4 and fp4 it needs a graphics card."""
    plain = fields_of(webui, "flux")
    use(webui, plain["checkpoint"], plain["override_settings"])
    prompt = with_lora(write_lora(webui, tmp_path))
    fields, before = few_bits("flux", "gguf q4_0", webui, compare)
    fields["override_settings"] |= {"forge_unet_storage_dtype": lora_mode}
    compare(BLOCKS, **fields)
    with_it, _ = compare(BLOCKS, **fields, prompt=prompt)
    assert psnr(before, with_it.images[0]) < 50, "the LoRA changes nothing"
    after, _ = compare(BLOCKS, **fields)
    assert psnr(before, after.images[0]) == float("inf")
