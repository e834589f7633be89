"""Networks beside the model: upscalers, face restorers, detectors, interrogators, and those of extensions that nobody here knows.

While a generation runs, or a job of ``other_jobs.py``, every call of a module that no other module's forward makes is met here,
in the thread of that generation. A module that takes long in PyTorch is accelerated as the UNet is: whole, else by its blocks,
else in PyTorch. Which one takes long is measured (``measurements.py``), not told by names.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from modules import shared

from ov_backend.core.devices import resolved_precision
from ov_backend.core.errors import Interrupted
from ov_backend.core.tensors import nested_tensors
from ov_backend.engine.ahead import warmup
from ov_backend.engine.ahead.history import kind_of
from ov_backend.engine.blocks.blocks import RootNetwork
from ov_backend.engine.blocks.patched_calls import call_block
from ov_backend.engine.engine import Engine
from ov_backend.hosts.webui.detect import host
from ov_backend.hosts.webui.measurements import (
    LEAST_PSNR,
    Measurements,
    decibels,
    elements_of,
    is_plain,
    kind_and_content,
)
from ov_backend.hosts.webui.session import session
from ov_backend.hosts.webui.upscaling import Upscaling

log = logging.getLogger("ov_backend")

#: The setting that switches it.
OTHER_NETWORKS = "openvino_other_networks"
#: So many networks of one class are held at once: an upscaler that is loaded anew for each picture is another module each time.
_MAX_OF_A_CLASS = 2

#: A network whose inputs have more sizes than this in one run gets ever new ones, as of a sentence that grows by words.
_MAX_SIZES = 4

#: Whether this code is called by a module's forward.
_inside: ContextVar[bool] = ContextVar("inside_root", default=False)


class _Sample(NamedTuple):
    """A call that PyTorch has answered."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


@dataclass
class Ran:
    """What has answered one network's calls.

    Attributes:
        calls: how many OpenVINO has answered.
        by_blocks: why blocks have.
        in_pytorch: why PyTorch had to.
    """

    calls: int = 0
    by_blocks: Counter[str] = field(default_factory=Counter)
    in_pytorch: Counter[str] = field(default_factory=Counter)

    def text(self, label: str) -> str:
        """For the picture's parameters: what has answered, "" where OpenVINO has not."""
        return label + " by its blocks" * bool(self.by_blocks) + " partly" * bool(self.in_pytorch) if self.calls else ""


def _of_a_model(module: torch.nn.Module) -> bool:
    """A part of a Stable Diffusion model that is loaded, or what calls one: the script answers the networks in there."""
    parts = {id(part) for model in host.models() for part in host.parts(model)}
    return any(id(part) in parts for part in module.modules())


def _not_python(module: torch.nn.Module) -> bool:
    """TorchScript has no Python that could be traced."""
    return isinstance(module, torch.jit.ScriptModule)


def _elsewhere(module: torch.nn.Module) -> bool:
    """A network on another device than the CPU, where its host has put it for a reason."""
    return any(tensor.device.type != "cpu" for tensor in module.parameters())


#: What is kept out; each says why.
_KEPT_OUT: tuple[Callable[[torch.nn.Module], bool], ...] = (_of_a_model, _not_python, _elsewhere)


class OtherNetworks:
    """The networks of one generation or job at a time; their compiled graphs outlive it, under text and content."""

    def __init__(self) -> None:
        self.ran: dict[str, Ran] = {}
        #: Sentences for the user.
        self.messages: list[str] = []
        #: What is known of the upscaler that runs.
        self.upscaling = Upscaling()
        self._measurements = Measurements()
        self._thread: int | None = None
        self._networks: dict[int, RootNetwork] = {}
        self._kept_out: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
        self._kinds: WeakKeyDictionary[torch.nn.Module, str] = WeakKeyDictionary()
        self._sizes: WeakKeyDictionary[torch.nn.Module, set[int]] = WeakKeyDictionary()
        self._samples: WeakKeyDictionary[torch.nn.Module, _Sample] = WeakKeyDictionary()
        self._reached_model = False

    def begin(self) -> None:
        """From now on the calls of this thread are met, if the setting is on and nothing else has begun."""
        self.ran, self.messages = {}, []
        if not getattr(shared.opts, OTHER_NETWORKS, True) or session.engine is None or self._thread is not None:
            return
        self._measurements.open(session.engine.store.folder if session.engine.store is not None else None)
        self._thread = threading.get_ident()
        self.upscaling.begin()

    def end(self) -> None:
        """The generation is over: modules are released, for the WebUI may unload them."""
        self._thread = None
        self.upscaling.end()
        self._measurements.end_run()
        self._samples.clear()
        self._sizes.clear()
        self._kept_out.clear()
        for key in list(self._networks):
            self._release(key)

    def answer(self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer one call of any module; ``original`` is PyTorch's way to call it."""
        if _inside.get() or threading.get_ident() != self._thread or warmup.active():
            return call_block(original, module, args, kwargs)
        with self.inside():
            return self._answer_root(original, module, args, kwargs)

    def reach_model(self) -> None:
        """The script answers a network of the model, maybe in the middle of a root's call: that one is no network then."""
        self._reached_model |= threading.get_ident() == self._thread  # a preview's call is no part of a root's

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """In this block no call is a root's."""
        token = _inside.set(True)
        try:
            yield
        finally:
            _inside.reset(token)

    def _answer_root(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        engine = session.engine
        if engine is None or self._is_kept_out(module):
            return call_block(original, module, args, kwargs)
        with self.upscaling.tile():
            if not self._is_long(module, elements_of(args, kwargs)):
                return self._timed(original, module, args, kwargs)
            if self._is_compared(engine, module):
                return self._counted(self._network(engine, module), original, args, kwargs)
            result = self._timed(original, module, args, kwargs)
            if module in self._samples:
                self._network(engine, module)  # at once: this may be the run's only call of it
            return result

    def _is_kept_out(self, module: torch.nn.Module) -> bool:
        if module not in self._kept_out:
            self._kept_out[module] = any(rule(module) for rule in _KEPT_OUT)
        return self._kept_out[module]

    def _kind(self, module: torch.nn.Module) -> str:
        if module not in self._kinds:
            self._kinds[module] = kind_of(module)
        return self._kinds[module]

    def _is_long(self, module: torch.nn.Module, elements: int) -> bool:
        """Whether a call is known to take long, and is of one of the first sizes in this run."""
        if (times := self._measurements.slower(self._kind(module))) is not None:
            self._tell(f"{self._name_of(module)} in PyTorch: by its blocks it took {times:.1f} times as long.")
        if not self._measurements.is_long(self._kind(module), elements):
            return False
        sizes = self._sizes.setdefault(module, set())
        if elements not in sizes and len(sizes) >= _MAX_SIZES:
            return False
        sizes.add(elements)
        return True

    def _is_compared(self, engine: Engine, module: torch.nn.Module) -> bool:
        """Whether it is known which precision is exact enough, or can be told by a call that PyTorch has answered."""
        if id(module) in self._networks or not _chooses_precision(engine) or module in self._samples:
            return True
        return self._psnr(engine, module) is not None

    def _psnr(self, engine: Engine, module: torch.nn.Module) -> float | None:
        return self._measurements.psnr(kind_and_content(module, resolved_precision(engine.settings)))

    def _timed(self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call in PyTorch, and take note of how long that took."""
        self._reached_model = False
        start = time.perf_counter()
        result = original(module, *args, **kwargs)
        seconds = time.perf_counter() - start
        if self._reached_model:
            self._kept_out[module] = True
            return result
        self._measurements.note_seconds(self._kind(module), elements_of(args, kwargs), seconds)
        if self._measurements.is_long(self._kind(module), elements_of(args, kwargs)):
            log.debug("%s took %.2f s in PyTorch", type(module).__name__, seconds)
            self._samples[module] = _Sample(args, kwargs, _copied(result))  # the caller may write to its result
        return result

    def _network(self, engine: Engine, module: torch.nn.Module) -> RootNetwork:
        """The accelerated form of a module."""
        if id(module) in self._networks:
            return self._networks[id(module)]
        alike = [key for key, each in self._networks.items() if type(each.module) is type(module)]
        for key in alike[: len(alike) - _MAX_OF_A_CLASS + 1]:
            self._release(key)
        name = session.free_name(self._name_of(module))
        network = RootNetwork(engine.resources, name, module, module.forward, host.hooks_of_other(module))
        self._networks[id(module)] = engine.add(network)
        self._choose_precision(engine, network)
        return network

    def _name_of(self, module: torch.nn.Module) -> str:
        return _name(self.upscaling.name or type(module).__name__)

    def _choose_precision(self, engine: Engine, network: RootNetwork) -> None:
        """Compute a network in f32 if a lower precision, which nobody has asked for, is not exact enough."""
        if not _chooses_precision(engine):
            return
        precision, sample = resolved_precision(engine.settings), self._samples.pop(network.module, None)
        reached = self._psnr(engine, network.module)
        if reached is None and sample is not None:
            fallbacks = network.statistics.fallbacks.total()
            try:
                result = network(*sample.args, **sample.kwargs)
            except Interrupted:  # not known then; the call itself says so again
                network.in_f32 = True
                return
            if network.statistics.fallbacks.total() > fallbacks:
                return
            reached = decibels(result, sample.result)
            if reached >= LEAST_PSNR or not is_plain(sample.result):  # else the next picture decides again
                self._measurements.note_psnr(kind_and_content(network.module, precision), reached)
            if reached < LEAST_PSNR:  # what was compiled for the comparison is of no more use
                engine.compiled.evict(lambda key, entry: entry.network == network.name)
        network.in_f32 = reached is not None and reached < LEAST_PSNR
        if network.in_f32:
            self._tell(
                f"{network.name} is computed in f32: in {precision} it comes only within {reached:.1f} dB of PyTorch,"
                f" and {LEAST_PSNR:.0f} dB are asked for. If you choose the precision {precision}, that is used."
            )

    def _counted(
        self, network: RootNetwork, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer one call of a network, and count what answered it."""
        statistics, label = network.statistics, network.name.partition(" #")[0]
        calls, by_blocks, fallbacks = statistics.calls, statistics.by_blocks.total(), statistics.fallbacks.total()
        start, compiles = time.perf_counter(), _compiles()
        try:
            result = network(*args, **kwargs)
        except Interrupted:  # its host looks at that after the call
            return original(network.module, *args, **kwargs)
        ran = self.ran.setdefault(label, Ran())
        ran.calls += statistics.calls > calls
        if statistics.by_blocks.total() > by_blocks:
            ran.by_blocks[statistics.last_reason] += 1
            self._tell(f"{label} by its blocks: {statistics.last_reason.rstrip('.')}.")
        if statistics.fallbacks.total() > fallbacks:
            ran.in_pytorch[statistics.last_reason] += 1
            self._tell(f"{label} in PyTorch: {statistics.last_reason.rstrip('.')}.")
        if statistics.by_blocks.total() + statistics.fallbacks.total() > by_blocks + fallbacks:
            kind, seconds = self._kind(network.module), time.perf_counter() - start
            self._measurements.note_divided(kind, elements_of(args, kwargs), seconds, _compiles() > compiles)
        return result

    def _release(self, key: int) -> None:
        network = self._networks.pop(key)
        if session.engine is not None:
            session.engine.retire(network.name)

    def _tell(self, message: str) -> None:
        if message not in self.messages:
            log.info("%s", message)
            session.status.add_message(message)
            self.messages.append(message)

    def ran_where(self) -> list[str]:
        """What has answered the networks that OpenVINO has answered calls of, for the picture's parameters."""
        return [text for label, ran in self.ran.items() if (text := ran.text(label))]


def _compiles() -> int:
    return session.engine.compiles if session.engine is not None else 0


def _chooses_precision(engine: Engine) -> bool:
    """Whether the precision is the device's own, and lower than f32."""
    settings = engine.settings
    own = settings.precision in ("auto", "int8") and "INFERENCE_PRECISION_HINT" not in settings.config
    return own and resolved_precision(settings) != "f32"


def _name(text: str) -> str:
    """A name that stands in a picture's parameters as it is, and that no network of a model has."""
    name = "".join(character for character in text if character.isprintable() and character not in '",;=#:').strip()[:60]
    return name if not name.lower().startswith(("unet", "vae", "text_encoder", "transformer ")) else f"other {name}"


def _copied(result: Any) -> Any:
    return [tensor.clone() for tensor in nested_tensors([result])]


#: Process-wide instance.
other_networks = OtherNetworks()
