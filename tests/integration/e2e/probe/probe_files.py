"""Files of random weights that fit the model in use: ControlNets, T2I-Adapters and LoRAs of every kind.

The extension's folder is importable only while its scripts load; they import this file then.
"""

import sys

import torch
from modules import shared
from safetensors.torch import save_file


def roots_in_use():
    """By name, the modules that the model in use consists of; in Forge they stand beside it, and at first there are none."""
    model = shared.sd_model
    if not hasattr(model, "model"):
        objects = getattr(model, "forge_objects", None)
        if objects is None:
            return {}
        return {"unet": objects.unet.model, "vae": objects.vae.first_stage_model, "text": objects.clip.cond_stage_model}
    return {"unet": model.model, "vae": model.first_stage_model, "text": model.cond_stage_model}


def unet_in_use():
    """The UNet of the model in use."""
    return roots_in_use()["unet"].diffusion_model


def write_controlnet(file, seed):
    """Write a ControlNet for the UNet in use; the loader knows true sizes alone, and is told this one."""
    guess = sys.modules["scripts.controlnet_model_guess"]
    unet = unet_in_use()
    context = next(module for name, module in unet.named_modules() if name.endswith("attn2.to_k")).in_features
    sizes = {"model_channels": unet.model_channels, "channel_mult": list(unet.channel_mult), "context_dim": context}
    if getattr(shared.sd_model, "is_sdxl", False):
        config = guess.controlnet_sdxl_mid_config
        sizes.update(adm_in_channels=unet.label_emb[0][0].in_features, num_head_channels=unet.num_head_channels)
    else:
        config = guess.controlnet_default_config
        sizes.update(num_heads=unet.num_heads)
    config.update(sizes, use_fp16=False)
    write_random(sys.modules["scripts.cldm"].ControlNet(**config, hint_channels=3), "control_model.", file, seed)


def write_adapter(file, seed):
    """Write a T2I-Adapter of the light kind for the UNet in use, likewise."""
    config = sys.modules["scripts.controlnet_model_guess"].t2i_adapter_light_config
    unet = unet_in_use()
    config.update(channels=[unet.model_channels * factor for factor in unet.channel_mult])
    write_random(sys.modules["scripts.adapter"].Adapter_light(**config), "adapter.", file, seed)


def write_random(network, prefix, file, seed):
    """Write a network's file with random weights."""
    torch.manual_seed(seed)
    weights = {f"{prefix}{name}": weight for name, weight in network.state_dict().items()}
    for name, weight in weights.items():
        if weight.dim() > 1:
            weights[name] = 0.7 * torch.randn(weight.shape) / weight[0].numel() ** 0.5
    save_file({name: weight.contiguous() for name, weight in weights.items()}, file)


# ---- LoRAs: each function returns the weights of one layer, which change it by a part of its own spread


def lora(weight, rank=4):
    """Two factors; of a convolution the first one has its size."""
    out, width, *size = weight.shape
    ones = [1] * len(size)
    factor = 0.15 * weight.std() / rank**0.5
    return {
        "lora_up.weight": torch.randn(out, rank, *ones) * factor,
        "lora_down.weight": torch.randn(rank, width, *size),
        "alpha": torch.tensor(float(rank)),
    }


def lora_of_three(weight, rank=4):
    """Three factors, for convolutions of 3 by 3."""
    if weight.dim() != 4 or weight.shape[2] == 1:
        return lora(weight)
    factors = lora(weight, rank)
    size = weight.shape[2:]
    narrow = {"lora_down.weight": torch.randn(rank, weight.shape[1], 1, 1), "lora_mid.weight": torch.randn(rank, rank, *size) / 2}
    return {**factors, **narrow}


def dora(weight):
    """Two factors, and the norm that each column is to have."""
    norms = weight.transpose(0, 1).reshape(weight.shape[1], -1).norm(dim=1).reshape(1, -1, *[1] * (weight.dim() - 2))
    return {**lora(weight), "dora_scale": norms * (1 + 0.1 * torch.randn(norms.shape))}


def loha(weight, rank=4):
    """Two products, multiplied with each other."""
    out, width = weight.shape[0], weight[0].numel()
    factor = 0.15 * weight.std() / rank
    first = {"hada_w1_a": torch.randn(out, rank), "hada_w1_b": torch.randn(rank, width) * factor}
    second = {"hada_w2_a": torch.randn(out, rank), "hada_w2_b": torch.randn(rank, width)}
    return {**first, **second, "alpha": torch.tensor(float(rank))}


def lokr(weight):
    """A Kronecker product."""
    out, width, *size = weight.shape
    second = torch.randn(out // 4, width // 4, *size) * 0.15 * weight.std()
    return {"lokr_w1": torch.randn(4, 4), "lokr_w2": second, "alpha": torch.tensor(1.0)}


def ia3(weight):
    """A factor for each output."""
    return {"weight": 0.1 * torch.randn(weight.shape[0]), "on_input": torch.tensor(False)}


def full(weight):
    """A difference."""
    return {"diff": torch.randn(weight.shape) * 0.15 * weight.std()}


def oft(weight):
    """A rotation of the outputs."""
    side = weight.shape[0] // 4
    return {"oft_blocks": 0.05 * torch.randn(4, side, side), "alpha": torch.tensor(0.02)}


def glora(weight, rank=4):
    """A change that depends on the weight, and one that does not."""
    out, width = weight.shape
    first = {"a1.weight": torch.randn(rank, width) * 0.1, "a2.weight": torch.randn(width, rank) * 0.1 / width**0.5}
    second = {"b1.weight": torch.randn(rank, width), "b2.weight": torch.randn(out, rank) * 0.1 * weight.std()}
    return {**first, **second, "alpha": torch.tensor(float(rank))}


def norm(weight):
    """A difference of a normalisation's weight and bias."""
    return {"w_norm": 0.05 * torch.randn(weight.shape), "b_norm": 0.05 * torch.randn(weight.shape)}


#: By kind, the function and the classes of layers of the UNet that it is for; Forge's are its own, with PyTorch's names.
LINEAR, MATRICES = ("Linear",), ("Linear", "Conv2d")
KINDS = {
    "lora": (lora, LINEAR),
    "convolutions": (lora, MATRICES),
    "three factors": (lora_of_three, MATRICES),
    "dora": (dora, MATRICES),
    "loha": (loha, MATRICES),
    "lokr": (lokr, LINEAR),
    "ia3": (ia3, LINEAR),
    "full": (full, MATRICES),
    "oft": (oft, LINEAR),
    "glora": (glora, LINEAR),
    "norm": (norm, ("GroupNorm", "LayerNorm")),
}


def write_lora(file, kind, seed):
    """Write a LoRA for the UNet in use, and make the LoRA extensions find it."""
    torch.manual_seed(seed)
    if hasattr(shared.sd_model, "diffusers_weight_mapping"):
        weights = lora_of_sd3()
    else:
        function, classes = KINDS[kind]
        layers = {n: m for n, m in unet_in_use().named_modules() if is_one_of(m, classes)}
        layers = {n: m for n, m in layers.items() if not n.startswith(("time_embed", "out.", "label_emb"))}
        parts = {f"lora_unet_{name.replace('.', '_')}": function(plain_weight(layer)) for name, layer in layers.items()}
        weights = {f"{name}.{part}": weight for name, each in parts.items() for part, weight in each.items()}
    save_file({name: weight.contiguous() for name, weight in weights.items()}, file)
    register(file)


def is_one_of(module, classes):
    """Whether a module's class, or one that it is derived from, bears one of these names."""
    return any(cls.__name__ in classes for cls in type(module).__mro__)


def plain_weight(layer):
    """A layer's weight without the LoRAs that are set."""
    backup = getattr(layer, "network_weights_backup", None)
    return (layer.weight if backup is None else backup).detach().float()


def lora_of_sd3():
    """Two factors for every projection that the WebUI's names for SD3 reach."""
    layers = {f"diffusion_model_{n.replace('.', '_')}": m for n, m in unet_in_use().named_modules()}
    weights = {}
    for source, target in shared.sd_model.diffusers_weight_mapping():
        name, is_part = target.removesuffix("_proj"), target.endswith(("_q_proj", "_k_proj", "_v_proj"))
        layer = layers.get(name[:-2] if is_part else target)
        if layer is None:  # the WebUI has a name that no layer bears
            continue
        rows = layer.out_features // 3 if is_part else layer.out_features
        factors = lora(plain_weight(layer)[:rows])
        weights |= {f"{source}.lora_B.weight": factors["lora_up.weight"], f"{source}.lora_A.weight": factors["lora_down.weight"]}
    return weights


def register(file):
    """Add a file to the lists of the LoRA extensions, as if it lay in their folder."""
    for name, of_one in (("networks", "network"), ("l_networks", "l_network")):
        extension = sys.modules.get(name)
        if extension is not None:
            entry = sys.modules[of_one].NetworkOnDisk(file.stem, str(file))
            extension.available_networks[file.stem] = extension.available_network_aliases[file.stem] = entry
