"""int8 for a network that runs by its blocks: one recipe for all of them, which is tried on whole steps.

As with a whole network, the first picture is computed in the device's own precision, and the next one in 8 bits. Layers are named
by the path of their weight from the network. A recipe belongs to one checkpoint and to the forward that calls the blocks,
because what another extension adds between them has its own ranges.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch

from ov_backend.engine import warmup
from ov_backend.engine.block_place import BlockGone
from ov_backend.engine.blocks_observed import Observed
from ov_backend.engine.calibration_runs import Pictures
from ov_backend.engine.conditions import has_finite_inputs, is_finite
from ov_backend.engine.foreign_code import name_of
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.low_precision import CALIBRATES, NO_VNNI, LowPrecision, describe, refused, relative_error
from ov_backend.engine.recipe_trial import tried
from ov_backend.engine.request import CompiledEntry, Form
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.engine.step_tape import Recorder, Tape
from ov_backend.errors import Interrupted, last_line, pass_on_signals
from ov_backend.guards import content
from ov_backend.guards.signature import Call
from ov_backend.guards.weights import WeightsGuard
from ov_backend.quantization.calibration import MIN_CALLS
from ov_backend.quantization.identity import architecture_of, checkpoint_of
from ov_backend.quantization.recipe import Recipe
from ov_backend.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.settings import Settings
from ov_backend.tensors import nested_tensors
from ov_backend.transformations.low_precision import Quantize

#: The calls of so many checkpoints and forwards are kept until there are enough for a recipe; tapes are large.
_MAX_OBSERVED = 2
#: After so many runs without a step they are dropped.
_MAX_UNUSED_RUNS = 3
#: The largest relative difference of a step that is computed again in the same way.
_SAME = 1e-3
_UNFOLLOWED = "what is computed between its blocks cannot be computed again, so the error of a step is not known"

log = logging.getLogger(__name__)
#: The recipe that this thread's blocks are computed with, to see whether it can be used; None computes without int8.
_trial: ContextVar[tuple[BlocksPrecision, Recipe | None] | None] = ContextVar("blocks_trial", default=None)


class BlocksPrecision:
    """Int8 for the blocks of one network.

    Args:
        resources: shared with the engine's other networks.
        name: of the network.
        module: the network.
        hooks: of the network.
        statistics: of the network.
    """

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks, statistics: NetworkStats
    ) -> None:
        self._resources, self._name, self._module, self._statistics = resources, name, module, statistics
        self._hooks = hooks
        #: By architecture and checkpoint, the one used last at the end.
        self._observed: dict[tuple[str, str], Observed] = {}
        self.pictures = Pictures(resources)
        #: Why a failure of ours keeps the last step from int8, or "".
        self._failure = ""
        #: Of the step in progress; None where int8 does not apply.
        self._current: tuple[str, str] | None = None
        #: The checkpoint, with the marks of the weights that it was read from.
        self._checkpoint: tuple[Any, str] | None = None
        #: The forms of blocks by recipe and path.
        self._parts: dict[tuple[str, str], Form | None] = {}

    def clear(self) -> None:
        """Forget what was observed."""
        self._observed.clear()
        self._parts.clear()
        self._checkpoint = None

    def begin_picture(self) -> None:
        """The host says that a picture begins."""
        self.pictures.note()
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop what is no longer added to."""
        for identity, observed in list(self._observed.items()):
            observed.unused += 1
            if observed.unused > _MAX_UNUSED_RUNS or not self._applies(self._resources.settings):
                del self._observed[identity]

    def read_again(self) -> None:
        """Read the weights again that tell the checkpoint."""
        self._checkpoint = None

    def end_run(self, completed: bool) -> None:
        """The host's run of calls is over; what was observed in an interrupted picture is not all that a picture has."""
        for observed in self._observed.values() if self.pictures.told and not completed else ():
            observed.calibration.begin_anew()
        self.pictures.end()
        self._drop_unused()

    def run(self, called: Callable[..., Any], forward: Callable[[], Any]) -> Any:
        """Run one step.

        Args:
            called: the forward of the network or of other code; names the recipe.
            forward: calls it with its arguments.

        Raises:
            Interrupted: see :class:`Resources`.
        """
        before, self._failure = self._statistics.block_calls, ""
        if self.pictures.begins():
            for each in self._observed.values():
                each.ended = True
        observed = None
        with self._not_failing():
            observed = self._begin(called)
        if observed is None or warmup.active():
            result = forward()
        else:
            result = self._observed_step(observed, forward, before)
        if self._statistics.block_calls > before:
            self._tell()
        return result

    @contextlib.contextmanager
    def _not_failing(self) -> Iterator[None]:
        """In this block, what fails is none of the forward: the step goes on without int8, and the statistics say why."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            pass_on_signals(error)
            log.debug("int8 of %s by its blocks failed", self._name, exc_info=True)
            self._current, self._failure = None, f"int8 is not used: {last_line(error)}"

    def _begin(self, called: Callable[..., Any]) -> Observed | None:
        """Look up the recipe, or make it; what observes this step, or None."""
        self._current = None
        if not self._applies(self._resources.settings) or not multiplies_8_bits_exactly():
            return None
        self._current = identity = self._identity(called)
        if self._resources.recipes.get(*identity) is not None:
            return None
        observed = self._observation(identity)
        waits = self.pictures.told and not observed.ended
        if not warmup.active() and not waits and observed.calibration.is_complete(observed.ended):
            self._make_recipe(observed)
        return self._observation(identity) if self._resources.recipes.get(*identity) is None else None

    def _applies(self, settings: Settings) -> bool:
        return self._hooks.quantizable and settings.precision == "int8"

    def _identity(self, called: Callable[..., Any]) -> tuple[str, str]:
        tensors = dict(self._module.named_parameters())
        marks = content.marks(list(tensors.values()))
        if self._checkpoint is None or self._checkpoint[0] != marks:
            self._checkpoint = marks, checkpoint_of(tensors)
        kind = type(self._module)
        name = f"{kind.__module__}.{kind.__qualname__} {self._hooks.function} by its blocks in {name_of(called)}"
        return architecture_of(name, tensors), self._checkpoint[1]

    def _observation(self, identity: tuple[str, str]) -> Observed:
        observed = self._observed.pop(identity, None) or Observed()
        self._observed[identity] = observed
        if len(self._observed) > _MAX_OBSERVED:
            del self._observed[next(iter(self._observed))]
        return observed

    def _observed_step(self, observed: Observed, forward: Callable[[], Any], blocks: int) -> Any:
        """Run one step whose ranges are observed; ``blocks``: calls of blocks before."""
        observed.ended, observed.unused = False, 0
        calibration, recorder = observed.calibration, None
        if calibration.wants_sample and observed.divided:
            recorder = Recorder()
            with recorder.recording():
                result = forward()
        else:
            result = forward()
        with self._not_failing():
            self._count(observed, recorder, result, blocks)
        return result

    def _count(self, observed: Observed, recorder: Recorder | None, result: Any, blocks: int) -> None:
        """Count a step whose ranges were observed."""
        calibration, outputs = observed.calibration, list(nested_tensors([result]))
        was_divided, observed.divided = observed.divided, self._statistics.block_calls > blocks
        if not (was_divided and observed.divided and outputs and is_finite(outputs)):
            return
        if recorder is not None and recorder.wrote_weights and observed.wrote < MIN_CALLS:
            observed.wrote += 1
            return
        tape = None if recorder is None else recorder.finished(result)
        if recorder is None:
            calibration.skip()
        elif tape is None or (not calibration.calls and not self._is_faithful(tape)):
            self._keep(refused(self._candidate(observed), _UNFOLLOWED), lasts=False)
        else:
            calibration.count(lambda: tape)

    def _is_faithful(self, tape: Tape) -> bool:
        """Whether a step that is computed again has the same result."""
        try:
            return relative_error(tape.replay(), tape.outputs) <= _SAME
        except Interrupted:
            raise
        except Exception as error:  # of an operator that another extension made, it may be: the step itself has its result
            pass_on_signals(error)
            return False

    def _candidate(self, observed: Observed) -> Recipe:
        assert self._current is not None
        calibration = observed.calibration
        return Recipe(type(self._module).__qualname__, self._current[1], max(1, calibration.calls), 0.0, "", calibration.ranges)

    def _make_recipe(self, observed: Observed) -> None:
        recipe, lasts = self._candidate(observed), True
        try:
            errors = partial(self._errors, recipe, observed.calibration.samples)
            result = tried(self._resources, self._name, recipe, errors)
        except Interrupted:
            raise
        except BlockGone:  # calibrate anew
            assert self._current is not None
            self._observed.pop(self._current, None)
            return
        except Exception as error:  # for lack of memory, it may be: another process tries again
            pass_on_signals(error)
            result, lasts = refused(recipe, last_line(error)), False
        if result is not None:
            self._keep(result, lasts)

    def _errors(self, recipe: Recipe, tapes: Sequence[Tape]) -> list[float]:
        """The errors of some steps with a recipe."""
        errors = []
        for tape in tapes:
            with self.trying(recipe):
                actual = tape.replay()
            expected: Sequence[torch.Tensor] = tape.outputs
            if tape.changed:  # a LoRA was added or removed, or an attribute set that a block reads
                with self.trying(None):
                    expected = tape.replay()
            errors.append(relative_error(actual, expected))
        return errors

    def _keep(self, recipe: Recipe, lasts: bool) -> None:
        assert self._current is not None
        self._resources.recipes.put(self._current[0], recipe, lasts)
        self._parts.clear()
        observed = self._observed.pop(self._current, None)
        if observed is not None:
            form = f"observing {observed.number} "
            self._resources.compiled.evict(lambda key, entry: entry.network == self._name and entry.form.startswith(form))

    def refuse(self, error: Exception) -> None:
        """Use int8 no more in this process, with this checkpoint and forward."""
        recipe = None if self._current is None else self._resources.recipes.get(*self._current)
        if recipe is None and self._current is not None:
            recipe = self._candidate(self._observation(self._current))
        if recipe is not None:
            self._keep(refused(recipe, last_line(error)), lasts=False)

    def _tell(self) -> None:
        """Set what the statistics say of int8."""
        settings, tell = self._resources.settings, partial(self._statistics.tell_int8, self._name)
        if not self._hooks.quantizable:
            return
        recipe = None if self._current is None else self._resources.recipes.get(*self._current)
        if settings.precision != "int8":
            self._statistics.int8 = {}
        elif self._current is None:
            tell("off", self._failure or NO_VNNI)
        elif recipe is None:
            tell("calibrating", CALIBRATES)
        elif recipe.refused:
            tell("off", f"int8 is not used: {recipe.refused}", recipe.error or None)
        else:
            tell("on", describe(recipe.error), recipe.error)

    def form(self, path: str | None, settings: Settings) -> Form:
        """The form in which a block is compiled now; its path from the network, or None where it is beside it."""
        plain = Form(settings.replace(precision="auto") if settings.precision == "int8" else settings)
        if self._current is None or path is None or not self._applies(settings):
            return plain
        trial = _trial.get()
        if trial is not None and trial[0] is self:
            recipe = trial[1]
            return plain if recipe is None else self._part(recipe, path, settings) or plain
        recipe = self._resources.recipes.get(*self._current)
        if recipe is None:
            return self._observation(self._current).form(path, plain.settings)
        return plain if recipe.refused else self._part(recipe, path, settings) or plain

    def _part(self, recipe: Recipe, path: str, settings: Settings) -> Form | None:
        """The form of a block with its part of a recipe; None where it has none."""
        key = recipe.digest, path
        if key not in self._parts:
            start = f"{path}."
            ranges = {name[len(start) :]: given for name, given in recipe.ranges.items() if name.startswith(start)}
            part = hashlib.sha256(repr(sorted(ranges.items())).encode()).hexdigest()[:32]
            self._parts[key] = Form(settings, f"int8 {part}", Quantize(ranges)) if ranges else None
        form = self._parts[key]
        return None if form is None else Form(settings, form.name, form.rewrite)

    @contextlib.contextmanager
    def trying(self, recipe: Recipe | None) -> Iterator[None]:
        """In this block, this thread's blocks are computed with a recipe; without int8 where it is None."""
        token = _trial.set((self, recipe))
        try:
            yield
        finally:
            _trial.reset(token)


class BlockPrecision(LowPrecision):
    """What :class:`LowPrecision` is to a whole network, for one block: it has no recipe of its own.

    Attributes:
        path: of the block from the network; None where it is not a part of it.
    """

    def __init__(
        self, of_network: BlocksPrecision, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks,
        statistics: NetworkStats,
    ) -> None:  # fmt: skip
        super().__init__(resources, name, module, hooks, statistics)
        self._of_network = of_network
        self.path: str | None = None

    def form(self, settings: Settings, weights: WeightsGuard) -> Form:
        """The form in which the block is compiled now."""
        return self._of_network.form(self.path, settings)

    def is_used(self) -> bool:
        """Whether the block is computed in 8 bits, or observed."""
        return bool(self._of_network.form(self.path, self._resources.settings).name)

    def for_call(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """As of a whole network."""
        finite = not self.is_used() or has_finite_inputs(call.tensors)
        return contextlib.nullcontext() if finite else self.without()

    def without(self) -> contextlib.AbstractContextManager[None]:
        """As of a whole network."""
        return self._of_network.trying(None)

    def count(self, entry: CompiledEntry, call: Call, outputs: Sequence[torch.Tensor]) -> None:
        """Nothing: steps are counted."""

    def complete(self, begins: bool) -> None:
        """Nothing: the recipe is the network's."""
