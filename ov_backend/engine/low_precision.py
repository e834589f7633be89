"""int8 for one network: which form of it is compiled now, and how a recipe comes about.

The first picture is computed in the device's own precision, and the ranges of the layers' inputs are observed. When the next
picture begins, a recipe is made of them. It is used if some calls of the first picture have nearly the same result in 8 bits.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from ov_backend.engine import much_noise
from ov_backend.engine.conditions import has_finite_inputs
from ov_backend.engine.dual_precision_memory import BothForms
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.request import CompiledEntry, Form
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import WeightsGuard
from ov_backend.quantization.calibration import MAX_CALLS, MAX_GRAPH_CALLS, MIN_CALLS, Calibration
from ov_backend.quantization.identity import architecture_of, checkpoint_of
from ov_backend.quantization.recipe import MAX_ERROR, Recipe
from ov_backend.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.settings import Settings
from ov_backend.transformations.low_precision import Observe, Quantize

#: Weights may change at every call. The calls of so many checkpoints are kept until there are enough for a recipe.
_MAX_OBSERVED = 16
#: Of so many states of the weights it is known which checkpoint they are.
_MAX_IDENTITIES = 64
#: Errors of a call up to which its pictures are described so: a judgement by eye, on one small network.
_WORDS = (
    (0.005, "hardly to be told apart from the device's own precision"),
    (0.015, "the same picture with small differences"),
    (MAX_ERROR, "the same picture with visible differences in details"),
)
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


@dataclass(frozen=True)
class _Observed:
    """A calibration in progress.

    Attributes:
        number: tells what was compiled for it from what was compiled for another.
        calibration: what was observed.
    """

    number: int
    calibration: Calibration[Sample]

    @property
    def name(self) -> str:
        """Of the form of the calls that are observed."""
        return f"observing {self.number}"

    def form(self, settings: Settings) -> Form:
        """The form of the calls that are observed; these settings are without int8."""
        return Form(settings, self.name, Observe(self.calibration.observer()))


@dataclass(frozen=True)
class _Trial:
    """The calls of this thread to a network are computed with a recipe, to see whether it can be used; None is without int8."""

    network: str
    recipe: Recipe | None
    samples: Sequence[Sample] = ()


_trial: contextvars.ContextVar[_Trial | None] = contextvars.ContextVar("trial", default=None)
_numbers = itertools.count(1)


class LowPrecision:
    """Int8 for one network.

    Args:
        resources: shared with the engine's other networks.
        name: of the network.
        module: the owner of the weights.
        hooks: of the network.
        statistics: of the network.
    """

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks, statistics: NetworkStats
    ) -> None:
        self._resources, self._name, self._module, self._statistics = resources, name, module, statistics
        self._hooks, self._both = hooks, BothForms(resources, name, module, statistics)
        #: By the digest of the weights.
        self._identities: dict[str, tuple[str, str]] = {}
        #: By architecture and checkpoint, the one used last at the end.
        self._observed: dict[tuple[str, str], _Observed] = {}
        self._current: tuple[str, str] = ("", "")
        #: By signature, why its calls have no layer in 8 bits.
        self._without: dict[Signature, str] = {}

    def clear(self) -> None:
        """Forget what was observed."""
        self._observed.clear()
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
        trial = _trial.get()
        if trial is not None and trial.network == self._name:
            recipe = trial.recipe
            own = recipe is not None and recipe.checkpoint == identity[1]
            return _quantized(settings, recipe) if recipe is not None and own else plain
        recipe = self._resources.recipes.get(*identity)
        if recipe is None:
            self._statistics.tell_int8(self._name, "calibrating", CALIBRATES if self._hooks.watched else GRAPH_CALIBRATES)
            return self._observation(identity).form(plain.settings)
        own = much_noise.active() and self._both.fits()
        self._tell(recipe, f"; steps with much noise are computed in {self._both.own}" if own else "")
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

    def _observation(self, identity: tuple[str, str]) -> _Observed:
        observed = self._observed.pop(identity, None)
        if observed is None:
            observed = _Observed(next(_numbers), Calibration(MAX_CALLS if self._hooks.watched else MAX_GRAPH_CALLS))
        self._observed[identity] = observed
        if len(self._observed) > _MAX_OBSERVED:
            del self._observed[next(iter(self._observed))]
        return observed

    def _tell(self, recipe: Recipe, steps: str = "") -> None:
        """Say what int8 does; ``steps``: which steps it leaves out."""
        if recipe.refused:
            self._tell_off(recipe.refused, recipe.error or None)
        elif steps or not self._statistics.int8.get("text", "").startswith(describe(recipe.error)):
            self._statistics.tell_int8(self._name, "on", describe(recipe.error) + steps, recipe.error)

    def _tell_off(self, reason: str, error: float | None = None) -> None:
        self._statistics.tell_int8(self._name, "off", f"int8 is not used: {reason}", error)

    def count(self, entry: CompiledEntry, call: Call, outputs: Sequence[torch.Tensor]) -> None:
        """Count a call that was answered by what is compiled."""
        observed = self._observed.get(self._current)
        if observed is not None and entry.form == observed.name:
            observed.calibration.count(lambda: Sample(_cloned(call), tuple(x.clone() for x in outputs), entry.state))

    def end_picture_early(self) -> None:
        """A picture ended before its last step: what was observed in it is not all that a picture has."""
        observed = self._observed.get(self._current)
        if observed is not None:
            observed.calibration.begin_anew()

    def may_complete(self, begins: bool) -> bool:
        """Whether :meth:`complete` has a calibration for one of the checkpoints that were called."""
        return any(observed.calibration.is_complete(begins) for observed in self._observed.values())

    def complete(self, begins: bool) -> Calibration[Sample] | None:
        """The calibration of the weights called last, if int8 is still asked for and a recipe can be made of it.

        Args:
            begins: the next picture begins.
        """
        observed = self._observed.get(self._current)
        if observed is None or self._resources.settings.precision != "int8":
            return None
        return observed.calibration if observed.calibration.is_complete(begins) else None

    def candidate(self, calibration: Calibration[Sample]) -> Recipe:
        """The recipe of a calibration, whose error is not known yet."""
        network = type(self._module).__qualname__
        return Recipe(network, self._current[1], calibration.calls, 0.0, "", calibration.ranges)

    def keep(self, recipe: Recipe, lasts: bool = True) -> None:
        """Keep a recipe, whether it is used or not, so that nothing is calibrated again; ``lasts``: in other processes, too."""
        self._observed.pop(self._current, None)
        self._without.clear()
        self._resources.recipes.put(self._current[0], recipe, lasts)
        self._tell(recipe)

    def used(self) -> Recipe | None:
        """The recipe that this thread's calls are computed with, if they are."""
        if _trial.get() is not None or much_noise.active() or not self._hooks.quantizable or not any(self._current):
            return None
        if self._resources.settings.precision != "int8":
            return None
        recipe = self._resources.recipes.get(*self._current)
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
        trial = _trial.get()
        return [sample for sample in trial.samples if sample.call.signature == signature] if trial is not None else []

    def for_call(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """In this block, a call is computed without int8 if its arguments are not finite, or if no layer would be in 8 bits.

        8 bits have neither NaN nor infinity. So is a call with much noise, where both forms fit in memory.
        """
        if not self._hooks.quantizable or self._resources.settings.precision != "int8":
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

    def without(self) -> contextlib.AbstractContextManager[None]:
        """In this block, this thread's calls are computed without int8."""
        return self.trying(None)

    @contextlib.contextmanager
    def trying(self, recipe: Recipe | None, samples: Sequence[Sample] = ()) -> Iterator[None]:
        """In this block, this thread's calls are computed with a recipe; without int8 where it is None.

        Args:
            recipe: the recipe.
            samples: what is compiled in the background in this block is tried on those of its signature.
        """
        token = _trial.set(_Trial(self._name, recipe, samples))
        try:
            yield
        finally:
            _trial.reset(token)


def _quantized(settings: Settings, recipe: Recipe) -> Form:
    return Form(settings, f"int8 {recipe.digest}", Quantize(recipe.ranges))


def _cloned(call: Call) -> Call:
    return replace(call, tensors=tuple(tensor.clone() for tensor in call.tensors))


def relative_error(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The norm of the difference of a call's results, by the norm of the expected ones."""
    pairs = [(a.double(), e.double()) for a, e in zip(actual, expected) if e.is_floating_point()]
    difference = math.sqrt(sum(float((a - e).square().sum()) for a, e in pairs))
    size = math.sqrt(sum(float(e.square().sum()) for _, e in pairs))
    return difference / size if size else (math.inf if difference else 0.0)


def judged(recipe: Recipe, errors: Sequence[float]) -> Recipe:
    """A recipe with its error, and refused if that is too large."""
    error = math.sqrt(sum(each * each for each in errors) / len(errors)) if errors else math.inf
    finite = error if math.isfinite(error) else 1.0
    limit = f"more than {100 * MAX_ERROR:.0f} % from that in the device's own precision"
    refused = "" if error <= MAX_ERROR else f"a call's result is off by {100 * finite:.1f} %, {limit}"
    return Recipe(recipe.network, recipe.checkpoint, recipe.calls, finite, refused, recipe.ranges)


def describe(error: float) -> str:
    """What an error of a call means for the picture, in words and dB."""
    decibels = -20 * math.log10(max(error, 1e-9))
    words = next(words for bound, words in (*_WORDS, (math.inf, "another picture")) if error <= bound)
    return f"int8: a step's result is {100 * error:.1f} % off ({decibels:.0f} dB), {words}"


def refused(recipe: Recipe, reason: str) -> Recipe:
    """A recipe that is not used, for this reason."""
    return Recipe(recipe.network, recipe.checkpoint, recipe.calls, 0.0, reason[:1000], recipe.ranges)
