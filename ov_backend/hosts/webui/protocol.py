"""What differs between the WebUIs: all that the other files of this package ask ``host`` for.

A WebUI is a subclass of :class:`WebUI` in a folder of its own; ``webui_host.py`` makes any of them a host of the panel. The
methods that are written out here do as AUTOMATIC1111's WebUI does. Only modules that all WebUIs have are imported here, and a
folder imports nothing of another folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from modules import call_queue, sd_models

from ov_backend.engine.engine import NetworkHooks
from ov_backend.hosts.webui.patch_points import HostNetwork, PatchPoint
from ov_backend.ui.choices import switch_of

T = TypeVar("T")


class Undoable(Protocol):
    """A change that can be undone."""

    def undo(self) -> bool:
        """Undo it; False if other code has changed the same since."""


class WebUI:
    """One WebUI.

    Attributes:
        name: what messages call it.
        patch_points: the functions by which its networks are called, with what a trace of each is called with.
        interruption: an exception that ends a sampling when a network raises it, and that the sampler catches.
    """

    name: str
    patch_points: tuple[PatchPoint, ...]
    interruption: type[BaseException]

    @property
    def lock(self) -> Any:
        """The lock of its queue, with ``acquire(blocking)`` and ``release()``: who holds it is alone with the networks."""
        return call_queue.queue_lock

    def alone(self, function: Callable[[], T]) -> T:
        """Call a function as a generation is run: under the lock, in the thread of generations; what it raises is raised here."""
        with self.lock:
            return function()

    def models(self) -> list[Any]:
        """All models that are loaded, also one that is being loaded."""
        data = sd_models.model_data
        return [model for model in (*data.loaded_sd_models, data.sd_model) if model is not None]

    def model(self) -> Any:
        """The model in use; None where there is none, and while it is being loaded."""
        model = sd_models.model_data.sd_model
        return model if hasattr(model, "cond_stage_model_empty_prompt") else None

    def owners(self, model: Any) -> Iterator[tuple[str, Any]]:
        """Roles ("unet", "vae_encode", "vae_decode", "text_encoder"), and the objects of a model that may be networks in them."""
        vae = getattr(model, "first_stage_model", None)
        yield "unet", getattr(getattr(model, "model", None), "diffusion_model", None)
        yield "vae_encode", getattr(vae, "encoder", None)
        yield "vae_decode", getattr(vae, "decoder", None)
        text = getattr(model, "conditioner", None) or getattr(model, "cond_stage_model", None)
        yield from (("text_encoder", module) for module in (text.modules() if isinstance(text, torch.nn.Module) else ()))

    def parts(self, model: Any) -> Iterator[torch.nn.Module]:
        """All modules of a model."""
        return model.modules() if isinstance(model, torch.nn.Module) else iter(())

    def networks_of(self, model: Any) -> list[HostNetwork]:
        """The networks of a model that can be accelerated, none of None; the second text encoder's role is "text_encoder_2"."""
        roles: Counter[str] = Counter()
        networks = []
        classes = [(point, cls) for point in self.patch_points if (cls := point.owner) is not None]
        for role, owner in self.owners(model) if model is not None else ():
            point = next((point for point, cls in classes if isinstance(owner, cls)), None)
            if point is not None and point.switch == switch_of(role):
                roles[role] += 1
                name = f"{role}_{roles[role]}" if roles[role] > 1 else role
                networks.append(HostNetwork.at(point, owner, name))
        return networks

    def hooks(self, network: HostNetwork) -> NetworkHooks:
        """What the engine must know of a network: what else changes its results, and what a trace needs around it."""
        return replace(self.hooks_of_other(network.module), quantizable=network.switch == "unet")

    def hooks_of_other(self, module: torch.nn.Module) -> NetworkHooks:
        """The same for a network beside the model, such as an upscaler."""
        return NetworkHooks()

    def without_moves(self, module: torch.nn.Module) -> Undoable | None:
        """Remove what moves parts of a network between devices in the middle of its forward, where none is moved; or None."""
        return None

    def update_weights(self, module: torch.nn.Module) -> None:
        """Bring a module's weights up to the LoRAs that are set, where the WebUI does so only in the layers' forwards."""

    def replaced(self, network: HostNetwork) -> str:
        """Why PyTorch alone must run a network's forward now, as the second half of a sentence, or ""."""
        return ""

    def refusal(self, network: HostNetwork, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = {}) -> str:
        """Why a call of a network cannot be answered as a whole, but by its blocks, as the second half of a sentence, or "".

        It is asked without arguments, too, before a call is made.
        """
        return ""

    def runner(self) -> Any:
        """The scripts of a generation that neither the page nor the API asks for."""
        return None

    def tokens(self, prompt: str) -> int:
        """The tokens that a prompt is padded to; it may raise anything."""
        raise NotImplementedError
