"""Where the networks of the WebUI's models are, and by which functions of which classes they are called.

The functions are replaced on the classes, so that whichever object calls in the middle of a generation (a refiner, a
hires checkpoint, a model loaded for one prompt) is met; which instances are accelerated is decided at the call.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

#: What the choices switch, in words.
KINDS = {"unet": "UNet", "vae": "VAE", "text_encoder": "text encoder"}


@dataclass(frozen=True)
class Entry:
    """One function by which networks of one kind are called.

    Attributes:
        module: where the class is.
        name: the class.
        function: the function's name.
        kind: which choice switches it.
        weights: path from the instance to the module that owns the weights ("" is the instance itself).
        needs: a parameter without which this version's function is another one.
    """

    module: str
    name: str
    function: str
    kind: str
    weights: str = ""
    needs: str = ""

    @property
    def owner(self) -> Any:
        """The class, or None where its package is not in use or is of another kind."""
        found = getattr(sys.modules.get(self.module), self.name, None)
        if found is None or (self.needs and self.needs not in inspect.signature(getattr(found, self.function)).parameters):
            return None
        return found


#: Of a text encoder the stack of layers only: token embeddings depend on the prompt's own data (textual inversion).
ENTRIES: tuple[Entry, ...] = (
    Entry("ldm.modules.diffusionmodules.openaimodel", "UNetModel", "forward", "unet"),
    Entry("sgm.modules.diffusionmodules.openaimodel", "UNetModel", "forward", "unet"),
    Entry("ldm.modules.diffusionmodules.model", "Encoder", "forward", "vae"),
    Entry("ldm.modules.diffusionmodules.model", "Decoder", "forward", "vae"),
    Entry("sgm.modules.diffusionmodules.model", "Encoder", "forward", "vae"),
    Entry("sgm.modules.diffusionmodules.model", "Decoder", "forward", "vae"),
    # since transformers 5 hidden states are collected by the caller, who would find none in a compiled stack
    Entry("transformers.models.clip.modeling_clip", "CLIPEncoder", "forward", "text_encoder", "", "output_hidden_states"),
    *(
        Entry(f"{package}.modules.encoders.modules", name, "text_transformer_forward", "text_encoder", "model.transformer")
        for package, name in (
            ("ldm", "FrozenOpenCLIPEmbedder"),
            ("sgm", "FrozenOpenCLIPEmbedder"),
            ("sgm", "FrozenOpenCLIPEmbedder2"),
        )
    ),
)


@dataclass(frozen=True)
class Found:
    """One network of one model.

    Attributes:
        role: "unet", "vae_encode", "vae_decode", "text_encoder" or "text_encoder_2".
        kind: which choice switches it.
        owner: the object whose function is called.
        function: that function's name.
        module: the module that owns the weights.
    """

    role: str
    kind: str
    owner: torch.nn.Module
    function: str
    module: torch.nn.Module

    @property
    def own_function(self) -> Any:
        """The function that somebody put on this one instance, or None."""
        return vars(self.owner).get(self.function)


def networks_of(sd_model: Any) -> list[Found]:
    """The networks of a model that can be accelerated, each in its role."""
    vae = getattr(sd_model, "first_stage_model", None)
    candidates = [
        ("unet", getattr(getattr(sd_model, "model", None), "diffusion_model", None)),
        ("vae_encode", getattr(vae, "encoder", None)),
        ("vae_decode", getattr(vae, "decoder", None)),
    ]
    found = [each for role, owner in candidates for each in _found(role, owner)]
    texts = [each for owner in _text_modules(sd_model) for each in _found("text_encoder", owner) if each.kind == "text_encoder"]
    for number, each in enumerate(texts, start=1):
        role = each.role if number == 1 else f"{each.role}_{number}"
        found.append(Found(role, each.kind, each.owner, each.function, each.module))
    return found


def _text_modules(sd_model: Any) -> Iterator[torch.nn.Module]:
    root = getattr(sd_model, "conditioner", None) or getattr(sd_model, "cond_stage_model", None)
    return root.modules() if isinstance(root, torch.nn.Module) else iter(())


def _found(role: str, owner: Any) -> Iterator[Found]:
    for entry in ENTRIES:
        if entry.owner is not None and isinstance(owner, entry.owner):
            module = owner.get_submodule(entry.weights)
            yield Found(role, entry.kind, owner, entry.function, module)
            return


def kind_of(role: str) -> str:
    """The kind of a role: "vae" for "vae_decode"."""
    return next(kind for kind in KINDS if role.startswith(kind))
