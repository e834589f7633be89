"""Where the networks of the WebUI's models are, and by which functions of which classes they are called.

The functions are patched on the classes, so that every object that is called in the middle of a generation (a refiner, a
hires checkpoint, a model loaded for one prompt) is reached; each call decides whether its instance is accelerated.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ov_backend.patching import unwrap


@dataclass(frozen=True)
class PatchPoint:
    """One function by which networks are called.

    Attributes:
        module: where the class is.
        class_name: the class.
        function: the function's name.
        switch: the choice that switches these networks.
        weights: path from an instance to the module that owns the weights ("" is the instance itself).
        needs: a parameter that the function must have; without it, this version's function is a different one.
        overwrites: whether the function writes to its first input; its caller has no further use for that one.
    """

    module: str
    class_name: str
    function: str
    switch: str
    weights: str = ""
    needs: str = ""
    overwrites: bool = False

    @property
    def owner(self) -> Any:
        """The class, or None where its package is not loaded or its function lacks what is needed."""
        owner = getattr(sys.modules.get(self.module), self.class_name, None)
        if owner is None or (self.needs and self.needs not in inspect.signature(getattr(owner, self.function)).parameters):
            return None
        return owner


#: Of a text encoder only the stack of layers: its token embeddings depend on data of the prompt (textual inversion).
PATCH_POINTS: tuple[PatchPoint, ...] = (
    PatchPoint("ldm.modules.diffusionmodules.openaimodel", "UNetModel", "forward", "unet"),
    PatchPoint("sgm.modules.diffusionmodules.openaimodel", "UNetModel", "forward", "unet"),
    PatchPoint("ldm.modules.diffusionmodules.model", "Encoder", "forward", "vae"),
    PatchPoint("ldm.modules.diffusionmodules.model", "Decoder", "forward", "vae"),
    PatchPoint("sgm.modules.diffusionmodules.model", "Encoder", "forward", "vae"),
    PatchPoint("sgm.modules.diffusionmodules.model", "Decoder", "forward", "vae"),
    # since transformers 5 the caller collects hidden states, and would get none from a compiled stack
    PatchPoint("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward", "text_encoder", "", "output_hidden_states"),
    *(
        PatchPoint(f"{package}.modules.encoders.modules", name, "text_transformer_forward", "text_encoder", "model.transformer")
        for package, name in (
            ("ldm", "FrozenOpenCLIPEmbedder"),
            ("sgm", "FrozenOpenCLIPEmbedder"),
            ("sgm", "FrozenOpenCLIPEmbedder2"),
        )
    ),
    PatchPoint("modules.models.sd3.mmdit", "MMDiT", "forward", "unet"),
    PatchPoint("modules.models.sd3.sd3_impls", "VAEEncoder", "forward", "vae"),
    PatchPoint("modules.models.sd3.sd3_impls", "VAEDecoder", "forward", "vae"),
    PatchPoint("modules.models.sd3.other_impls", "CLIPEncoder", "forward", "text_encoder", overwrites=True),
    PatchPoint("modules.models.sd3.other_impls", "T5Stack", "forward", "text_encoder"),
)


@dataclass(frozen=True)
class HostNetwork:
    """One network of one of the WebUI's models.

    Attributes:
        role: "unet", "vae_encode", "vae_decode", "text_encoder" or "text_encoder_2".
        switch: the choice that switches it.
        owner: the object whose function is called.
        function: that function's name.
        module: the module that owns the weights.
        overwrites: whether the function writes to its first input.
    """

    role: str
    switch: str
    owner: torch.nn.Module
    function: str
    module: torch.nn.Module
    overwrites: bool = False

    @property
    def instance_function(self) -> Any:
        """The function that shadows the class's on this one instance, or None."""
        return vars(self.owner).get(self.function)

    @property
    def class_function(self) -> Any:
        """The class's own function, without a patch of ours."""
        return unwrap(getattr(type(self.owner), self.function))

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the class, bound to the object; one that overwrites its input gets a copy."""
        method = function.__get__(self.owner)
        return partial(_on_a_copy, method) if self.overwrites else method


def _on_a_copy(method: Callable[..., Any], first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return method(first.clone(), *args, **kwargs)


def networks_of(sd_model: Any) -> list[HostNetwork]:
    """The networks of a model that can be accelerated."""
    vae = getattr(sd_model, "first_stage_model", None)
    owners = [
        ("unet", getattr(getattr(sd_model, "model", None), "diffusion_model", None)),
        ("vae_encode", getattr(vae, "encoder", None)),
        ("vae_decode", getattr(vae, "decoder", None)),
    ]
    networks = [network for role, owner in owners if (network := _network_at(role, owner)) is not None]
    encoders = [network for owner in _text_modules(sd_model) if (network := _network_at("text_encoder", owner)) is not None]
    encoders = [network for network in encoders if network.switch == "text_encoder"]
    networks += [replace(network, role=f"{network.role}_{i}" if i > 1 else network.role) for i, network in enumerate(encoders, 1)]
    return networks


def _text_modules(sd_model: Any) -> Iterator[torch.nn.Module]:
    root = getattr(sd_model, "conditioner", None) or getattr(sd_model, "cond_stage_model", None)
    return root.modules() if isinstance(root, torch.nn.Module) else iter(())


def _network_at(role: str, owner: Any) -> HostNetwork | None:
    for point in PATCH_POINTS:
        if point.owner is not None and isinstance(owner, point.owner):
            return HostNetwork(role, point.switch, owner, point.function, owner.get_submodule(point.weights), point.overwrites)
    return None
