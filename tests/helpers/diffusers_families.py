"""Tiny pipelines of every family that diffusers has for pictures, and the ways to draw with each.

A family is a function that returns a pipeline and its draws; where the installed packages lack it, the function raises
ImportError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tests.helpers.diffusers_pipelines import WIDTH, text, tiny
from tests.helpers.networks import seeded

Draw = Callable[[], Any]


@dataclass(frozen=True)
class Family:
    """One family: its pipeline, and functions without arguments, each of which draws pictures [N, H, W, 3] in another way."""

    pipe: Any
    draws: list[Draw]


FAMILIES: dict[str, Callable[[], Family]] = {}
_SIZE = (16, 24)
_PROMPT = {"prompt": "a red fox in the snow", "negative_prompt": "blurred"}
#: Levels of a network on two levels, as UNet and ControlNet have them.
_DOWN = {"block_out_channels": (32, 64), "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}


def _family(name: str) -> Callable[[Callable[[], Family]], Callable[[], Family]]:
    def add(make: Callable[[], Family]) -> Callable[[], Family]:
        FAMILIES[name] = make
        return make

    return add


def noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _draw(pipe: Any, **changes: Any) -> Any:
    height, width = _SIZE
    given = {"num_inference_steps": 3, "guidance_scale": 4.0, "height": height, "width": width, "output_type": "np", **changes}
    result = pipe(**given, generator=torch.Generator().manual_seed(5))
    return np.asarray(result.images if hasattr(result, "images") else result.frames)


def _parts(shallow: bool = False, **changes: Any) -> dict[str, Any]:
    """The parts of a pipeline of SD 1, for another class of pipeline."""
    return {**{name: part for name, part in tiny("sd1", shallow).components.items() if name != "image_encoder"}, **changes}


def _hint(seed: int = 1) -> torch.Tensor:
    return torch.rand(1, 3, *_SIZE, generator=torch.Generator().manual_seed(seed))


# --- networks beside the UNet ------------------------------------------------------------------------------------------


def _controlnet(seed: int) -> torch.nn.Module:
    from diffusers import ControlNetModel

    config = {"layers_per_block": 1, "cross_attention_dim": WIDTH, "attention_head_dim": 4, "norm_num_groups": 8}
    return seeded(ControlNetModel(**_DOWN, **config, conditioning_embedding_out_channels=(16, 32)), seed)


@_family("ControlNet")
def _one_controlnet() -> Family:
    from diffusers import StableDiffusionControlNetPipeline

    pipe = StableDiffusionControlNetPipeline(**_parts(controlnet=_controlnet(10)), requires_safety_checker=False)
    draw = partial(_draw, pipe, **_PROMPT, image=_hint())
    part_of_the_steps = {"control_guidance_start": 0.4, "control_guidance_end": 0.8}
    return Family(pipe, [draw, partial(draw, controlnet_conditioning_scale=0.5), partial(draw, **part_of_the_steps)])


@_family("two ControlNets")
def _two_controlnets() -> Family:
    from diffusers import StableDiffusionControlNetPipeline

    nets = [_controlnet(seed) for seed in (10, 11)]
    pipe = StableDiffusionControlNetPipeline(**_parts(controlnet=nets), requires_safety_checker=False)
    draw = partial(_draw, pipe, **_PROMPT, image=[_hint(1), _hint(2)])
    return Family(pipe, [partial(draw, controlnet_conditioning_scale=scales) for scales in ([0.7, 0.4], [0.2, 1.0])])


def _adapter(seed: int) -> Any:
    from diffusers import T2IAdapter

    shape = {"in_channels": 3, "channels": [32], "num_res_blocks": 2, "downscale_factor": 2}
    return seeded(T2IAdapter(**shape, adapter_type="full_adapter"), seed)


@_family("T2I-Adapter")
def _t2i_adapter() -> Family:
    from diffusers import StableDiffusionAdapterPipeline

    pipe = StableDiffusionAdapterPipeline(**_parts(shallow=True, adapter=_adapter(11)), requires_safety_checker=False)
    return Family(pipe, [partial(_draw, pipe, **_PROMPT, image=_hint(), adapter_conditioning_scale=s) for s in (0.8, 0.3)])


@_family("two T2I-Adapters")
def _two_t2i_adapters() -> Family:
    from diffusers import MultiAdapter, StableDiffusionAdapterPipeline

    adapter = MultiAdapter([_adapter(11), _adapter(12)])
    pipe = StableDiffusionAdapterPipeline(**_parts(shallow=True, adapter=adapter), requires_safety_checker=False)
    return Family(pipe, [partial(_draw, pipe, **_PROMPT, image=[_hint(1), _hint(2)], adapter_conditioning_scale=[0.8, 0.3])])


@_family("IP-Adapter")
def _ip_adapter() -> Family:
    from PIL import Image
    from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

    pipe = tiny("sd1", shallow=True)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = CLIPVisionConfig(**sizes, image_size=32, patch_size=8, projection_dim=WIDTH)
    processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    pipe.register_modules(image_encoder=seeded(CLIPVisionModelWithProjection(vision), 20), feature_extractor=processor)
    pipe.unet._load_ip_adapter_weights([_ip_adapter_weights(pipe.unet)])
    picture = Image.fromarray((_hint(3)[0].permute(1, 2, 0) * 255).byte().numpy())

    def at(scale: float) -> Any:
        pipe.set_ip_adapter_scale(scale)
        return _draw(pipe, **_PROMPT, ip_adapter_image=picture)

    return Family(pipe, [partial(at, scale) for scale in (1.0, 0.4, 1.0)])


def _ip_adapter_weights(unet: Any) -> dict[str, dict[str, torch.Tensor]]:
    """A file's content: four tokens of the picture, and two matrices for each cross attention."""
    projection = {"proj.weight": noise(3, 4 * WIDTH, WIDTH) / WIDTH**0.5, "proj.bias": torch.zeros(4 * WIDTH)}
    projection |= {"norm.weight": torch.ones(WIDTH), "norm.bias": torch.zeros(WIDTH)}
    crossing = [name.removesuffix(".processor") for name in unet.attn_processors if "attn2" in name]
    shapes = [unet.get_submodule(name).to_k.weight.shape for name in crossing]
    matrices = {
        f"{2 * i + 1}.{name}": noise(i, *shape) / WIDTH**0.5
        for i, shape in enumerate(shapes)
        for name in ("to_k_ip.weight", "to_v_ip.weight")
    }
    return {"image_proj": projection, "ip_adapter": matrices}


# --- what changes the UNet ---------------------------------------------------------------------------------------------


@_family("LoRAs of PEFT")
def _peft() -> Family:
    from peft import LoraConfig

    pipe = tiny("sd1", shallow=True)
    for name in ("first", "second"):
        targets = ["to_q", "to_k", "to_v", "to_out.0", "conv1"]
        pipe.unet.add_adapter(LoraConfig(r=4, lora_alpha=4, init_lora_weights="gaussian", target_modules=targets), name)
    for number, (name, weight) in enumerate(pipe.unet.named_parameters()):
        if "lora_" in name:
            weight.data = 0.1 * noise(number, *weight.shape)

    def at(weights: dict[str, float]) -> Any:
        pipe.unet.set_adapters(list(weights), list(weights.values()))
        return _draw(pipe, **_PROMPT)

    def without() -> Any:
        pipe.unet.disable_adapters()
        try:
            return _draw(pipe, **_PROMPT)
        finally:
            pipe.unet.enable_adapters()

    mixes = [{"first": 1.0}, {"first": 0.5}, {"first": 0.5, "second": 0.8}, {"first": 1.0}]
    return Family(pipe, [*(partial(at, mix) for mix in mixes), without])


@_family("AnimateDiff")
def _animate_diff() -> Family:
    from diffusers import AnimateDiffPipeline, MotionAdapter

    sizes = {"motion_layers_per_block": 1, "motion_norm_num_groups": 8, "motion_num_attention_heads": 4}
    motion = MotionAdapter(block_out_channels=(32, 64), **sizes, motion_mid_block_layers_per_block=1)
    checker = ("safety_checker", "requires_safety_checker")
    parts = {name: part for name, part in _parts(motion_adapter=seeded(motion, 30)).items() if name not in checker}
    pipe = AnimateDiffPipeline(**parts)
    return Family(pipe, [partial(_draw, pipe, **_PROMPT, num_frames=4)])


@_family("LCM")
def _lcm() -> Family:
    from diffusers import LatentConsistencyModelPipeline, LCMScheduler, UNet2DConditionModel

    parts = _parts(scheduler=LCMScheduler(beta_schedule="scaled_linear", clip_sample=False))
    config = {name: value for name, value in parts["unet"].config.items() if not name.startswith("_")}
    unet = seeded(UNet2DConditionModel(**{**config, "time_cond_proj_dim": 16}), 1)
    pipe = LatentConsistencyModelPipeline(**{**parts, "unet": unet}, requires_safety_checker=False)
    return Family(pipe, [partial(_draw, pipe, prompt=_PROMPT["prompt"], guidance_scale=scale) for scale in (4.0, 7.5)])


@_family("SDXL-Turbo")
def _turbo() -> Family:
    from diffusers import EulerAncestralDiscreteScheduler

    pipe = tiny("sdxl", shallow=True)
    pipe.scheduler = EulerAncestralDiscreteScheduler(timestep_spacing="trailing", beta_schedule="scaled_linear")
    draw = partial(_draw, pipe, prompt=_PROMPT["prompt"], guidance_scale=0.0)
    return Family(pipe, [partial(draw, num_inference_steps=steps) for steps in (1, 4)])


# --- transformers in the place of the UNet -----------------------------------------------------------------------------


def _vae_16() -> torch.nn.Module:
    """A VAE of 16 channels, as SD3 and Flux have it."""
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    no_convolutions = {"use_quant_conv": False, "use_post_quant_conv": False}
    sizes = {"block_out_channels": (16, 32), "latent_channels": 16, "norm_num_groups": 8, "sample_size": 16}
    return seeded(AutoencoderKL(**blocks, **no_convolutions, **sizes, shift_factor=0.06, scaling_factor=1.5), 2)


@_family("SD3")
def _sd3() -> Family:
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    sizes = {"sample_size": 8, "patch_size": 1, "in_channels": 16, "out_channels": 16, "num_layers": 2, "pos_embed_max_size": 24}
    widths = {"attention_head_dim": 8, "num_attention_heads": 4, "caption_projection_dim": 32}
    transformer = SD3Transformer2DModel(**sizes, **widths, joint_attention_dim=2 * WIDTH, pooled_projection_dim=2 * WIDTH)
    tokenizer = tiny("sd1", shallow=True).tokenizer
    encoders = {"text_encoder": text(3, projection=True), "text_encoder_2": text(4, projection=True, hidden_act="gelu")}
    pipe = StableDiffusion3Pipeline(
        seeded(transformer, 1),
        FlowMatchEulerDiscreteScheduler(),
        _vae_16(),
        **encoders,
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    return Family(pipe, [partial(_draw, pipe, **_PROMPT)])


@_family("Flux")
def _flux() -> Family:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    sizes = {"patch_size": 1, "in_channels": 64, "num_layers": 1, "num_single_layers": 1, "axes_dims_rope": (4, 4, 8)}
    widths = {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": WIDTH, "pooled_projection_dim": WIDTH}
    transformer = seeded(FluxTransformer2DModel(**sizes, **widths, guidance_embeds=True), 1)
    no_text = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = FluxPipeline(FlowMatchEulerDiscreteScheduler(), _vae_16(), **no_text, transformer=transformer)
    return Family(pipe, [partial(_draw, pipe, prompt_embeds=noise(5, 1, 7, WIDTH), pooled_prompt_embeds=noise(6, 1, WIDTH))])


def _encoded_prompts() -> dict[str, Any]:
    """Prompts of seven tokens, of which two are padding; the text encoders of these families have tests of their own."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    embeds = {"prompt_embeds": noise(5, 1, 7, WIDTH), "negative_prompt_embeds": noise(6, 1, 7, WIDTH)}
    masks = {"prompt_attention_mask": mask, "negative_prompt_attention_mask": mask}
    return {"prompt": None, "negative_prompt": None, "use_resolution_binning": False, **embeds, **masks}


def _pixart(pipeline: str, sample_size: int) -> Family:
    import diffusers

    if diffusers.__version__ < "0.31":
        raise ImportError("before 0.31 diffusers computes PixArt's positions with numpy, which stays in PyTorch")
    sizes = {"num_attention_heads": 3, "attention_head_dim": 16, "num_layers": 2, "norm_num_groups": 8, "patch_size": 2}
    widths = {"in_channels": 4, "out_channels": 8, "cross_attention_dim": 48, "caption_channels": WIDTH}
    transformer = seeded(diffusers.PixArtTransformer2DModel(**sizes, **widths, sample_size=sample_size), 1)
    others = {"vae": tiny("sd1", shallow=True).vae, "scheduler": diffusers.DPMSolverMultistepScheduler()}
    pipe = getattr(diffusers, pipeline)(tokenizer=None, text_encoder=None, transformer=transformer, **others)
    return Family(pipe, [partial(_draw, pipe, **_encoded_prompts())])


#: PixArt alpha of 1024 pixels takes the size of the picture as a condition; sigma does not.
FAMILIES["PixArt alpha"] = partial(_pixart, "PixArtAlphaPipeline", 128)
FAMILIES["PixArt sigma"] = partial(_pixart, "PixArtSigmaPipeline", 8)


@_family("Sana")
def _sana() -> Family:
    from diffusers import AutoencoderDC, FlowMatchEulerDiscreteScheduler, SanaPipeline, SanaTransformer2DModel

    heads = {"num_attention_heads": 2, "attention_head_dim": 16, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16}
    widths = {"cross_attention_dim": WIDTH, "caption_channels": WIDTH, "in_channels": 8, "out_channels": 8}
    transformer = seeded(SanaTransformer2DModel(**heads, **widths, patch_size=1, num_layers=1, sample_size=8), 1)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "block_types": ("ResBlock", "EfficientViTBlock"),
            "block_out_channels": (16, 32),
            "qkv_multiscales": ((), (5,)),
            "layers_per_block": (1, 1),
        }.items()
    }
    kinds = {"downsample_block_type": "conv", "upsample_block_type": "interpolate"}
    norms = {"decoder_norm_types": "rms_norm", "decoder_act_fns": "silu", "scaling_factor": 0.41}
    vae = seeded(AutoencoderDC(latent_channels=8, attention_head_dim=8, **sides, **kinds, **norms), 2)
    pipe = SanaPipeline(None, None, vae, transformer, FlowMatchEulerDiscreteScheduler(shift=3.0))
    return Family(pipe, [partial(_draw, pipe, **_encoded_prompts(), height=32, width=64)])
