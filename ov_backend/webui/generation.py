"""One generation with the networks in OpenVINO: everything that is put in place for it, and taken out after it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import MethodType, TracebackType
from typing import Any

from modules import sd_models, sd_samplers_common, shared

from ov_backend.errors import Interrupted, OVBackendError
from ov_backend.patching import Patch, Unshadow, unwrap
from ov_backend.ui.choices import INFOTEXT, Choices
from ov_backend.webui import compatibility as compatibility
from ov_backend.webui.patch_points import ENTRIES, KINDS, Entry, Found, kind_of, networks_of
from ov_backend.webui.session import CACHE_DIR, empty_conditionings, session

log = logging.getLogger("ov_backend")

_UNKNOWN = "this model's is of a kind that is not known here"
_ELSEWHERE = "another extension put a forward of its own on it"


class Generation:
    """Accelerates what the model in use computes, from ``with`` on until its end.

    Args:
        p: the WebUI's processing object.
        choices: what runs where.
        warnings: sentences about the choices, shown with the pictures.
    """

    #: The one that is under way, for a generation inside another's (a script that makes several).
    current: Generation | None = None

    def __init__(self, p: Any, choices: Choices, warnings: list[str] | None = None) -> None:
        self.p, self.choices = p, choices
        self.said: list[str] = []
        self._patches: list[Patch | Unshadow] = []
        self._before: dict[str, Any] = {}
        self._calls: Counter[str] = Counter()
        self._in_pytorch: dict[str, Counter[str]] = {}
        #: How often the model was called in this pass of sampling.
        self.denoised = 0
        self._on = False
        self._warnings = warnings or []

    def __enter__(self) -> Generation:
        for warning in self._warnings:
            self._say(warning)
        try:
            session.configure(self.choices.settings(str(CACHE_DIR)))
        except OVBackendError as error:
            self._say(f"OpenVINO is not used: {error}")
            return self
        session.purge()
        session.status.begin(f"Making {self.p.width}x{self.p.height}", self.p.steps)
        self._on = True
        Generation.current = self
        try:
            self._put_in_place()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(f"{type(error).__name__}: {error}" if error is not None else "")

    def _put_in_place(self) -> None:
        for entry in ENTRIES:
            if getattr(self.choices, entry.kind) and entry.owner is not None:
                self._patches.append(Patch(entry.owner, entry.function, self._maker(entry)))
        # a dict of its own: X/Y/Z plot copies the processing object for every cell, and its cells share the one
        self.p.extra_generation_params = {**self.p.extra_generation_params, INFOTEXT: self._infotext}
        if self.choices.text_encoder and shared.opts.persistent_cond_cache:
            caches = session.conditionings(self.choices)
        else:
            caches = empty_conditionings()
        if self.choices.text_encoder:
            for name, cache in caches.items():
                if hasattr(self.p, name):
                    self._before[name] = vars(self.p).get(name)
                    setattr(self.p, name, cache)

    def close(self, error: str = "") -> None:
        """Take out everything that was put in place; may be called twice."""
        for swap in reversed(self._patches):
            swap.undo()
        self._patches.clear()
        for name, value in self._before.items():
            setattr(self.p, name, value)
        self._before.clear()
        if self._on:
            self._on = False
            Generation.current = None
            session.status.end(error)

    def look(self) -> None:
        """Before sampling, when all extensions have put in place what they want: see what is on the instances."""
        if not self._on:
            return
        networks = networks_of(shared.sd_model)
        for kind in KINDS:
            if getattr(self.choices, kind) and not any(found.kind == kind for found in networks):
                self._decline(kind, _UNKNOWN, 0)
        for found in networks:
            own = found.own_function
            if own is None or not getattr(self.choices, found.kind):
                continue
            if self._is_the_class_own(found, own):
                self._patches.append(Unshadow(found.owner, found.function))
            else:
                self._decline(found.role, _ELSEWHERE, 0)

    @staticmethod
    def _is_the_class_own(found: Found, own: Any) -> bool:
        """Some extensions, when done, leave the class's own function behind on the instance."""
        function = unwrap(getattr(type(found.owner), found.function))
        return isinstance(own, MethodType) and own.__self__ is found.owner and unwrap(own.__func__) is function

    def _maker(self, entry: Entry) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            return lambda owner, *args, **kwargs: self._call(entry, original, owner, args, kwargs)

        return make

    def _call(self, entry: Entry, original: Callable[..., Any], owner: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        found = self._find(owner)
        if found is None:
            return original(owner, *args, **kwargs)
        reason = _ELSEWHERE if found.own_function is not None else compatibility.refusal(found)
        if reason:
            self._decline(found.role, reason)
            return original(owner, *args, **kwargs)
        session.lora.apply(found.module)
        network = session.network(found, original)
        if "output_hidden_states" in kwargs:  # the WebUI gives a number here, which would mean a graph for each
            kwargs["output_hidden_states"] = bool(kwargs["output_hidden_states"])
        before = sum(network.statistics.fallbacks.values())
        try:
            result = network(*args, **kwargs)
        except Interrupted:
            if found.kind == "unet":  # the sampler knows this, and hands over what it has
                raise sd_samplers_common.InterruptedException from None
            return original(owner, *args, **kwargs)
        if sum(network.statistics.fallbacks.values()) == before:
            self._calls[found.role] += 1
        else:
            reason = next(reversed(network.statistics.fallbacks))
            self._in_pytorch.setdefault(found.role, Counter())[reason] += 1
        return result

    def _corrections(self) -> set[str]:
        """What had to be computed again in this generation, or was found before to need more precision."""
        engine = session.engine
        corrected = {name: network.statistics.corrections for name, network in engine.networks.items()} if engine else {}
        return {f"{KINDS[kind_of(name)]}: {what}." for name, counts in corrected.items() for what in counts if self._ran(name)}

    def _ran(self, name: str) -> bool:
        return self._calls[name.partition(" #")[0]] > 0

    def _find(self, owner: Any) -> Found | None:
        """The network that an object is of the model now in use; None of any other, and while a model is being made."""
        sd_model = sd_models.model_data.sd_model
        if sd_model is None or not hasattr(sd_model, "cond_stage_model_empty_prompt"):
            return None
        return next((found for found in networks_of(sd_model) if found.owner is owner), None)

    def _decline(self, role: str, reason: str, count: int = 1) -> None:
        counts = self._in_pytorch.setdefault(role, Counter())
        if reason not in counts:
            log.warning("%s runs in PyTorch: %s.", role, reason)
            session.status.say(f"{KINDS[kind_of(role)]} in PyTorch: {reason}.")
        counts[reason] += count

    def _say(self, sentence: str) -> None:
        log.warning("%s", sentence)
        session.status.say(sentence)
        self.said.append(sentence)

    def _infotext(self, **_: Any) -> str:
        """The picture's field: what ran where, then the choices, which the panel reads back."""
        ran = []
        for kind, words in KINDS.items():
            calls = sum(count for role, count in self._calls.items() if kind_of(role) == kind)
            declined = any(kind_of(role) == kind for role in self._in_pytorch)
            if getattr(self.choices, kind):
                ran.append(words if not declined else f"{words} partly" if calls else f"{words} in PyTorch")
        chosen = self.choices.as_infotext()
        return f"ran={', '.join(ran)}" + ("" if chosen == "on" else f"; {chosen}")

    def finish(self, processed: Any) -> Any:
        """Write into the result what is to be seen with the pictures."""
        if processed is None:
            return None
        reasons = {
            f"{KINDS[kind_of(role)]} in PyTorch: {reason}." for role, counts in self._in_pytorch.items() for reason in counts
        }
        sentences = [*self.said, *sorted(reasons), *sorted(self._corrections())]
        processed.comments = (getattr(processed, "comments", "") or "") + "".join(f"{sentence}\n" for sentence in sentences)
        parameters = getattr(processed, "extra_generation_params", None)
        if isinstance(parameters, dict) and INFOTEXT in parameters:
            parameters[INFOTEXT] = self._infotext()
        return processed
