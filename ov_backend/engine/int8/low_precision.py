"""int8 for one network that is answered as a whole: which form of it is compiled now, and how a recipe comes about."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ov_backend.core.settings import Settings
from ov_backend.engine.conditions import has_finite_inputs
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8 import calibrated, much_noise
from ov_backend.engine.int8.calibrated import CalibratedPrecision
from ov_backend.engine.request import CompiledEntry, Form
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import WeightsGuard
from ov_backend.int8.calibration import MAX_CALLS, MAX_GRAPH_CALLS, MIN_CALLS, Calibration
from ov_backend.int8.identity import architecture_of, checkpoint_of
from ov_backend.int8.recipe import Recipe
from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.model.transformations.quantize import Quantize

#: Of so many states of the weights it is known which checkpoint they are.
_MAX_IDENTITIES = 64
CALIBRATES = (
    "this picture calibrates int8: it is made in the device's own precision, and the ranges of its values are collected; once"
    f" there are {MIN_CALLS} steps, the next picture is made in int8"
)
GRAPH_CALIBRATES = (
    f"int8 is calibrated: {MAX_GRAPH_CALLS} calls are made in the device's own precision, and the ranges of their values are"
    " collected; later calls are made in int8"
)
NO_VNNI = "int8 is not used: this CPU has no VNNI instructions, without which products of 8-bit integers overflow"
_NOT_STATIC = "int8 is not used: it is for graphs of fixed sizes and weights that are not trained"


@dataclass(frozen=True)
class Sample:
    """A call that was observed: its arguments, its flat results, and the state that gave them, see :class:`CompiledEntry`.

    Each sample has another number.
    """

    call: Call
    outputs: tuple[torch.Tensor, ...]
    state: tuple[str, str, str]
    number: int = field(default_factory=itertools.count().__next__)


class LowPrecision(CalibratedPrecision[Sample]):
    """Int8 for one network, see :class:`CalibratedPrecision`."""

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks, statistics: NetworkStats
    ) -> None:
        super().__init__(resources, name, module, hooks, statistics)
        #: By the digest of the weights.
        self._identities: dict[str, tuple[str, str]] = {}
        #: By signature, why its calls have no layer in 8 bits.
        self._without: dict[Signature, str] = {}

    def clear(self) -> None:
        """Forget what was observed."""
        super().clear()
        self._identities.clear()
        self._without.clear()

    def form(self, settings: Settings, weights: WeightsGuard) -> Form:
        """The form in which a network with these weights is compiled now."""
        plain = Form(settings.replace(precision="auto") if settings.precision == "int8" else settings)
        if settings.precision != "int8" or not self._hooks.quantizable:
            if self._hooks.quantizable:
                self._statistics.int8 = {}
            elif settings.precision == "int8" and not self._hooks.watched:
                self._statistics.tell_int8(self._name, "off", _NOT_STATIC)
            return plain
        if not multiplies_8_bits_exactly():
            self._statistics.tell_int8(self._name, "off", NO_VNNI)
            return plain
        self._current = identity = self._identity(weights)
        trial = self.trial()
        if trial is not None:
            recipe = trial.recipe
            own = recipe is not None and recipe.checkpoint == identity[1]
            return _quantized(settings, recipe) if recipe is not None and own else plain
        recipe = self.recipe()
        if recipe is None:
            self._statistics.tell_int8(self._name, "calibrating", CALIBRATES if self._hooks.watched else GRAPH_CALIBRATES)
            return self.observation(identity, MAX_CALLS if self._hooks.watched else MAX_GRAPH_CALLS).form(plain.settings)
        own = much_noise.active() and self._both.fits()
        self.tell(own)
        return plain if recipe.refused or own else _quantized(settings, recipe)

    def _identity(self, weights: WeightsGuard) -> tuple[str, str]:
        """Architecture and checkpoint of the weights as they are now."""
        if weights.digest not in self._identities:
            if len(self._identities) >= _MAX_IDENTITIES:
                self._identities.clear()
            tensors = dict(self._module.named_parameters()) or dict(weights.tensors)
            kind = f"{type(self._module).__module__}.{type(self._module).__qualname__} {self._hooks.function}"
            checkpoint = checkpoint_of(tensors) if self._hooks.watched else weights.digest
            self._identities[weights.digest] = architecture_of(kind, tensors), checkpoint
        return self._identities[weights.digest]

    def count(self, entry: CompiledEntry, call: Call, outputs: Sequence[torch.Tensor]) -> None:
        """Count a call that was answered by what is compiled."""
        observed = self._last_observed
        if observed is not None and entry.form == observed.name:
            observed.calibration.count(lambda: Sample(_cloned(call), tuple(x.clone() for x in outputs), entry.state))

    def end_picture_early(self) -> None:
        """A picture ended before its last step: what was observed in it is not all that a picture has."""
        if self._last_observed is not None:
            self._last_observed.calibration.begin_anew()

    @property
    def _last_observed(self) -> calibrated.Observed[Sample] | None:
        return None if self._current is None else self._observed.get(self._current)

    def may_complete(self, begins: bool) -> bool:
        """Whether :meth:`complete` has a calibration for one of the checkpoints that were called."""
        return any(observed.calibration.is_complete(begins) for observed in self._observed.values())

    def complete(self, begins: bool) -> Calibration[Sample] | None:
        """The calibration of the weights called last, if int8 is still asked for and a recipe can be made of it.

        Args:
            begins: the next picture begins.
        """
        observed = self._last_observed
        if observed is None or self._resources.settings.precision != "int8":
            return None
        return observed.calibration if observed.calibration.is_complete(begins) else None

    def keep(self, recipe: Recipe, lasts: bool = True) -> None:
        """Keep a recipe, whether it is used or not, so that nothing is calibrated again; ``lasts``: in other processes, too."""
        assert self._current is not None
        self._observed.pop(self._current, None)
        self._without.clear()
        self._resources.recipes.put(self._current[0], recipe, lasts)
        self.tell()

    def used(self) -> Recipe | None:
        """The recipe that this thread's calls are computed with, if they are."""
        if self.trial() is not None or much_noise.active() or not self.applies():
            return None
        recipe = self.recipe()
        return None if recipe is None or recipe.refused else recipe

    def make_ahead(self, prepare: Callable[[Signature], bool]) -> None:
        """Begin to make a recipe in the background, if it can be made: ``prepare(signature)`` begins to compile a form in 8 bits.

        When the next picture begins and nothing more was observed, its recipe has the same digest, and finds what was compiled.
        """
        calibration = self.complete(begins=True)
        if calibration is None or not calibration.ranges:
            return
        samples = calibration.samples
        with self.trying(self.candidate(calibration), samples):
            for signature in {sample.call.signature for sample in samples}:
                prepare(signature)
        noisy = {sample.call.signature for sample in samples if much_noise.in_call(sample.call)}
        if noisy and self._both.fits():
            with self.without():
                for signature in noisy:
                    prepare(signature)

    def comes_next(self, call: Call) -> bool:
        """Whether a call was computed without int8 for its noise, and those that follow it in its picture are in 8 bits."""
        return self._hooks.quantizable and much_noise.in_call(call) and self.used() is not None

    def samples(self, signature: Signature) -> list[Sample]:
        """The observed calls of a signature that what is compiled now is tried on."""
        trial = self.trial()
        return [sample for sample in trial.samples if sample.call.signature == signature] if trial is not None else []

    def for_call(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """In this block, a call is computed without int8 if its arguments are not finite, or if no layer would be in 8 bits.

        8 bits have neither NaN nor infinity. So is a call with much noise, where both forms fit in memory.
        """
        if not self.applies():
            return contextlib.nullcontext()
        if call.signature in self._without:
            self._tell_off(self._without[call.signature])
            return self.without()
        if not has_finite_inputs(call.tensors):
            return self.without()
        return much_noise.context() if much_noise.in_call(call) else contextlib.nullcontext()

    def leave_out(self, signature: Signature, reason: str) -> None:
        """Calls of a signature have no layer in 8 bits; the recipe's layers are those of other sizes."""
        self._without[signature] = reason
        self._tell_off(reason)


def _quantized(settings: Settings, recipe: Recipe) -> Form:
    return Form(settings, f"int8 {recipe.digest}", Quantize(recipe.ranges))


def _cloned(call: Call) -> Call:
    return replace(call, tensors=tuple(tensor.clone() for tensor in call.tensors))
