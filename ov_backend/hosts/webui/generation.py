"""One generation with the networks in OpenVINO: what is patched for it, and restored after it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch
from modules import shared

from ov_backend.core.errors import Interrupted, OVBackendError
from ov_backend.core.patching import Patch, Unshadow
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.calls_patch import CallsPatch
from ov_backend.hosts.webui import ahead
from ov_backend.hosts.webui.detect import host
from ov_backend.hosts.webui.last_request import LastRequest
from ov_backend.hosts.webui.other_networks import other_networks
from ov_backend.hosts.webui.patch_points import HostNetwork
from ov_backend.hosts.webui.previews import Previews
from ov_backend.hosts.webui.protocol import Undoable
from ov_backend.hosts.webui.session import CONDITIONINGS, empty_conditionings, interrupted, session
from ov_backend.ui.choices import INFOTEXT_FIELD, SWITCHES, Choices, switch_of
from ov_backend.ui.infotext import choices_field, how_it_ran
from ov_backend.ui.snapshot import INTERRUPTED, failure_text, network_label

log = logging.getLogger("ov_backend")

_UNSUPPORTED = "its class in this model is not supported"
#: Why a network on whose instance a forward stands is not answered as a whole: ControlNet and others put one on the UNet.
_INSTANCE_FORWARD = "another extension put a forward of its own on it"


class Generation:
    """Accelerates the networks of the model in use; a context manager.

    Args:
        p: the WebUI's processing object.
        choices: what runs where.
        warnings: messages about the choices, shown with the pictures.
        is_reported: whether the status shows it and a comparison may repeat it; a job's own generations are not.
    """

    #: The running generation, or None; a script may generate several times within it.
    current: Generation | None = None

    def __init__(self, p: Any, choices: Choices, warnings: list[str] | None = None, is_reported: bool = True) -> None:
        self.p, self.choices, self._is_reported = p, choices, is_reported
        self._warnings = warnings or []
        self._messages: list[str] = []
        self._int8_messages: list[str] = []
        #: By role, what int8 did at the last call.
        self._int8_states: dict[str, str] = {}
        self._patches: list[Undoable | CallsPatch] = []
        #: The networks whose parts are moved no more, by the ``id`` of their owners.
        self._unmoved: set[int] = set()
        self._previews: Previews | None = None
        self._saved_conditionings: dict[str, Any] = {}
        #: The WebUI's own caches of encoded prompts when the generation began.
        self._host_conditionings: dict[str, Any] = {}
        #: Calls that OpenVINO answered, by role, as a whole or by blocks.
        self._openvino_calls: Counter[str] = Counter()
        #: By role, why blocks answered, and how often.
        self._block_reasons: dict[str, Counter[str]] = {}
        #: By role, why PyTorch answered, and how often.
        self._pytorch_reasons: dict[str, Counter[str]] = {}
        #: The classes whose instances may be networks.
        self._owners: tuple[type, ...] = ()
        self._later: ahead.Later | None = None
        self._active = self._was_interrupted = self._is_refused = False

    def __enter__(self) -> Generation:
        for warning in self._warnings:
            self._warn(warning)
        # a new dict: X/Y/Z plot copies the processing object for every cell, and the copies share one dict
        self.p.extra_generation_params = {**self.p.extra_generation_params, INFOTEXT_FIELD: self._infotext}
        try:
            session.configure(self.choices)
        except OVBackendError as error:
            self._is_refused = True
            self._warn(f"OpenVINO is not used: {error}")
            if self._is_reported:
                session.status.end()
            return self
        session.begin()
        session.begin_run("vae", "text_encoder")
        if self._is_reported:
            session.status.begin(f"Making {self.p.width}x{self.p.height}", self.p.steps)
        self._active = True
        Generation.current = self
        try:
            self._patch()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._was_interrupted |= interrupted()
        if error is None and not self._was_interrupted and self._active and self._is_reported:
            session.last_request = LastRequest.of(self.p)
        if self._active:
            session.end_run(completed=error is None and not self._was_interrupted)
        ended = INTERRUPTED if self._was_interrupted else ""
        self.close(failure_text(error) if error is not None else ended)

    def _patch(self) -> None:
        self._previews = Previews()
        points = [point for point in host.patch_points if getattr(self.choices, point.switch) and point.owner is not None]
        self._owners = tuple(point.owner for point in points)
        for point in points:
            self._patches.append(Patch(point.owner, point.function, self._replacement))
        self._patches.append(patch_calls(self._answer_module))
        for network in (each for model in host.models() for each in host.networks_of(model)):
            self._stop_moves(network)
        other_networks.begin()
        if self.choices.text_encoder:
            self._replace_conditionings()

    def _stop_moves(self, network: HostNetwork) -> None:
        if id(network.owner) not in self._unmoved:
            self._unmoved.add(id(network.owner))
            if (change := host.without_moves(network.owner)) is not None:
                self._patches.append(change)

    def _replace_conditionings(self) -> None:
        """Give the processing object caches that hold no prompt encoded by PyTorch."""
        self._host_conditionings = {name: getattr(type(self.p), name, None) for name in CONDITIONINGS}
        caches = session.conditionings(self.choices) if shared.opts.persistent_cond_cache else empty_conditionings()
        for name, cache in caches.items():
            if hasattr(self.p, name):
                self._saved_conditionings[name] = vars(self.p).get(name)
                setattr(self.p, name, cache)

    def close(self, error: str = "") -> None:
        """Restore everything that was patched; may be called twice."""
        if self._active:
            other_networks.end()
        for patch in reversed(self._patches):
            patch.undo()
        self._patches.clear()
        self._owners = ()
        if self._previews is not None:
            self._previews.end()
        for name, value in self._saved_conditionings.items():
            setattr(self.p, name, value)
        self._saved_conditionings.clear()
        if any(getattr(type(self.p), name, None) is not cache for name, cache in self._host_conditionings.items()):
            session.forget_conditionings()  # ControlNet marks them in place, and then makes the WebUI forget its own
        if any(switch_of(role) == "text_encoder" for role in (*self._pytorch_reasons, *self._block_reasons)):
            session.forget_conditionings(self.choices)  # the next picture encodes them again, and says how
        if self._active:
            self._active = False
            Generation.current = None
            session.end_run(completed=False)
            session.end()
            if self._is_reported:
                session.status.end(error)

    def begin_batch(self) -> None:
        """A batch begins, its LoRAs are set: what it will call is prepared while its prompt is encoded."""
        if self._active:
            self._later = ahead.begin_batch(self.p, self.choices)

    def check_instances(self) -> None:
        """Before sampling, when all extensions have patched what they need: check for functions on the instances."""
        if not self._active:
            return
        session.begin_run("unet")
        networks = host.networks_of(host.model())
        for switch in SWITCHES:
            if getattr(self.choices, switch) and not any(network.switch == switch for network in networks):
                self._count_refusal(switch, _UNSUPPORTED, 0)
        for network in networks:
            if network.instance_function is None or not getattr(self.choices, network.switch):
                continue
            if network.is_leftover:
                self._patches.append(Unshadow(network.owner, network.function))
            elif network.function != "forward":  # nobody calls it as a module
                self._count_refusal(network.role, _INSTANCE_FORWARD, 0)

    def _replacement(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            with other_networks.inside():
                return self._call(original, owner, args, kwargs)

        return call

    def _call(self, original: Callable[..., Any], owner: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One call of a patched function: by OpenVINO if ``owner`` is a network of the model in use, or by ``original``."""
        host_network = self._network_of(owner)
        if host_network is None:
            return original(owner, *args, **kwargs)
        other_networks.reach_model()
        if self._later is not None and host_network.role == "unet" and self._later.begin():
            self._later = None
        self._stop_moves(host_network)
        reason = host.replaced(host_network)
        if reason:
            self._count_refusal(host_network.role, reason)
            log.debug("%s runs in PyTorch: %s.", host_network.role, reason)
            return original(owner, *args, **kwargs)
        host.update_weights(host_network.module)
        network = session.network(host_network, original)
        reason = host.refusal(host_network, args, kwargs)
        forward = partial(original, owner)
        is_preview = self._previews is not None and self._previews.calls()
        if reason and not is_preview:
            answer = partial(network.by_blocks, reason, forward, args, kwargs)
        else:
            inputs, named_inputs = host_network.arguments(args, kwargs)
            if is_preview and (reason or not network.is_ready(*inputs, **named_inputs)):
                return forward(*args, **kwargs)
            answer = partial(network, *inputs, **named_inputs)
        return self._counted(host_network.role, network, answer, partial(forward, *args, **kwargs))

    def _answer_module(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One call of any module: a network on which another extension put a forward is answered by its blocks."""
        host_network = self._network_of(module) if isinstance(module, self._owners) else None
        if host_network is None:
            return other_networks.answer(original, module, args, kwargs)
        other_networks.reach_model()
        with other_networks.inside():
            return self._answer_network(original, host_network, args, kwargs)

    def _answer_network(
        self, original: Callable[..., Any], host_network: HostNetwork, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        module = host_network.owner
        shadowed = host_network.function == "forward" and "forward" in vars(module)
        if not shadowed or host_network.is_leftover:
            return original(module, *args, **kwargs)  # our patch on the class decides
        host.update_weights(host_network.module)
        network = session.network(host_network, host_network.class_function)
        forward = partial(original, module)
        answer = partial(network.by_blocks, _INSTANCE_FORWARD, forward, args, kwargs)
        return self._counted(host_network.role, network, answer, partial(forward, *args, **kwargs))

    def _counted(self, role: str, network: Blockwise, answer: Callable[[], Any], in_pytorch: Callable[[], Any]) -> Any:
        """Answer one call of a network, and count what answered it."""
        self._was_interrupted |= interrupted()  # the WebUI decodes a picture that is skipped, and then forgets that
        statistics = network.statistics
        calls, by_blocks, fallbacks = statistics.calls, statistics.by_blocks.total(), statistics.fallbacks.total()
        try:
            result = answer()
        except Interrupted:
            if switch_of(role) == "unet":  # the sampler catches this one and returns what it has
                raise host.interruption from None
            return in_pytorch()
        self._tell_int8(role, network)
        if statistics.fallbacks.total() > fallbacks:
            self._count_refusal(role, statistics.last_reason)
        if statistics.calls > calls:
            self._openvino_calls[role] += 1
        if statistics.by_blocks.total() > by_blocks:
            self._count_blocks(role, statistics.last_reason)
        return result

    def _tell_int8(self, role: str, network: Blockwise) -> None:
        """Report what precision int8 does with a network in this generation, each sentence once."""
        stated = network.statistics.int8
        if not stated:
            return
        self._int8_states[role] = stated["state"]
        message = f"{_label(role)}: {stated['text']}."
        if message not in self._int8_messages:
            self._int8_messages.append(message)

    def _network_of(self, owner: Any) -> HostNetwork | None:
        """The network of the model in use that an object is; None for other models, and while a model is loaded."""
        return next((network for network in host.networks_of(host.model()) if network.owner is owner), None)

    def _count_refusal(self, role: str, reason: str, count: int = 1) -> None:
        """Count calls that are left to PyTorch, and report the reason when it is new."""
        reasons = self._pytorch_reasons.setdefault(role, Counter())
        if reason not in reasons:
            session.status.add_message(_in_pytorch(role, reason))
        reasons[reason] += count

    def _count_blocks(self, role: str, reason: str) -> None:
        """Count a call that blocks have answered, and report the reason when it is new."""
        reasons = self._block_reasons.setdefault(role, Counter())
        if reason not in reasons:
            session.status.add_message(_by_blocks(role, reason))
        reasons[reason] += 1

    def _warn(self, message: str) -> None:
        log.warning("%s", message)
        session.status.add_message(message)
        self._messages.append(message)

    def _infotext(self, **_: Any) -> str:
        """The picture's field: what ran where, then the choices, which the panel reads back."""
        if self._is_refused:  # a plot shows no cell's messages, but keeps its parameters
            return choices_field(self.choices, "all in PyTorch")
        parts = []
        for switch in SWITCHES:
            if not getattr(self.choices, switch):
                continue
            ran = any(switch_of(role) == switch and calls for role, calls in self._openvino_calls.items())
            refused = any(switch_of(role) == switch for role in self._pytorch_reasons)
            kept = switch == "text_encoder" and not shared.state.interrupted  # of the same prompt, by an earlier call
            if not ran and not refused and not kept:
                continue  # it was not called, or not as a network
            divided = any(switch_of(role) == switch for role in self._block_reasons)
            parts.append(how_it_ran(switch, ran, refused, divided, self._int8_states.get(switch, "")))
        return choices_field(self.choices, ", ".join([*parts, *other_networks.ran_where()]))

    def annotate(self, processed: Any) -> Any:
        """Add the messages and the final field to the WebUI's result, and return it."""
        if processed is None:
            return None
        refusals = {_in_pytorch(role, reason) for role, reasons in self._pytorch_reasons.items() for reason in reasons}
        divided = {_by_blocks(role, reason) for role, reasons in self._block_reasons.items() for reason in reasons}
        messages = [*self._messages, *sorted(refusals), *sorted(divided), *sorted(self._corrections()), *self._int8_messages]
        messages += other_networks.messages
        processed.comments = (getattr(processed, "comments", "") or "") + "".join(f"{message}\n" for message in messages)
        parameters = getattr(processed, "extra_generation_params", None)
        if isinstance(parameters, dict) and INFOTEXT_FIELD in parameters:
            parameters[INFOTEXT_FIELD] = self._infotext()
        return processed

    def _corrections(self) -> set[str]:
        """What was computed again in this generation, or is known from an earlier one to need more precision."""
        networks = session.engine.networks.items() if session.engine else ()
        return {
            f"{_label(name)}: {reason.rstrip('.')}."
            for name, network in networks
            if self._openvino_calls[name.partition(" #")[0]]
            for reason in network.statistics.corrections
        }


def _label(role: str) -> str:
    """A network's name at the start of a sentence."""
    label = network_label(switch_of(role))
    return label[:1].upper() + label[1:]


def _by_blocks(role: str, reason: str) -> str:
    return f"{_label(role)} by its blocks: {reason.rstrip('.')}."


def _in_pytorch(role: str, reason: str) -> str:
    return f"{_label(role)} in PyTorch: {reason.rstrip('.')}."
