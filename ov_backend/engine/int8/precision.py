"""What int8 is to a network, whether it is answered as a whole or by its blocks: calibrating, in use, or not used.

The first picture is computed in the device's own precision, and the ranges of the layers' inputs are observed. When the next
picture begins, a recipe is made of them. It is used if some calls of the first picture have nearly the same result in 8 bits.

A recipe belongs to one checkpoint, and by blocks also to the forward that calls them, because what another extension adds between
the blocks has its own ranges. Layers are named by the path of their weight from the network.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ov_backend.core.errors import Interrupted, last_line, pass_on_signals
from ov_backend.core.settings import Settings
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8 import much_noise
from ov_backend.engine.int8.calibration_runs import CalibrationRuns
from ov_backend.engine.int8.dual_precision_memory import DualPrecisionMemory
from ov_backend.engine.request import BlockGone, CompiledEntry, Form
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.int8.calibration import MAX_CALLS, MAX_GRAPH_CALLS, MIN_CALLS, Calibration
from ov_backend.int8.identity import architecture_of, checkpoint_of
from ov_backend.int8.recipe import Recipe, relative_error
from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.model.transformations.quantize import Observe, Quantize

#: Weights may change at every call. The calls of so many checkpoints are kept until there are enough for a recipe.
MOST_OBSERVED = 16
#: After so many runs without a step those of a network by its blocks are dropped, because tapes are large.
_MAX_UNUSED_RUNS = 3
CALIBRATES = (
    "this picture calibrates int8: it is made in the device's own precision, and the ranges of its values are collected; once"
    f" there are {MIN_CALLS} steps, and not all of them have much noise, the next picture is made in int8"
)
GRAPH_CALIBRATES = (
    f"int8 is calibrated: {MAX_GRAPH_CALLS} calls are made in the device's own precision, and the ranges of their values are"
    " collected; later calls are made in int8"
)
NO_ROOM = "; both forms do not fit in memory, so steps with much noise are in 8 bits too, and more pictures become other ones"
NO_VNNI = "this CPU has no VNNI instructions, without which products of 8-bit integers overflow"


class Sample(Protocol):
    """A call or a step that was observed, with its result."""

    @property
    def outputs(self) -> Sequence[torch.Tensor]:
        """Its flat results."""

    @property
    def changed(self) -> bool:
        """Whether weights or code have changed since, as far as :meth:`replay` has shown."""

    @property
    def much_noise(self) -> bool:
        """Whether it was told that there is much noise."""

    def replay(self) -> Sequence[torch.Tensor]:
        """Compute it again."""


@dataclass(frozen=True)
class Trial:
    """The calls of this thread to a network are computed with a recipe, to see whether it can be used; None is without int8."""

    of: Precision
    recipe: Recipe | None
    samples: Sequence[Any] = ()


_trial: contextvars.ContextVar[Trial | None] = contextvars.ContextVar("trial", default=None)


class Precision:
    """Int8 for one network.

    Args:
        resources: shared with the engine's other networks.
        name: of the network.
        module: the owner of the weights.
        hooks: of the network.
        statistics: of the network.

    Attributes:
        pictures: says when one begins.
        both: whether its two forms fit in memory.
        observed: by architecture and checkpoint, the one used last at the end.
        current: architecture and checkpoint of the last call; None where int8 does not apply to it.
        failure: why a failure of ours keeps the last call from int8, or "".
    """

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks, statistics: NetworkStats
    ) -> None:
        self.resources, self.name, self._module, self.hooks, self._statistics = resources, name, module, hooks, statistics
        self.pictures, self.both = CalibrationRuns(resources), DualPrecisionMemory(resources, name, module, statistics)
        self.observed: dict[tuple[str, str], Calibration[Any]] = {}
        self.current: tuple[str, str] | None = None
        self.failure = ""
        #: What the user is told of steps with much noise, as of the last one.
        self._noisy = ""
        #: What the identity was read from last, and the identity.
        self._identity: tuple[Any, tuple[str, str]] | None = None

    def clear(self) -> None:
        """Forget what was observed."""
        self.observed.clear()
        self._identity = None

    def read_again(self) -> None:
        """Read the weights again that tell the checkpoint."""
        self._identity = None

    def begin_picture(self) -> None:
        """The host says that a picture begins."""
        self.pictures.note()
        self._drop_unused()

    def end_run(self, completed: bool) -> None:
        """The host's run of calls is over; what was observed in an interrupted picture is not all that a picture has."""
        for observed in self.observed.values() if self.pictures.told and not completed else ():
            if not observed.ended:  # else it is of another checkpoint's picture
                observed.begin_anew()
        self.pictures.end()
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop what is no longer added to."""
        for identity, observed in list(self.observed.items()):
            observed.unused += observed.by_blocks
            if observed.unused > _MAX_UNUSED_RUNS or not self.applies():
                del self.observed[identity]

    def picture_begins(self) -> None:
        """Take note of it if a picture begins with this call; to be asked at each one."""
        if self.pictures.begins():
            for observed in self.observed.values():
                observed.ended = True

    def applies(self) -> bool:
        """Whether int8 is asked for, and is for this network."""
        return self.hooks.quantizable and self.resources.settings.precision == "int8"

    @property
    def is_possible(self) -> bool:
        """Whether it applies, and this CPU multiplies 8-bit integers without an overflow."""
        return self.applies() and multiplies_8_bits_exactly()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The live weights of the module."""
        return dict(self._module.named_parameters())

    @property
    def last_observed(self) -> Calibration[Any] | None:
        """What is observed of what was called last, if it is."""
        return None if self.current is None else self.observed.get(self.current)

    def identify(self, read: Any, weights: Mapping[str, torch.Tensor], called: str = "", checkpoint: str = "") -> None:
        """Set the identity of this call.

        Args:
            read: what the identity depends on; it is read again where that differs.
            weights: the live weights, if the module has none.
            called: names the forward that calls the blocks; "" for the whole network.
            checkpoint: names the checkpoint; "" where that is told by the weights.
        """
        if self._identity is None or self._identity[0] != (read, called):
            kind = type(self._module)
            name = f"{kind.__module__}.{kind.__qualname__} {self.hooks.function}"
            name += f" by its blocks in {called}" if called else ""
            weights = self.weights or dict(weights)
            self._identity = (read, called), (architecture_of(name, weights), checkpoint or checkpoint_of(weights))
        self.current = self._identity[1]

    def recipe(self) -> Recipe | None:
        """The recipe of what was called last."""
        return None if self.current is None else self.resources.recipes.get(*self.current)

    def used(self) -> Recipe | None:
        """The recipe that this thread's calls are computed with, if they are."""
        if self.trial() is not None or much_noise.active() or not self.applies():
            return None
        recipe = self.recipe()
        return None if recipe is None or recipe.refused else recipe

    def observation(self, by_blocks: bool = False) -> Calibration[Any]:
        """What is observed of what was called last."""
        assert self.current is not None
        observed = self.observed.pop(self.current, None)
        if observed is None:
            observed = Calibration(MAX_CALLS if self.hooks.watched else MAX_GRAPH_CALLS, by_blocks)
        self.observed[self.current] = observed
        if len(self.observed) > MOST_OBSERVED:
            del self.observed[next(iter(self.observed))]
        return observed

    def form(self, settings: Settings, path: str | None) -> Form:
        """The form in which the network is compiled now, or a block.

        Args:
            settings: of the compile.
            path: "" for the network, else of the block from there; None for what is beside it.
        """
        plain = Form(settings.replace(precision="auto") if settings.precision == "int8" else settings)
        if self.current is None or path is None or not self.hooks.quantizable or settings.precision != "int8":
            return plain
        trial, recipe = self.trial(), self.recipe()
        if trial is None and recipe is None:
            observed = self.observation(bool(path))
            name, prefix = (f"{observed.name} {path}", f"{path}.") if path else (observed.name, "")  # blocks may be equal
            return Form(plain.settings, name, Observe(observed.observer(prefix)))
        if trial is not None:
            recipe = trial.recipe
        own = trial is None and much_noise.active()
        if own or recipe is None or recipe.refused or recipe.checkpoint != self.current[1]:
            return plain
        return self._quantized(recipe, settings, path) or plain

    def _quantized(self, recipe: Recipe, settings: Settings, path: str) -> Form | None:
        """The form in 8 bits; None for a block that has no part of the recipe."""
        start, name = (f"{path}.", f"{_form_of(recipe)} {path}") if path else ("", _form_of(recipe))
        ranges = {name.removeprefix(start): given for name, given in recipe.ranges.items() if name.startswith(start)}
        return Form(settings, name, Quantize(ranges)) if ranges else None

    def noise(self, is_much: bool) -> contextlib.AbstractContextManager[None]:
        """In this block, a call with much noise is computed in the device's own precision, where both forms fit in memory."""
        if not (is_much and self.applies()):
            return contextlib.nullcontext()
        fits = self.both.fits()
        self._noisy = f"; steps with much noise are computed in {self.both.own}" if fits else NO_ROOM
        return much_noise.context() if fits else contextlib.nullcontext()

    def trial(self) -> Trial | None:
        """What this thread tries with this network, if it does."""
        trial = _trial.get()
        return trial if trial is not None and trial.of is self else None

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
        token = _trial.set(Trial(self, recipe, samples))
        try:
            yield
        finally:
            _trial.reset(token)

    def due(self, observed: Calibration[Any]) -> bool:
        """Whether a recipe can be made of what was observed: at the end of a picture, or after many calls that no host counts."""
        return (observed.ended or not self.pictures.told) and observed.is_complete(observed.ended)

    def candidate(self, calibration: Calibration[Any]) -> Recipe:
        """The recipe of a calibration, whose error is not known yet."""
        assert self.current is not None
        counts = max(1, calibration.calls), max(1, calibration.pictures)
        return Recipe(type(self._module).__qualname__, self.current[1], *counts, calibration.ranges)

    def tried_on(self, observed: Calibration[Any]) -> list[Any]:
        """The calls that a recipe is tried on: those with much noise are not, where they will not be in 8 bits."""
        fits = self.both.fits()
        return [sample for sample in observed.samples if not (sample.much_noise and fits)]

    def make(self, observed: Calibration[Any]) -> None:
        """Make the recipe of what was called last, and compare it with what was observed."""
        identity, recipe, samples = self.current, self.candidate(observed), self.tried_on(observed)
        if not samples:  # of no step that would be in 8 bits
            return
        try:
            result = self._tried(recipe, samples)
        except Interrupted:
            raise
        except BlockGone:  # calibrate anew
            self.observed = {key: each for key, each in self.observed.items() if each is not observed}
            return
        except Exception as error:
            pass_on_signals(error)
            result = recipe.refuse(last_line(error))
        if self.current == identity:  # else the weights are another checkpoint's by now
            self.keep(result)

    def _tried(self, recipe: Recipe, samples: Sequence[Sample]) -> Recipe:
        """A recipe with its error, and refused if that is too large; what only the trial needed is evicted."""
        form, compiled = _form_of(recipe), self.resources.compiled
        self._evict(lambda key, entry: "observing" in entry.form or (entry.is_unused_int8 and not entry.form.startswith(form)))
        if not recipe.ranges:
            return recipe.refuse("no layer of it can be computed in 8 bits")
        before = set(compiled)
        result = recipe.judge([self._error(recipe, sample) for sample in samples])
        if result.refused:
            self._evict(lambda key, entry: entry.form.startswith(form))
        else:
            self._evict(lambda key, entry: not entry.form and key not in before)
        return result

    def _error(self, recipe: Recipe, sample: Sample) -> float:
        with self.trying(recipe):
            actual = sample.replay()
        expected = sample.outputs
        if sample.changed:  # a LoRA was added or removed, or an attribute set that the forward reads
            with self.trying(None):
                expected = sample.replay()
        return relative_error(actual, expected)

    def _evict(self, unneeded: Callable[[Any, CompiledEntry], bool]) -> None:
        self.resources.compiled.evict(lambda key, entry: entry.network == self.name and unneeded(key, entry))

    def keep(self, recipe: Recipe) -> None:
        """Keep a recipe, whether it is used or not, so that nothing is calibrated again."""
        assert self.current is not None
        self.resources.recipes.put(self.current[0], recipe)
        observed = self.observed.pop(self.current, None)
        if observed is not None:
            self._evict(lambda key, entry: entry.form.startswith(f"{observed.name} ") or entry.form == observed.name)
        self.tell()

    def tell(self) -> None:
        """Set what the statistics say of int8."""
        recipe = self.recipe()
        if not self.applies():
            self.tell_nothing()
        elif self.current is None:
            self.tell_off(self.failure or NO_VNNI)
        elif recipe is None:
            text = CALIBRATES if self.hooks.watched else GRAPH_CALIBRATES
            self._statistics.tell_int8(self.name, "calibrating", text)
        elif recipe.refused:
            self.tell_off(recipe.refused, recipe.error or None)
        else:
            self._statistics.tell_int8(self.name, "on", recipe.describe() + self._noisy, recipe.error)

    def tell_nothing(self) -> None:
        """Say that int8 is not asked for."""
        self._statistics.int8 = {}

    def tell_off(self, reason: str, error: float | None = None) -> None:
        """Say why int8 is not used."""
        self._statistics.tell_int8(self.name, "off", f"int8 is not used: {reason}", error)


def _form_of(recipe: Recipe) -> str:
    """The name of the form of a network with a recipe, with which those of its blocks begin."""
    return f"int8 {recipe.digest}"
