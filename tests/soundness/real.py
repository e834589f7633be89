"""The networks that people accelerate, as small as their classes allow, with seeded weights that do not cancel out."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.helpers import networks
from tests.helpers.networks import context, latents, seeded
from tests.soundness.case import Builder, Case

REAL: dict[str, Builder] = {}
#: Packages without which a case cannot be built, by its name.
NEEDS: dict[str, str] = {}
STEP = torch.tensor([7])
UNET: dict[str, Any] = {
    "sample_size": 8,
    "block_out_channels": (8,),
    "layers_per_block": 1,
    "attention_head_dim": 2,
    "norm_num_groups": 4,
    "down_block_types": ("CrossAttnDownBlock2D",),
    "mid_block_type": None,
    "up_block_types": ("CrossAttnUpBlock2D",),
    "cross_attention_dim": 8,
}


def real(name: str, needs: str = "") -> Callable[[Builder], Builder]:
    """Keep a builder under a name."""

    def keep(build: Builder) -> Builder:
        REAL[name], NEEDS[name] = build, needs
        return build

    return keep


def missing(name: str) -> str:
    """The package that is not installed here and that a case needs, or ""."""
    need = NEEDS.get(name, "")
    if not need or (need == "sgm" and _sgm_folder() is not None):
        return ""
    return "" if importlib.util.find_spec(need) is not None else need


def _text(seed: int = 2, width: int = 8) -> torch.Tensor:
    return torch.randn(1, 5, width, generator=torch.Generator().manual_seed(seed))


def _ldm_unet() -> torch.nn.Module:
    shape = {"model_channels": 32, "channel_mult": [1], "attention_resolutions": [1], "num_heads": 2}
    return networks.unet(**shape)


def _ldm_case(module: torch.nn.Module, **rest: Any) -> Case:
    return Case(module, (latents(1, 4, 4), STEP, context(1, 5)), **rest)


@real("ldm UNet", "ldm")
def _unet() -> Case:
    return _ldm_case(_ldm_unet())


@real("ldm VAE decoder", "ldm")
def _decoder() -> Case:
    return Case(networks.vae_decoder(), (latents(1, 4, 4),))


@real("ldm VAE encoder", "ldm")
def _encoder() -> Case:
    return Case(networks.vae_encoder(), (latents(1, 8, 8, 3),))


@real("CLIP text encoder", "transformers")
def _clip() -> Case:
    return Case(networks.text_encoder(layers=1), (torch.arange(77)[None],), {"return_dict": False})


def _sgm_folder() -> Path | None:
    if "sgm" in sys.modules:
        return Path(next(iter(sys.modules["sgm"].__path__)))
    spec = importlib.util.find_spec("sgm")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    folder = Path(os.environ.get("WEBUI_DIR", "")) / "repositories" / "generative-models" / "sgm"
    return folder if folder.is_dir() else None


def _sgm(name: str) -> Any:
    """A module of Stability's ``sgm`` without the packages' ``__init__``, which import training code."""
    folder = _sgm_folder()
    assert folder is not None
    for package in ("sgm", "sgm.modules", "sgm.modules.diffusionmodules"):
        if package not in sys.modules:
            stub = types.ModuleType(package)
            stub.__path__ = [str(folder.parent / package.replace(".", "/"))]
            sys.modules[package] = stub
    return importlib.import_module(name)


@real("sgm UNet", "sgm")
def _sgm_unet() -> Case:
    module = _sgm("sgm.modules.diffusionmodules.openaimodel").UNetModel(
        in_channels=4, model_channels=32, out_channels=4, num_res_blocks=1, attention_resolutions=[1], channel_mult=[1],
        num_head_channels=16, use_linear_in_transformer=True, transformer_depth=1, context_dim=32, adm_in_channels=16,
        num_classes="sequential", use_checkpoint=False, use_spatial_transformer=True, spatial_transformer_attn_type="softmax",
    )  # fmt: skip
    vector = torch.randn(1, 16, generator=torch.Generator().manual_seed(3))
    return Case(seeded(module), (latents(1, 4, 4), STEP), {"context": context(1, 5), "y": vector})


@real("sgm VAE decoder", "sgm")
def _sgm_decoder() -> Case:
    decoder = _sgm("sgm.modules.diffusionmodules.model").Decoder(**networks._vae_config())
    return Case(seeded(decoder), (latents(1, 4, 4),))


def _diffusers_unet(**changes: Any) -> torch.nn.Module:
    import diffusers

    return seeded(diffusers.UNet2DConditionModel(**{**UNET, **changes}))


def _diffusers_case(module: torch.nn.Module, **rest: Any) -> Case:
    return Case(module, (latents(1, 4, 4), STEP, _text()), {"return_dict": False, **rest})


@real("diffusers UNet of SD1.5", "diffusers")
def _sd15() -> Case:
    return _diffusers_case(_diffusers_unet())


@real("diffusers UNet of SDXL", "diffusers")
def _sdxl() -> Case:
    module = _diffusers_unet(
        addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=56,
        use_linear_projection=True,
    )  # fmt: skip
    added = {"text_embeds": _text(4)[:, 0], "time_ids": torch.arange(6).float()[None]}
    return _diffusers_case(module, added_cond_kwargs=added)


@real("diffusers UNet, plain attention", "diffusers")
def _plain_attention() -> Case:
    from diffusers.models.attention_processor import AttnProcessor

    module = _diffusers_unet()
    module.set_attn_processor(AttnProcessor())
    return _diffusers_case(module)


@real("diffusers UNet, sliced attention", "diffusers")
def _sliced_attention() -> Case:
    module = _diffusers_unet()
    module.set_attention_slice(1)
    return _diffusers_case(module)


class Strong:
    """An attention processor with a strength and a table, as extensions write them."""

    def __init__(self, strength: float) -> None:
        from diffusers.models.attention_processor import AttnProcessor2_0

        self.inner, self.strength, self.options = AttnProcessor2_0(), strength, {"shift": 0.25, "tensor": torch.ones(1)}

    def __call__(self, attn: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        result = self.inner(attn, hidden_states, *args, **kwargs)
        return result * self.strength + self.options["shift"] * self.options["tensor"]


@real("diffusers UNet, a processor with a strength", "diffusers")
def _strong_attention() -> Case:
    module = _diffusers_unet()
    module.set_attn_processor({name: Strong(1 + i / 4) for i, name in enumerate(module.attn_processors)})
    return _diffusers_case(module)


@real("diffusers UNet, fused projections and FreeU", "diffusers")
def _fused() -> Case:
    module = _diffusers_unet()
    module.fuse_qkv_projections()
    module.enable_freeu(s1=0.9, s2=0.2, b1=1.2, b2=1.4)
    return _diffusers_case(module)


@real("diffusers UNet with a PEFT LoRA", "peft")
def _peft_unet() -> Case:
    from peft import LoraConfig

    module = _diffusers_unet()
    torch.manual_seed(0)
    module.add_adapter(LoraConfig(r=2, lora_alpha=3, init_lora_weights=False, target_modules=["to_q", "to_v"]), "one")
    module.add_adapter(LoraConfig(r=3, init_lora_weights=False, target_modules=["to_q", "to_k"]), "two")
    module.set_adapters(["one", "two"], [0.75, 0.5])
    return _diffusers_case(module.eval().requires_grad_(False))


@real("a network with PEFT adapters", "peft")
def _peft_small() -> Case:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    module = get_peft_model(inner, LoraConfig(r=2, init_lora_weights=False, target_modules=["0", "2"]))
    return Case(module.eval().requires_grad_(False), (torch.linspace(-1, 1, 12).reshape(3, 4),))


@real("diffusers ControlNet", "diffusers")
def _controlnet() -> Case:
    import diffusers

    config = {name: value for name, value in UNET.items() if name not in ("sample_size", "up_block_types", "mid_block_type")}
    module = diffusers.ControlNetModel(**config, conditioning_embedding_out_channels=(8, 8))
    case = _diffusers_case(seeded(module))
    return Case(module, (*case.args, torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(5))), case.kwargs)


@real("diffusers AutoencoderKL", "diffusers")
def _kl() -> Case:
    import diffusers

    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    module = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, **blocks)
    return Case(seeded(module), (latents(1, 4, 4, 3),), {"return_dict": False})


@real("diffusers SD3 transformer", "diffusers")
def _sd3() -> Case:
    import diffusers

    module = diffusers.SD3Transformer2DModel(
        sample_size=4, patch_size=2, in_channels=4, out_channels=4, num_layers=1, attention_head_dim=4, num_attention_heads=2,
        joint_attention_dim=8, caption_projection_dim=8, pooled_projection_dim=8, pos_embed_max_size=4,
    )  # fmt: skip
    inputs = {"hidden_states": latents(1, 4, 4), "encoder_hidden_states": _text(), "pooled_projections": _text()[:, 0]}
    return Case(seeded(module), (), {**inputs, "timestep": STEP, "return_dict": False})


@real("T5 encoder", "transformers")
def _t5() -> Case:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0)
    return Case(seeded(T5EncoderModel(config)), (torch.arange(7)[None],), {"return_dict": False})


def _webui(module: torch.nn.Module) -> Any:
    """The LoRA extension of the stand-in for the WebUI with this UNet, classes patched as there; and what undoes that."""
    folder = str(Path(__file__).parents[1] / "hosts" / "webui" / "host")
    if folder not in sys.path:
        sys.path.append(folder)
    host = importlib.import_module("networks")
    hijack = importlib.import_module("modules.sd_hijack")
    host.patch_classes()
    hijack.patch_classes()
    # A LoRA lists the layers of the model that is loaded.
    loaded = importlib.import_module("modules.sd_models").model_data
    before, loaded.sd_model = loaded.sd_model, types.SimpleNamespace(model=module, cond_stage_model=torch.nn.Module())

    def finish() -> None:
        loaded.sd_model = before
        host.shared.loaded_hypernetworks.clear()
        host.shared.opts.lora_functional = False
        hijack.unpatch_classes()
        host.unpatch_classes()

    return host, finish


def _webui_case(**options: Any) -> tuple[Any, Case]:
    module = _ldm_unet()
    host, finish = _webui(module)
    from ov_backend.hosts.webui import patch_points
    from ov_backend.hosts.webui.a1111 import compatibility, lora

    host.shared.opts.data.update(options)
    for name, layer in module.named_modules():
        if isinstance(layer, host.CLASSES):
            layer.network_layer_name = f"diffusion_model_{name}"
    weights = lora.LoraWeights()
    owner = patch_points.HostNetwork("unet", "unet", module, "forward", module)
    case = _ldm_case(module, finish=finish, hooks=compatibility.hooks(owner), reset=lambda: weights.apply(module))
    case.refused = lambda: compatibility.refusal(owner)
    case.consumed = ("network_weights_backup",)
    return host, case


@real("WebUI UNet with LoRAs", "ldm")
def _webui_lora() -> Case:
    host, case = _webui_case()
    host.load_networks([("one", 0.8), ("two", -0.5)])
    return case


@real("WebUI UNet with LoRAs beside the weights", "ldm")
def _webui_functional() -> Case:
    host, case = _webui_case(lora_functional=True)
    host.load_networks([("one", 0.8)])
    case.hooks, case.refused = None, str
    return case


@real("WebUI UNet with a hypernetwork", "ldm")
def _webui_hypernetwork() -> Case:
    host, case = _webui_case()
    hypernetwork = importlib.import_module("modules.hypernetworks.hypernetwork")
    host.shared.loaded_hypernetworks.append(hypernetwork.Hypernetwork("h", (32,), 3))
    return case
