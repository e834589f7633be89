"""What outlives a generation: one engine with its compiled graphs, the networks of the loaded models, and conditionings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from modules import sd_models, shared

from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.settings import Settings
from ov_backend.ui.choices import Choices
from ov_backend.ui.status import Status
from ov_backend.webui import attention, lora
from ov_backend.webui import compatibility as compatibility
from ov_backend.webui.patch_points import Found, networks_of

#: The extension's own folder; its graphs are kept there.
CACHE_DIR = Path(__file__).parents[2] / "cache" / "graphs"

Conditionings = dict[str, list[Any]]

#: Attributes of the WebUI's processing object that cache encoded prompts.
CONDITIONINGS = ("cached_c", "cached_uc", "cached_hr_c", "cached_hr_uc")


def empty_conditionings() -> Conditionings:
    """Caches of encoded prompts with nothing in them."""
    return {name: [None, None] for name in CONDITIONINGS}


class Session:
    """One engine for all generations: its compiled graphs know device and precision, so that changing these and
    changing back costs nothing."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        #: What the panel shows.
        self.status = Status(on_stage=_tell)
        self.lora = lora.Lora()
        self._networks: dict[int, tuple[torch.nn.Module, Network]] = {}
        self._conditionings: dict[str, Conditionings] = {}

    def configure(self, settings: Settings) -> Engine:
        """The engine, set to these settings.

        Raises:
            DeviceError: the device is not there, or cannot compute in that precision; the engine is left as it was.
        """
        if self.engine is None:
            self.engine = Engine(settings, progress=self.status.progress, interrupted=_interrupted)
            self.status.attach(self.engine)
        else:
            self.engine.configure(settings)
        return self.engine

    def network(self, found: Found, original: Callable[..., Any]) -> Network:
        """The accelerated form of one network of a loaded model."""
        known = self._networks.get(id(found.owner))
        if known is not None and known[0] is found.owner:
            return known[1]
        self.purge()
        assert self.engine is not None
        hooks = NetworkHooks(
            host_key=lambda: compatibility.key(found), tracing=attention.as_traced, ignore=lora.ATTRIBUTES
        )
        network = self.engine.network(self._free_name(found.role), found.module, original.__get__(found.owner), hooks)
        self._networks[id(found.owner)] = found.owner, network
        return network

    def _free_name(self, role: str) -> str:
        assert self.engine is not None
        names = (role if number == 1 else f"{role} #{number}" for number in range(1, len(self.engine.networks) + 2))
        return next(name for name in names if name not in self.engine.networks)

    def purge(self) -> None:
        """Let go of the networks of models that are loaded no more; their weights could never be freed otherwise."""
        models: Sequence[Any] = [*sd_models.model_data.loaded_sd_models, sd_models.model_data.sd_model]
        alive = {id(found.owner) for model in models if model is not None for found in networks_of(model)}
        dead = [key for key in self._networks if key not in alive]
        for key in dead:
            _, network = self._networks.pop(key)
            if self.engine is not None:
                self.engine.release(network.name)
        if dead and self.engine is not None:
            self.engine.evict_dead()

    def conditionings(self, choices: Choices) -> Conditionings:
        """Caches of encoded prompts for these choices: PyTorch's generations shall find none that OpenVINO encoded."""
        key = f"{choices.device} {choices.precision} {choices.config_json}"
        return self._conditionings.setdefault(key, empty_conditionings())

    def clear(self) -> None:
        """Let go of everything."""
        if self.engine is not None:
            self.engine.clear()
        self.engine = None
        self.status.attach(None)
        self._networks.clear()
        self._conditionings.clear()


def _interrupted() -> bool:
    return bool(shared.state.interrupted or shared.state.skipped)


def _tell(stage: str) -> None:
    """Into the WebUI's own progress bar."""
    shared.state.textinfo = stage or None


#: The registry of this process; reloading the WebUI's page keeps it.
session = Session()
