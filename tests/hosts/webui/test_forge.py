"""The host Forge: where its networks stand, the calls of its denoisers, LoRAs that exchange parameters, and attention."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from ov_backend.hosts.webui.patch_points import HostNetwork, PatchPoint


class UNet(torch.nn.Module):
    """Reads options and control as Forge's UNet does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(
        self, x: Any, timesteps: Any = None, context: Any = None, control: Any = None, transformer_options: Any = None, **_: Any
    ) -> torch.Tensor:
        transformer_options["block"] = ("input", 0)
        h = self.first(x) + context.sum() + timesteps[:, None]
        if control is not None and control["output"]:
            h = h + control["output"].pop()
        return self.second(h)


class Transformer(torch.nn.Module):
    """Takes its timesteps by another name and reads no options, as Forge's Flux does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any, timestep: Any, context: Any, guidance: Any = None, **_: Any) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + timestep[:, None] + context.sum() + guidance[:, None]
        return result


class Coder(torch.nn.Linear):
    """Half of a VAE."""


class Encoder(torch.nn.Linear):
    """The layers of a text encoder."""


class Patcher:
    """Exchanges a parameter under inference mode, and puts the old one back, as Forge's merging of LoRAs does."""

    def __init__(self, model: torch.nn.Module, layer: torch.nn.Module | None = None) -> None:
        self.model, self.layer, self.wanted = model, layer, 0.0
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self._merged, self._backup = 0.0, None

    @torch.inference_mode()
    def refresh_loras(self) -> None:
        if self.layer is None or self.wanted == self._merged:
            return
        self._backup = self.layer.weight if self._backup is None else self._backup  # type: ignore[assignment]
        merged = self._backup if not self.wanted else self._backup + self.wanted  # type: ignore[operator]
        self.layer.weight = merged if not self.wanted else torch.nn.Parameter(merged, requires_grad=False)  # type: ignore
        self._merged = self.wanted


class KModel(torch.nn.Module):
    """Stands around the denoiser; nobody calls it."""

    def __init__(self, denoiser: torch.nn.Module) -> None:
        super().__init__()
        self.diffusion_model = denoiser


@pytest.fixture
def forge(_webui: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The host with one model, of the classes here."""
    from ov_backend.hosts.webui import forge, unet_call

    def point(name: str, switch: str, **more: Any) -> PatchPoint:
        return PatchPoint(__name__, name, "forward", switch, **more)

    called: dict[str, Any] = {"arguments": unet_call.arguments, "traced": unet_call.with_fresh_dicts}
    points = (point("UNet", "unet", **called), point("Transformer", "unet", **called))
    monkeypatch.setattr(forge.HOST, "patch_points", (*points, point("Coder", "vae"), point("Encoder", "text_encoder")), False)
    unet, text = UNet(), torch.nn.Sequential(Encoder(4, 4), Encoder(4, 4))
    vae = torch.nn.ModuleDict({"encoder": Coder(4, 4), "decoder": Coder(4, 4)})
    objects = SimpleNamespace(
        unet=Patcher(KModel(unet), unet.first),
        vae=SimpleNamespace(first_stage_model=SimpleNamespace(**vae, modules=vae.modules)),
        clip=SimpleNamespace(cond_stage_model=text, patcher=Patcher(text)),
    )
    model = SimpleNamespace(forge_objects=objects, get_prompt_lengths_on_ui=lambda prompt: (3, 75))
    monkeypatch.setattr(forge.sd_models.model_data, "sd_model", model)
    return forge.HOST


def call_of(step: int, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of one step, as Forge passes them."""
    mark = torch.tensor([0.0, 1.0])
    given = {"sigmas": mark * step, "cond_mark": mark, "cond_indices": [0], "uncond_indices": [1], "cond_or_uncond": [0, 1]}
    kwargs = {"context": torch.randn(2, 3), "control": {"output": [torch.randn(2, 4)]}, "control_model": object()}
    return (torch.randn(2, 4), torch.full((2,), 900.0 - step)), {**kwargs, "transformer_options": {**given, **options}}


def unet_of(forge: Any) -> HostNetwork:
    return next(network for network in forge.networks_of(forge.model()) if network.role == "unet")


def test_networks_stand_in_the_objects_of_the_model(forge: Any) -> None:
    roles = [network.role for network in forge.networks_of(forge.model())]
    assert roles == ["unet", "vae_encode", "vae_decode", "text_encoder", "text_encoder_2"]
    assert {type(part) for part in forge.parts(forge.model())} >= {KModel, UNet, Coder, Encoder}
    assert forge.tokens("a cat") == 75


def test_what_stands_there_before_a_model_is_loaded_is_none(forge: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from modules import sd_models

    for nothing in (None, SimpleNamespace(cond_stage_model=None)):
        monkeypatch.setattr(sd_models.model_data, "sd_model", nothing)
        assert forge.model() is None
        assert forge.models() == forge.networks_of(forge.model()) == []
        forge.update_weights(torch.nn.Identity())


def test_a_unet_is_one_graph_whatever_the_sampler_says_of_a_step(forge: Any, strict: Callable[..., Settings]) -> None:
    place = unet_of(forge)
    network = Engine(strict()).network("unet", place.module, place.bound(UNet.forward))
    for step in range(3):
        args, kwargs = call_of(step)
        assert not forge.refusal(place, args, kwargs)
        inputs, named = place.arguments(args, kwargs)
        torch.testing.assert_close(network(*inputs, **named), place.owner(*args, **kwargs))
    assert (network.statistics.compiles, network.statistics.calls) == (1, 3)


def test_a_transformer_that_reads_no_options_is_whole_whatever_they_hold(
    forge: Any, strict: Callable[..., Settings]
) -> None:
    transformer = Transformer()
    place = HostNetwork.at(forge.patch_points[1], transformer, "unet")
    network = Engine(strict()).network("unet", transformer, place.bound(Transformer.forward))
    args, kwargs = call_of(0, patches={"attn1_patch": [len]})
    kwargs["guidance"] = torch.ones(2)
    assert not forge.refusal(place, args, kwargs)
    inputs, named = place.arguments(args, kwargs)
    torch.testing.assert_close(network(*inputs, **named), transformer(*args, **kwargs))


def test_a_function_of_an_extension_in_the_options_is_named_before_a_call_and_in_it(forge: Any) -> None:
    place = unet_of(forge)
    options = {"patches": {"output_block_patch": [len]}}
    assert "output_block_patch" in forge.refusal(place, *call_of(0, **options))
    assert not forge.refusal(place)
    forge.model().forge_objects.unet.model_options["transformer_options"] = options
    assert "output_block_patch" in forge.refusal(place)


def test_a_lora_that_exchanges_a_parameter_is_seen_and_its_removal_compiles_nothing(
    forge: Any, strict: Callable[..., Settings]
) -> None:
    place = unet_of(forge)
    network = Engine(strict(), keeps_unloaded=True).network("unet", place.module, place.bound(UNet.forward))
    patcher = forge.model().forge_objects.unet
    with torch.inference_mode():
        for strength in (0.0, 0.5, 1.0, 0.0, 0.5):
            patcher.wanted = strength
            forge.update_weights(place.module)
            args, kwargs = call_of(0)
            inputs, named = place.arguments(args, kwargs)
            torch.testing.assert_close(network(*inputs, **named), place.owner(*args, **kwargs))
    assert (network.statistics.captures, network.statistics.compiles) == (1, 3)


def test_a_lora_that_is_added_at_each_call_of_a_layer_is_left_to_the_layer(forge: Any) -> None:
    place = unet_of(forge)
    place.module.first.forge_online_loras = {"weight": [1]}  # type: ignore[union-attr,assignment]
    assert "at each call of a layer" in forge.refusal(place, *call_of(0))
    assert forge.hooks(place).block_refusal(place.module.first)
    assert not forge.hooks(place).block_refusal(place.module.second)


@pytest.mark.parametrize("mark", ["gguf_cls", "bnb_quantized"])
def test_weights_that_a_layer_computes_from_few_bits_are_left_to_the_layer(mark: str, forge: Any) -> None:
    place = unet_of(forge)
    setattr(place.module.first.weight, mark, None)
    assert "stored in few bits (Parameter)" in forge.refusal(place, *call_of(0))
    assert forge.hooks(place).block_refusal(place.module.first)
    assert not forge.hooks(place).block_refusal(place.module.second)


_VARIANTS = """
import torch
def attention_pytorch(q, k, v, heads):
    q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
def attention_sub_quad(q, k, v, heads):
    return torch.cat([attention_pytorch(part, k, v, heads) for part in q.split(2, 1)], 1)
def attention_of_another_scale(q, k, v, heads):
    return attention_pytorch(q * 2, k, v, heads)
"""


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A module of Forge's variants of attention, and one of a network that has taken one of them."""
    variants: Any = types.ModuleType("backend.attention")
    variants.__file__ = str(tmp_path / "attention.py")
    exec(compile(_VARIANTS, variants.__file__, "exec"), vars(variants))
    network: Any = types.ModuleType("backend.nn.unet")
    for module in (variants, network):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(variants=variants, network=network)


@pytest.mark.parametrize(
    "variant,exchanged", [("attention_sub_quad", True), ("attention_of_another_scale", False), (None, False)]
)
def test_a_trace_sees_attention_in_one_piece_where_that_is_the_same(
    variant: str | None, exchanged: bool, forge: Any, attention: Any
) -> None:
    own = len if variant is None else getattr(attention.variants, variant)
    attention.network.attention_function = own
    with forge.hooks(unet_of(forge)).tracing():
        assert attention.network.attention_function is (attention.variants.attention_pytorch if exchanged else own)
    assert attention.network.attention_function is own
