"""``accelerate``: run a diffusers pipeline's networks, or modules given by name, in OpenVINO until they are restored."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn

import torch

from ov_backend.core import devices
from ov_backend.core.errors import OVBackendError, PatchError, SettingsError, short_repr
from ov_backend.core.patching import Patch, Unshadow, has_patches, patch_forward
from ov_backend.core.settings import Settings, check_names
from ov_backend.engine.blocks.below_hooks import CellPatch, place_below
from ov_backend.engine.blocks.hooked_network import HookedNetwork
from ov_backend.engine.engine import Engine, Network, Progress
from ov_backend.pipelines.calls import Listener
from ov_backend.pipelines.compiled import BYPASSED, uncompile, uncompiled
from ov_backend.pipelines.forwards import following, forward_of, network_of
from ov_backend.pipelines.precompile import Size, every, generator_of, precompile

#: The networks of a diffusers pipeline: role and attribute. The VAE's encoder and decoder are separate, because diffusers does
#: tiling and slicing around them.
ROLES: tuple[tuple[str, str], ...] = (
    ("unet", "unet"),
    ("transformer", "transformer"),
    ("transformer_2", "transformer_2"),
    ("prior", "prior"),
    ("decoder", "decoder"),
    ("movq_encode", "movq.encoder"),
    ("movq_decode", "movq.decoder"),
    ("vae_encode", "vae.encoder"),
    ("vae_decode", "vae.decoder"),
    ("text_encoder", "text_encoder"),
    ("text_encoder_2", "text_encoder_2"),
    ("text_encoder_3", "text_encoder_3"),
    ("image_encoder", "image_encoder"),
    ("controlnet", "controlnet"),
    ("adapter", "adapter"),
)
#: What only a pipeline calls its denoisers: a module's decoder is a part of it.
_OF_PIPELINES = ("prior", "decoder")

log = logging.getLogger(__name__)


class Accelerated:
    """Networks that run in OpenVINO until :meth:`restore`; also a context manager that restores on exit."""

    def __init__(self, target: Any, settings: Settings, progress: Progress | None = None) -> None:
        modules = networks_of(target)
        for name in parts_without(target, modules):
            log.info("%s stays in PyTorch: accelerate does not know this part of a pipeline.", name)
        modules = _not_elsewhere(modules) if not isinstance(target, Mapping) else modules
        self.engine = Engine(settings, progress)
        self._target = target
        #: By name, the module and what stands on it, or was taken from it.
        self._patches: dict[str, tuple[torch.nn.Module, list[Patch | CellPatch | Unshadow]]] = {}
        self._final_stats: dict[str, dict[str, Any]] = {}
        self._listener: Listener | None = None
        try:
            for name, module in modules.items():
                self._patches[name] = module, self._patch(name, module)
            if not isinstance(target, (Mapping, torch.nn.Module)) and callable(target) and hasattr(target, "__dict__"):
                self._listener = Listener(target, self._run)
        except OVBackendError:
            self.restore()
            raise

    @contextlib.contextmanager
    def _run(self, request: str) -> Iterator[None]:
        """Around a call of the pipeline: what it will need is prepared while its prompt is encoded."""
        self._follow_parts()
        begin_run(self.engine, request, self.engine.networks)
        completed = False
        try:
            yield
            completed = not getattr(self._target, "_interrupt", False)  # which a callback sets, and the pipeline returns early
        finally:
            self.engine.end_run(completed)

    def _follow_parts(self) -> None:
        """Accelerate the parts that the pipeline has got since; those that they took the place of get their forwards back."""
        parts = _once(_parts_of(self._target))
        changed = {name: part for name, part in parts.items() if self._patches.get(name, (None,))[0] is not part}
        for name in changed.keys() & self._patches.keys():
            self._undo(name)
        taken = {id(part) for part, _ in self._patches.values()}  # one may have another name now
        for name, part in changed.items():
            if id(part) not in taken and not _is_elsewhere(part):
                self._patches[name] = part, self._patch(name, part)

    def _undo(self, name: str) -> None:
        for each in self._patches.pop(name)[1]:
            each.undo()
        network = self.engine.networks.get(name)
        if isinstance(network, HookedNetwork):
            network.restore()
        self.engine.release(name)

    def _patch(self, name: str, module: torch.nn.Module) -> list[Patch | CellPatch | Unshadow]:
        """Replace the forward of a module; below the hooks of other code, where there are any."""
        inner = uncompiled(module)
        place, maker = place_below(inner), self._maker(name, inner)
        if place is None:
            return [patch_forward(inner, maker, lambda: self._bypassed(name)), *uncompile(module)]
        self.engine.resources.keeps_unloaded = True  # weights that a hook takes away come back
        return [place.patch(maker), *uncompile(module)]

    def _bypassed(self, name: str) -> None:
        """Dynamo compiles what calls a network, whose calls then do not come here."""
        if name in self.engine.networks:
            self.engine.networks[name].statistics.correct(name, BYPASSED, once=True)

    def _maker(self, name: str, module: torch.nn.Module) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(forward: Callable[..., Any]) -> Callable[..., Any]:
            return forward_of(network_of(self.engine, name, module, forward), module, forward)

        return lambda original: following(module, original, make)

    def __repr__(self) -> str:
        stats, settings = self.stats(), self.engine.settings
        calls = sum(each["calls"] for each in stats.values())
        fallbacks = sum(sum(each["fallbacks"].values()) for each in stats.values())
        state = f"on {settings.device} in {devices.resolved_precision(settings)}" if self._patches else "restored"
        return f"<Accelerated {', '.join(stats)}: {state}; calls {calls} in OpenVINO, {fallbacks} in PyTorch>"

    def stats(self) -> dict[str, dict[str, Any]]:
        """By network: captures, graph_hits, compiles, calls in OpenVINO, fallbacks (count by reason), seconds by stage."""
        return {**self._final_stats, **self.engine.stats()}

    def precompile(
        self,
        sizes: Iterable[tuple[int, int]],
        batches: Iterable[int] = (1,),
        *,
        arguments: Mapping[str, Any] | None = None,
        generate: Callable[[Size], Any] | None = None,
        begin: Callable[[Size], None] = lambda size: None,
        done: Callable[[Size], None] = lambda size: None,
        cancel: Callable[[], bool] = lambda: False,
    ) -> list[Size]:
        """Capture and compile the networks for every picture size and batch size; nothing is computed.

        Args:
            sizes: (width, height) in pixels.
            batches: numbers of pictures at once (``num_images_per_prompt``).
            arguments: of the pipeline's call, where they differ from its defaults, such as ``{"guidance_scale": 1.0}``.
            generate: calls the networks for one (width, height, batch); needed for a dict of modules only.
            begin: called before each (width, height, batch); ``accelerate``'s ``progress`` is called at the stages of each.
            done: called after each.
            cancel: polled many times a second in the calling thread; once it returns true, this method returns within a
                second. A running compile goes on in the background, and its result is kept.

        Returns:
            Each (width, height, batch) that is compiled.

        Raises:
            SettingsError: the networks are no pipeline, and ``generate`` is missing.
            OVBackendError: with ``Settings(fallback="raise")``, a network cannot run in OpenVINO.
        """
        generate = generate or generator_of(self._target, arguments)
        return precompile(every(sizes, batches), generate, begin=begin, done=done, cancel=cancel)

    def restore(self) -> None:
        """Restore the original forwards, and release everything compiled and the networks themselves. May be called twice."""
        for _, patches in self._patches.values():
            for patch in patches:
                patch.undo()
        self._patches.clear()
        if self._listener is not None:
            self._listener.undo()
            self._listener = None
        self.engine.clear()
        self._final_stats.update(self.engine.stats())
        for name, network in list(self.engine.networks.items()):
            if isinstance(network, HookedNetwork):
                network.restore()
            self.engine.release(name)
        self._target = None

    def __enter__(self) -> Accelerated:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()


def accelerate(
    target: Any,
    settings: Settings | None = None,
    *,
    device: str | None = None,
    precision: str | None = None,
    low_memory: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    fallback: str | None = None,
    progress: Progress | None = None,
    **unknown: NoReturn,
) -> Accelerated:
    """Run the networks of ``target`` in OpenVINO.

    Args:
        target: a diffusers pipeline, or a dict of name to torch module.
        settings: see :class:`ov_backend.Settings`; every field has a default.
        device: as in the settings, and in place of theirs; so are the next four.
        precision: "auto", "f32", "bf16", "f16" or "int8".
        low_memory: "auto", "on" or "off".
        cache_dir: folder of the graph store.
        fallback: "pytorch", "inductor" or "raise".
        progress: called as ``progress(network, stage, signature)`` when a "read", "capture", "convert" or "compile" begins, and
            with "ready" at the end.

    Returns:
        The :class:`Accelerated` networks; its ``restore()``, or the end of ``with``, gives ``target`` its own forwards back.

    Raises:
        SettingsError: there is no network in ``target``, ``settings`` are none, or another keyword is given.
        DeviceError: the device does not exist, cannot compute in that precision, or does not take a property of ``config``.
        PatchError: a network of a dict, or every one of a pipeline, is accelerated already.
        OVBackendError: with ``fallback="raise"``, a network can never run in OpenVINO.
    """
    if not isinstance(settings, (Settings, type(None))):
        what = f"settings is a {type(settings).__name__}; it must be ov_backend.Settings(...), or None"
        raise SettingsError(f'{what}. A device is given by its name, as accelerate(pipe, device="CPU").')
    given = {"device": device, "precision": precision, "low_memory": low_memory, "cache_dir": cache_dir, "fallback": fallback}
    for name in unknown.keys() & Settings.__dataclass_fields__.keys():
        raise SettingsError(f"{name} is given in the settings, as accelerate(pipe, ov_backend.Settings({name}=...)).")
    check_names(unknown, ["settings", *given, "progress"])
    chosen = (settings or Settings()).replace(**{name: value for name, value in given.items() if value is not None})
    devices.check_properties(chosen)
    return Accelerated(target, chosen, progress)


def begin_run(engine: Engine, request: str, networks: Mapping[str, Network]) -> None:
    """A pipeline is called: what it called last for the same request is prepared in the background.

    Its text encoders are left out: they are called at once.

    Args:
        engine: of the networks.
        request: see :func:`ov_backend.pipelines.calls.request_of`.
        networks: by role.
    """
    denoiser = networks.get("unet") or networks.get("transformer")
    if denoiser is not None:
        calls = engine.begin_run(denoiser.kind, request)
        engine.prepare_ahead(calls, [network for name, network in networks.items() if not name.startswith("text_encoder")])


def networks_of(target: Any) -> dict[str, torch.nn.Module]:
    """The networks of a pipeline by role, or those of a dict; a module under several names has the first of them.

    Raises:
        SettingsError: there is no network, a value of the dict is no module, or a network has no weights yet.
    """
    if isinstance(target, Mapping):
        for name, module in target.items():
            if not isinstance(module, torch.nn.Module) or not isinstance(name, str):
                kind = type(module).__name__
                raise SettingsError(f"{short_repr(name)}: {kind} is given; it must be a torch module, and its name text.")
        networks = dict(target)
    else:
        networks = _parts_of(target)
    if not networks:
        raise SettingsError(
            f"{type(target).__name__} holds no network to accelerate; give a diffusers pipeline or a dict of name to module."
        )
    for name, module in networks.items():
        if any(map(torch.nn.parameter.is_lazy, [*module.parameters(), *module.buffers()])):
            raise SettingsError(f"{name} has lazy layers without weights; call it once before it is accelerated.")
    return _once(networks)


def _parts_of(target: Any) -> dict[str, torch.nn.Module]:
    """The networks that a pipeline has now, by role."""
    roles = [(role, path) for role, path in ROLES if not (isinstance(target, torch.nn.Module) and role in _OF_PIPELINES)]
    return {role: module for role, path in roles if isinstance(module := _attribute(target, path), torch.nn.Module)}


def _once(networks: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """The networks without those that another name before them has."""
    names = {id(uncompiled(module)): name for name, module in reversed(list(networks.items()))}
    return {name: module for name, module in networks.items() if names[id(uncompiled(module))] == name}


def _is_elsewhere(module: torch.nn.Module) -> bool:
    """Whether another accelerator has a network."""
    return has_patches(uncompiled(module))


def _not_elsewhere(networks: Mapping[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """The networks that no other accelerator has; pipelines share some.

    Raises:
        PatchError: others have all of them.
    """
    own = {name: module for name, module in networks.items() if not _is_elsewhere(module)}
    shared = ", ".join(name for name in networks if name not in own)
    if not own:
        raise PatchError(
            f"{shared}: already accelerated by another call of accelerate, and in OpenVINO for this pipeline, too. For other"
            " settings call restore() of what that call returned first."
        )
    if shared:
        log.warning("%s: already accelerated by another call of accelerate, whose settings hold.", shared)
    return own


def parts_without(target: Any, networks: Mapping[str, torch.nn.Module]) -> list[str]:
    """The modules of a pipeline that none of these networks is or lies in, such as a safety checker; none of a dict."""
    if isinstance(target, Mapping) or not hasattr(target, "__dict__"):
        return []
    parts = {name: part for name, part in vars(target).items() if isinstance(part, torch.nn.Module)}
    taken = set(map(id, networks.values()))
    return [name for name, part in parts.items() if taken.isdisjoint(map(id, part.modules()))]


def _attribute(target: Any, path: str) -> Any:
    for name in path.split("."):
        target = getattr(target, name, None)
    return target
