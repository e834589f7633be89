"""State that outlives a generation: one engine with its compiled graphs, the networks of the loaded models, encoded prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from modules import shared

from ov_backend.core.settings import ENV_CACHE_DIR, environment
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.engine import Engine, NetworkHooks
from ov_backend.hosts.webui.detect import host
from ov_backend.hosts.webui.last_request import LastRequest
from ov_backend.hosts.webui.patch_points import HostNetwork
from ov_backend.ui.choices import Choices
from ov_backend.ui.status import Status

#: The graph store, in the extension's own folder, where the environment names no other.
CACHE_DIR = Path(__file__).parents[3] / "cache" / "graphs"

Conditionings = dict[str, list[Any]]

#: Modules of ControlNet's extension that keep their network's answer for the next call; that network is met inside.
_WRAPPERS = frozenset({"PlugableAdapter"})
#: Roles of another extension's networks, by a word in the names of their classes.
_ROLES = {"control": "controlnet", "adapter": "adapter"}

#: Attributes of the WebUI's processing object that cache encoded prompts.
CONDITIONINGS = ("cached_c", "cached_uc", "cached_hr_c", "cached_hr_uc")


def empty_conditionings() -> Conditionings:
    """Empty caches of encoded prompts; Forge keeps in a third place what a prompt adds to the picture's parameters."""
    return {name: [None, None, None] for name in CONDITIONINGS}


class Session:
    """One engine for all generations: it keeps compiled graphs by device and precision, so that changing these and
    changing back compiles nothing."""

    def __init__(self) -> None:
        self.cache_dir = environment(ENV_CACHE_DIR) or str(CACHE_DIR)
        self.engine: Engine | None = None
        self.status = Status(on_stage=_show_stage)
        #: What a comparison repeats.
        self.last_request: LastRequest | None = None
        #: Owner and network by the owner's id; holding the owner keeps its id from being reused.
        self._networks: dict[int, tuple[torch.nn.Module, Blockwise]] = {}
        #: Networks of other extensions that a forward of ours calls, by the module's id, and which were used in this generation.
        self._companions: dict[int, Blockwise] = {}
        self._used_companions: set[int] = set()
        self._conditionings: dict[str, Conditionings] = {}

    def configure(self, choices: Choices) -> Engine:
        """The engine, set to these choices.

        Raises:
            DeviceError: the device is not there, or cannot compute in that precision; the engine is left as it was.
        """
        settings = choices.settings(self.cache_dir)
        if self.engine is None:
            self.engine = Engine(settings, progress=self.status.progress, interrupted=interrupted, keeps_unloaded=True)
            self.status.attach(self.engine)
        else:
            self.engine.configure(settings)
        return self.engine

    def begin(self) -> None:
        """A generation begins: what failed in earlier ones is tried again."""
        self.release_unloaded()
        self._used_companions.clear()
        for network in [*(network for _, network in self._networks.values()), *self._companions.values()]:
            network.retry()

    def end_run(self, completed: bool) -> None:
        """The calls of a generation are over."""
        if self.engine is not None:
            self.engine.end_run(completed)

    def end(self) -> None:
        """A generation ends: networks of other extensions that it did not use are released, for these may unload them."""
        for key in self._companions.keys() - self._used_companions:
            network = self._companions.pop(key)
            if self.engine is not None:
                self.engine.release(network.name)

    def network(self, host_network: HostNetwork, original: Callable[..., Any]) -> Blockwise:
        """The accelerated form of one network of a loaded model; ``original`` is its class's function."""
        owner, forward = host_network.owner, host_network.bound(original)  # brings what it has of its owner up to date
        if id(owner) in self._networks:
            return self._networks[id(owner)][1]
        self.release_unloaded()
        assert self.engine is not None
        name = self.free_name(host_network.role)
        hooks = host.hooks(host_network)
        if host_network.switch == "unet":
            hooks = replace(hooks, companion=lambda module: self._companion(module, hooks))
        own = replace(hooks, fallback=host_network.traced(original.__get__(owner)))  # a companion has a forward of its own
        network = Blockwise(self.engine.resources, name, host_network.module, forward, own)
        self.engine.add(network)
        self._networks[id(owner)] = owner, network
        return network

    def begin_run(self, *switches: str) -> None:
        """Have the weights of the loaded model's networks of these switches read in full.

        An extension may write to weights in a way that nothing counts, but hardly while a picture is sampled.
        """
        for host_network in host.networks_of(host.model()):
            known = self._networks.get(id(host_network.owner))
            if known is not None and host_network.switch in switches:
                known[1].read_again()
        for companion in self._companions.values() if "unet" in switches else ():
            companion.read_again()

    def _companion(self, module: torch.nn.Module, hooks: NetworkHooks) -> Blockwise | None:
        """The accelerated form of another extension's network, such as a ControlNet, which a UNet's forward calls."""
        assert self.engine is not None
        if type(module).__module__.startswith("modules."):
            return None  # a hypernetwork of the WebUI's own, too small to be worth a graph
        kind = type(module).__name__
        if kind in _WRAPPERS:
            return None
        self._used_companions.add(id(module))
        if id(module) not in self._companions:
            name = self.free_name(next((role for word, role in _ROLES.items() if word in kind.lower()), kind))
            network = Blockwise(self.engine.resources, name, module, module.forward, hooks)
            self._companions[id(module)] = self.engine.add(network)
        return self._companions[id(module)]

    def free_name(self, role: str) -> str:
        """A name for one more network of a role."""
        assert self.engine is not None
        names = (role if number == 1 else f"{role} #{number}" for number in range(1, len(self.engine.networks) + 2))
        return next(name for name in names if name not in self.engine.networks)

    def release_unloaded(self) -> None:
        """Release the networks of models that are no longer loaded; otherwise their weights could never be freed."""
        loaded = {id(network.owner) for model in host.models() for network in host.networks_of(model)}
        unloaded = [key for key in self._networks if key not in loaded]
        if unloaded:  # what stands beside a UNet knows it
            self._used_companions.clear()
            self.end()
        for key in unloaded:
            _, network = self._networks.pop(key)
            if self.engine is not None:
                self.engine.release(network.name)
        if unloaded and self.engine is not None:
            self.engine.evict_dead()

    def conditionings(self, choices: Choices) -> Conditionings:
        """Caches of prompts encoded with these choices; PyTorch's generations must not find what OpenVINO encoded."""
        return self._conditionings.setdefault(_of_conditionings(choices), empty_conditionings())

    def forget_conditionings(self, choices: Choices | None = None) -> None:
        """Let go of all encoded prompts, or of those that were encoded with these choices."""
        for key in [_of_conditionings(choices)] if choices is not None else list(self._conditionings):
            self._conditionings.pop(key, None)

    def keep_compiled(self) -> None:
        """Let go of all but the compiled graphs: code may be other code when the networks are met again."""
        for name in list(self.engine.networks) if self.engine is not None else ():
            self.engine.release(name)  # type: ignore[union-attr]
        self._forget()

    def clear(self) -> None:
        """Clear the engine, the networks and the encoded prompts."""
        if self.engine is not None:
            self.engine.clear()
        self.engine = None
        self.status.attach(None)
        self._forget()

    def _forget(self) -> None:
        self.last_request = None
        self._networks.clear()
        self._companions.clear()
        self._conditionings.clear()


def _of_conditionings(choices: Choices) -> str:
    return f"{choices.device} {choices.precision} {choices.config_json}"


def interrupted() -> bool:
    """Whether the user wants the picture that is being made to end now, or all of them."""
    return bool(shared.state.interrupted or shared.state.skipped)


def _show_stage(text: str) -> None:
    """Show a stage in the WebUI's own progress bar."""
    shared.state.textinfo = text or None


#: Process-wide instance; it survives a reload of the WebUI's page.
session = Session()
