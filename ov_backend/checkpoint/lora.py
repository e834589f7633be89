"""LoRAs: low-rank changes of weights (https://arxiv.org/abs/2106.09685), added to a pipeline's weights and taken out again.

The file is a .safetensors of kohya's trainer (``lora_unet_..._to_q.lora_down.weight``) or of diffusers and PEFT
(``unet....to_q.lora_A.weight``). A weight W becomes ``W + strength * alpha / rank * up @ down``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ov_backend.checkpoint import keys
from ov_backend.checkpoint.lora_file import LAYER, PARTS, kohya_name, misfit, other_architecture, read_layers
from ov_backend.core.errors import CheckpointError, first_line


class LoraMix:
    """The LoRAs in the weights of a pipeline of Stable Diffusion 1, 2 or XL.

    The original of every weight that a LoRA changes is kept, so that a weight without LoRAs is the checkpoint's to the last bit.
    """

    def __init__(self, pipe: Any) -> None:
        self._layers = dict(_layers(pipe))
        self._originals: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._current: tuple[tuple[Path, float], ...] | None = ()

    @torch.no_grad()
    def apply(self, loras: Sequence[tuple[Path, float]]) -> bool:
        """Make these the LoRAs in the weights, in place of the ones that are; returns whether that changed anything.

        Raises:
            CheckpointError: a file cannot be read, or belongs to another architecture; the weights are then as they were.
        """
        if tuple(loras) == self._current:
            return False
        changes: dict[torch.nn.Parameter, torch.Tensor] = {}
        for path, strength in loras:
            for weight, change in self._changes(path):
                changes[weight] = changes[weight] + strength * change if weight in changes else strength * change
        self._current = None  # until all is written
        for weight in [weight for weight in self._originals if weight not in changes]:
            weight.copy_(self._originals.pop(weight))
        for weight, change in changes.items():
            original = self._originals.setdefault(weight, weight.clone())
            weight.copy_(original + change.to(weight.dtype))
        self._current = tuple(loras)
        return True

    def _changes(self, path: Path) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """The weights that a file changes, with the change at strength 1, in float32."""
        parts = _read(path)
        unknown = sorted(set(parts) - set(self._layers))
        if unknown:
            raise other_architecture(path, unknown, len(parts))
        for name, layer in parts.items():
            weight = self._layers[name]
            yield weight, _change(path, name, layer, weight.shape)


def _change(path: Path, name: str, layer: dict[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    try:
        down, up = layer["down"].float(), layer["up"].float()
        rank = down.shape[0]
        scale = float(layer["alpha"]) / rank if "alpha" in layer else 1.0
        return (up.flatten(1) @ down.flatten(1)).reshape(shape) * scale
    except (KeyError, RuntimeError, ValueError, ZeroDivisionError) as error:
        raise misfit(path, name, shape) from error


def _read(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The parts of every layer by kohya's name of the layer."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    read_layers(path)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path.name} is damaged: {first_line(error)}; download or copy it again.") from error
    for key, tensor in tensors.items():
        match = LAYER.fullmatch(key)
        if match is None:
            raise CheckpointError(f"{path.name} was changed while it was read; try it again.")
        parts.setdefault(kohya_name(match[1]), {})[PARTS[match[2]]] = tensor
    return parts


def _layers(pipe: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The weights of layers by every name that a LoRA may have for them: diffusers' and the original layout's."""
    unet = pipe.unet
    original = keys.unet_names(unet.config)
    for name, weight in _weights(unet):
        yield _flat("lora_unet_", name), weight
        yield _flat("lora_unet_", original(name)), weight
    for attribute, prefixes in (("text_encoder", ("lora_te_", "lora_te1_")), ("text_encoder_2", ("lora_te2_",))):
        encoder = getattr(pipe, attribute, None)
        for name, weight in _weights(encoder) if encoder is not None else ():
            yield from ((_flat(prefix, keys.clip_name(name)), weight) for prefix in prefixes)


def _weights(network: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    for name, module in network.named_modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
            yield f"{name}.weight", module.weight


def _flat(prefix: str, name: str) -> str:
    return prefix + name.removesuffix(".weight").replace(".", "_")
