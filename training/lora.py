"""LoRA on ldm's UNet and the text encoder, saved under the key names of kohya's trainer."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from .networks import config
from .state import Pair

UNET_TARGET = re.compile(r"transformer_blocks\.\d+\.(attn[12]\.(to_[qkv]|to_out\.0)|ff\.net\.(0\.proj|2))$|proj_(in|out)$")
TEXT_TARGET = re.compile(r"(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])$")


def diffusers_name(name: str) -> str:
    """The diffusers name of a module in a spatial transformer of ldm's UNet (``input_blocks.1.1.proj_in``, say)."""
    blocks = config()["unet_config"]["params"]["num_res_blocks"] + 1
    kind, *rest = name.split(".")
    if kind == "middle_block":
        return ".".join(["mid_block", "attentions", "0", *rest[1:]])
    number = int(rest[0])
    level, index = divmod(number - 1 if kind == "input_blocks" else number, blocks)
    return ".".join(["down_blocks" if kind == "input_blocks" else "up_blocks", str(level), "attentions", str(index), *rest[2:]])


def targets(pair: Pair) -> dict[str, nn.Module]:
    """The layers that get a LoRA, by kohya's names."""
    layers = {}
    for name, module in pair.unet.named_modules():
        if UNET_TARGET.search(name) and name.split(".")[0] in ("input_blocks", "middle_block", "output_blocks"):
            layers["lora_unet_" + diffusers_name(name).replace(".", "_")] = module
    for name, module in pair.text.named_modules():
        if TEXT_TARGET.search(name):
            layers["lora_te_" + name.replace(".", "_")] = module
    return layers


class Lora(nn.Module):
    """Low-rank updates of frozen layers, added by forward hooks.

    Args:
        pair: the frozen networks.
        rank: of every update; alpha is equal to it, so that the scale is one.
    """

    def __init__(self, pair: Pair, rank: int) -> None:
        super().__init__()
        self.rank, self.names = rank, list(targets(pair))
        self.down, self.up = nn.ParameterList(), nn.ParameterList()
        self.multiplier, self.handles = 1.0, []
        for index, module in enumerate(targets(pair).values()):
            weight = module.weight
            self.down.append(torch.randn(rank, *weight.shape[1:], device=weight.device) * weight[0].numel() ** -0.5)
            self.up.append(torch.zeros(weight.shape[0], rank, *weight.shape[2:], device=weight.device))
            self.handles.append(module.register_forward_hook(self._hook(index)))

    def _hook(self, index: int):
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            apply = F.conv2d if isinstance(module, nn.Conv2d) else F.linear
            return output + self.multiplier * apply(apply(inputs[0], self.down[index]), self.up[index])

        return add

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def save(self, path: Path, metadata: dict[str, str]) -> None:
        """Write a file with kohya's key names, in float16."""
        tensors = {}
        for name, down, up in zip(self.names, self.down, self.up, strict=True):
            tensors[f"{name}.lora_down.weight"] = down.detach().half().cpu().contiguous()
            tensors[f"{name}.lora_up.weight"] = up.detach().half().cpu().contiguous()
            tensors[f"{name}.alpha"] = torch.tensor(float(self.rank), dtype=torch.float16)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata)
