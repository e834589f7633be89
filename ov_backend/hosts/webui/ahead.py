"""Prepares the networks of a generation before it calls them: those that the last generation of the same kind has called.

When a batch begins, sizes are known and LoRAs are set: the UNet and the VAE are compiled while the prompt is encoded, the
VAE also while the UNet samples. Once a model is loaded, the networks of the last generation are prepared at once; once the page
shows another size, those of the last generation of that size.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from modules import shared

from ov_backend.engine.ahead.history import History, RememberedCall, kind_of
from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.engine.network import Network
from ov_backend.hosts.webui.detect import host
from ov_backend.hosts.webui.ending import ending
from ov_backend.hosts.webui.other_networks import other_networks
from ov_backend.hosts.webui.patch_points import HostNetwork
from ov_backend.hosts.webui.session import CACHE_DIR, session
from ov_backend.store.store import GraphStore
from ov_backend.ui.choices import Choices
from ov_backend.ui.likely import Likely, likely
from ov_backend.ui.requested_shape import RequestedShape

log = logging.getLogger("ov_backend")

#: The setting that switches it.
PREPARE_AHEAD = "openvino_prepare_ahead"
LABEL = "Prepare networks before they are needed"
_STOPPED = (
    "Networks are not prepared when a model is loaded: the WebUI ended the last time while that was done. To try again, switch"
    f" Settings > OpenVINO > \"{LABEL}\" off and on."
)
#: Seconds between two looks whether the WebUI is idle, and how long it is waited for.
_POLL_S, _PATIENCE_S = 0.2, 120.0


def enabled() -> bool:
    """Whether the setting is on."""
    return bool(getattr(shared.opts, PREPARE_AHEAD, True))


def request_of(p: Any, choices: Choices) -> str:
    """What decides with which shapes networks are called, and what runs where, as JSON; no prompts."""
    fields = {
        "size": f"{p.width}x{p.height}",
        "batch": p.batch_size,
        "guided": p.cfg_scale != 1,
        "from_picture": bool(getattr(p, "init_images", None)),
        "tokens": [_tokens(getattr(p, "prompts", None)), _tokens(getattr(p, "negative_prompts", None))],
        "hires": [str(getattr(p, name, "")) for name in ("hr_scale", "hr_resize_x", "hr_resize_y", "hr_checkpoint_name")]
        if getattr(p, "enable_hr", False)
        else None,
        "refiner": getattr(p, "refiner_checkpoint", None) or None,
        "choices": choices.as_infotext(),
    }
    return json.dumps(fields, sort_keys=True)


def _tokens(prompts: Any) -> int:
    """The tokens that the longest of these prompts is padded to; 0 where the model does not say."""
    longest = 0
    with contextlib.suppress(Exception):  # the model's tokenizer is the WebUI's, or another extension's
        for prompt in prompts or ():
            longest = max(longest, host.tokens(prompt))
    return longest


class Later(NamedTuple):
    """What a batch will call of another model than the one that samples first, such as a refiner: its VAE decodes."""

    calls: Sequence[RememberedCall]
    choices: Choices
    first: tuple[int, Any]

    def begin(self) -> bool:
        """Prepare it in the background once that model samples; False until then."""
        if _checkpoint() == self.first:
            return False
        _prepare([call._replace(number=0) for call in self.calls], self.choices)
        return True


def _checkpoint() -> tuple[int, Any]:
    """The model in use and whose weights it has: the WebUI may load others into the same object."""
    return id(host.model()), getattr(host.model(), "sd_checkpoint_info", None)


def begin_batch(p: Any, choices: Choices) -> Later | None:
    """A batch of a generation begins: prepare in the background what the last batch with the same request has called.

    The text encoders are left out: they run now.
    """
    engine, sd_model = session.engine, shared.sd_model
    unet = next((network.module for network in host.networks_of(sd_model) if network.role == "unet"), None)
    if engine is None:
        return None
    engine.begin_picture()
    if unet is None or not enabled():
        return None
    calls = [call for call in engine.begin_run(kind_of(unet), request_of(p, choices)) if not call.role.startswith("text_encoder")]
    others = bool(getattr(p, "refiner_checkpoint", None) or getattr(p, "hr_checkpoint_name", None))
    _prepare([call for call in calls if call.role == "unet" or not others], choices, others)
    if getattr(p, "enable_hr", False):
        other_networks.prepare_upscaler(str(getattr(p, "hr_upscaler", "")))
    last = [call for call in calls[-1:] if call.role != "unet"]
    return Later(last, choices, _checkpoint()) if others and last else None


def _prepare(calls: Sequence[RememberedCall], choices: Choices, others: bool = False) -> int:
    """Prepare remembered calls; returns how many are begun.

    Args:
        calls: the calls.
        choices: what runs where.
        others: whether other loaded models may be called too, such as a refiner's.
    """
    networks = _networks(calls, choices, others)
    return session.engine.prepare_ahead(calls, networks) if session.engine is not None else 0


def _networks(calls: Sequence[RememberedCall], choices: Choices, others: bool = False) -> list[Network]:
    """The networks of remembered calls that are answered as a whole, with the LoRAs that are set; see :func:`_prepare`."""
    roles = {call.role for call in calls}
    models = [host.model(), *(host.models() if others else ())]
    host_networks = {id(each.owner): each for model in models for each in host.networks_of(model)}
    networks: list[Network] = []
    for network in host_networks.values():
        if network.role in roles and getattr(choices, network.switch) and _is_plain(network):
            host.update_weights(network.module)
            networks.append(session.network(network, network.class_function))
    return networks


def _is_prepared(run: Likely) -> bool:
    engine = session.engine
    return engine is not None and engine.is_prepared(run.calls, _networks(run.calls, run.choices))


def _is_plain(network: HostNetwork) -> bool:
    """Whether a network is answered as a whole, as far as that is known before sampling."""
    return network.instance_function is None and not host.replaced(network) and not host.refusal(network)


class Readiness:
    """Prepares what the last generation of the page's size has called, or the last one of all, once the WebUI is idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: list[RequestedShape | None] = []  # None is what the page shows, else the last generation
        self._shown: RequestedShape | None = None

    def model_loaded(self) -> None:
        """A model is loaded, or other weights in its place; returns at once."""
        self._add(None)

    def size_changed(self, asked: RequestedShape) -> None:
        """The page shows this now: prepare it in place of what has not begun; returns at once."""
        self._shown = asked
        self._add(asked)

    def _add(self, asked: RequestedShape | None) -> None:
        if not enabled():
            return
        with self._lock:
            self._waiting = [None] if asked is None else [*(each for each in self._waiting if each is None), asked]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openvino-ready", daemon=True)
                self._thread.start()
            elif session.engine is not None and session.engine.resources.run is None:
                session.engine.resources.ahead.cancel()  # under the lock: what is asked for now has not begun

    def wait(self) -> None:
        """Wait until nothing is being prepared."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def setting_changed(self) -> None:
        """The user has switched the setting: forget that a process ended while it prepared."""
        CrashSentinel(CACHE_DIR).forget()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or not enabled():
                    self._thread, self._waiting = None, []
                    return
                asked = self._waiting.pop(0)
            try:
                self._prepare_when_idle(asked)
            except Exception:  # nobody has asked for it
                log.debug("Nothing was prepared before a generation", exc_info=True)

    def _prepare_when_idle(self, asked: RequestedShape | None) -> None:
        if not _acquire_when_idle():
            return
        with contextlib.ExitStack() as marked:
            try:  # the lock is for the look at weights and code, which takes a moment; nobody waits for a compile
                model = host.model()  # shared.sd_model would load one
                run = None if session.status.busy else _likely(asked or self._shown)
                if run is None and asked is None and not session.status.busy:
                    run = _likely(None)
                if run is None:
                    return
                marker = CrashSentinel(CACHE_DIR)
                if marker.died():
                    session.status.add_message(_STOPPED)
                    return
                marked.enter_context(ending.marked(marker))
                session.configure(run.choices.settings(str(CACHE_DIR)))
                is_new = _prepare(run.calls, run.choices) > 0 or asked is None
                if self._waiting and session.engine is not None:
                    session.engine.resources.ahead.cancel()
            finally:
                host.lock.release()
            if session.engine is not None:
                session.engine.resources.ahead.wait()
                self._show_ready(run, model, is_new)

    def _show_ready(self, run: Likely, model: Any, is_new: bool) -> None:
        """Show what is ready, if everything is and nothing else has begun; see :meth:`Status.may_show_ready`."""
        if not host.lock.acquire(blocking=False):
            return
        try:
            may_show = not self._waiting and session.status.may_show_ready(run.size, is_new)
            if may_show and host.model() is model and session.engine is not None:
                session.engine.trace_ahead(run.calls, _networks(run.calls, run.choices))  # a generation would wait for it too
            if may_show and host.model() is model and _is_prepared(run):
                session.status.job = run.ready()
        finally:
            host.lock.release()


def _likely(asked: RequestedShape | None) -> Likely | None:
    """What the last generation with this kind of model, or the last one like ``asked``, has called; None if there was none."""
    networks = host.networks_of(host.model())
    unet = next((each.module for each in networks if each.role == "unet"), None)
    store = session.engine.store if session.engine is not None else GraphStore(CACHE_DIR)
    if unet is None or store is None or store.problem():
        return None
    return likely(History(store).runs(kind_of(unet)), asked)


def _acquire_when_idle() -> bool:
    """Take the WebUI's lock as soon as it is free and a model is there; False if that takes too long."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        if host.lock.acquire(blocking=False):
            if host.model() is not None:
                return True
            host.lock.release()
        time.sleep(_POLL_S)
    return False


#: Process-wide instance.
readiness = Readiness()
