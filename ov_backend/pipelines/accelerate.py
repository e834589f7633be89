"""``accelerate``: put a diffusers pipeline's networks, or any modules by name, onto OpenVINO and take them off again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch

from ov_backend.engine.engine import Engine, Progress
from ov_backend.errors import OVBackendError, SettingsError
from ov_backend.patching import Patch, patch_forward
from ov_backend.pipelines import precompile as ahead
from ov_backend.settings import Settings

#: Where the networks of a diffusers pipeline are: the VAE's halves by themselves, so that its tiling and slicing, which
#: diffusers does around them, go on working; of a text encoder everything, its tokens being an input like others.
ROLES: tuple[tuple[str, str], ...] = (
    ("unet", "unet"),
    ("transformer", "transformer"),
    ("vae_encode", "vae.encoder"),
    ("vae_decode", "vae.decoder"),
    ("text_encoder", "text_encoder"),
    ("text_encoder_2", "text_encoder_2"),
    ("text_encoder_3", "text_encoder_3"),
    ("controlnet", "controlnet"),
)


class Accelerated:
    """Networks that run in OpenVINO until :meth:`restore`; also a context manager that restores on exit."""

    def __init__(self, target: Any, settings: Settings, progress: Progress | None = None) -> None:
        modules = networks_of(target)
        self.engine = Engine(settings, progress)
        self._target = target
        self._patches: list[Patch] = []
        try:
            for name, module in modules.items():
                self._patches.append(patch_forward(module, self._maker(name, module)))
        except OVBackendError:
            self.restore()
            raise

    def _maker(self, name: str, module: torch.nn.Module) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            network = self.engine.network(name, module, original)
            known = type(module).__module__.startswith("diffusers.") and "timestep" in inspect.signature(original).parameters
            return _with_tensor_timestep(network, original) if known else network

        return make

    def stats(self) -> dict[str, dict[str, Any]]:
        """Per network: captures, graph_hits, compiles, calls, fallbacks (reason: count), seconds by stage, signatures."""
        return self.engine.stats()

    def precompile(
        self,
        sizes: Iterable[tuple[int, int]],
        batches: Iterable[int] = (1,),
        *,
        arguments: Mapping[str, Any] | None = None,
        generate: Callable[[ahead.Size], Any] | None = None,
        begin: Callable[[ahead.Size], None] = lambda size: None,
        done: Callable[[ahead.Size], None] = lambda size: None,
        cancel: Callable[[], bool] = lambda: False,
    ) -> list[ahead.Size]:
        """Make the networks ready for pictures of every size and every number of them at once; nothing is computed.

        Args:
            sizes: (width, height) in pixels.
            batches: pictures at once (``num_images_per_prompt``).
            arguments: of the pipeline's call, where they will differ from its defaults: ``{"guidance_scale": 1.0}``.
            generate: calls the networks for one (width, height, batch); a pipeline needs none, a dict of modules does.
            begin: told of each (width, height, batch) before anything is made for it; ``accelerate``'s ``progress``
                tells of the stages in between.
            done: told of each that is ready.
            cancel: asked many times a second, from the calling thread; once true, this returns within a second. What was
                begun goes on in the background and is kept.

        Returns:
            The (width, height, batch) that are ready.

        Raises:
            SettingsError: there is no way to make a picture: neither a pipeline nor ``generate``.
            OVBackendError: with ``Settings(fallback="raise")``, a network cannot run in OpenVINO.
        """
        generate = generate or ahead.generator_of(self._target, arguments)
        return ahead.precompile(ahead.every(sizes, batches), generate, begin=begin, done=done, cancel=cancel)

    def restore(self) -> None:
        """Put the exact original forwards back and let go of everything compiled. May be called twice."""
        for swap in self._patches:
            swap.undo()
        self._patches.clear()
        self.engine.clear()

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def accelerate(target: Any, settings: Settings | None = None, *, progress: Progress | None = None) -> Accelerated:
    """Run the networks of ``target`` in OpenVINO.

    Args:
        target: a diffusers pipeline, or a dict of name to torch module.
        settings: device, precision and the rest; every field has a default.
        progress: called as ``progress(network, stage, signature)`` when a "capture", "convert" or "compile" starts,
            and with "ready" when the network can be called.

    Raises:
        SettingsError: there is no network in ``target``.
        DeviceError: the device is not there, or cannot compute in that precision.
        PatchError: a network is accelerated already.
    """
    return Accelerated(target, settings or Settings(), progress)


def _with_tensor_timestep(network: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """diffusers' networks take a timestep as tensor or Python number alike; a number would be a new graph at every step."""
    signature = inspect.signature(forward)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        step = bound.arguments["timestep"]
        if isinstance(step, (int, float)) and not isinstance(step, bool):
            bound.arguments["timestep"] = torch.tensor(step, dtype=torch.int64 if isinstance(step, int) else torch.float32)
        return network(*bound.args, **bound.kwargs)

    return call


def networks_of(target: Any) -> dict[str, torch.nn.Module]:
    """The networks of a pipeline by role, or the given dict, checked.

    Raises:
        SettingsError: there is none, or a value is no module.
    """
    if isinstance(target, Mapping):
        for name, module in target.items():
            if not isinstance(module, torch.nn.Module):
                raise SettingsError(f"{name!r} is a {type(module).__name__}; accelerate takes torch modules by name.")
        found = dict(target)
    else:
        found = {role: module for role, path in ROLES if isinstance(module := _attribute(target, path), torch.nn.Module)}
    if not found:
        raise SettingsError(
            f"{type(target).__name__} holds no network to accelerate; give a diffusers pipeline or a dict of name to module."
        )
    return found


def _attribute(target: Any, path: str) -> Any:
    for name in path.split("."):
        target = getattr(target, name, None)
    return target
