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
from functools import partial
from typing import Any

import torch

from ov_backend.core.errors import Interrupted, last_line, pass_on_signals
from ov_backend.core.settings import Settings
from ov_backend.core.tensors import nested_tensors
from ov_backend.engine.ahead import warmup
from ov_backend.engine.blocks.foreign_code import name_of
from ov_backend.engine.blocks.place import BlockGone
from ov_backend.engine.conditions import has_finite_inputs, is_finite
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8.calibrated import CalibratedPrecision, Observed
from ov_backend.engine.int8.calibration_runs import CalibrationRuns
from ov_backend.engine.int8.low_precision import CALIBRATES, NO_VNNI, LowPrecision
from ov_backend.engine.int8.recipe_trial import tried
from ov_backend.engine.int8.step_tape import Recorder, Tape
from ov_backend.engine.request import CompiledEntry, Form
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards import content
from ov_backend.guards.signature import Call
from ov_backend.guards.weights import WeightsGuard
from ov_backend.int8.calibration import MAX_CALLS, MIN_CALLS
from ov_backend.int8.identity import architecture_of, checkpoint_of
from ov_backend.int8.recipe import Recipe, relative_error
from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly
from ov_backend.model.transformations.quantize import Quantize

#: After so many runs without a step they are dropped.
_MAX_UNUSED_RUNS = 3
#: The largest relative difference of a step that is computed again in the same way.
_SAME = 1e-3
_UNFOLLOWED = "what is computed between its blocks cannot be computed again, so the error of a step is not known"

log = logging.getLogger(__name__)


class BlocksPrecision(CalibratedPrecision[Tape]):
    """Int8 for the blocks of one network, see :class:`CalibratedPrecision`."""

    #: Tapes are large.
    most_observed = 2

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks, statistics: NetworkStats
    ) -> None:
        super().__init__(resources, name, module, hooks, statistics)
        self.pictures = CalibrationRuns(resources)
        #: Whether the step in progress is computed in the device's own precision for its noise.
        self._own = False
        #: Why a failure of ours keeps the last step from int8, or "".
        self._failure = ""
        #: The checkpoint, with the marks of the weights that it was read from.
        self._checkpoint: tuple[Any, str] | None = None
        #: The forms of blocks by recipe and path.
        self._parts: dict[tuple[str, str], Form | None] = {}

    def clear(self) -> None:
        """Forget what was observed."""
        super().clear()
        self._parts.clear()
        self._checkpoint = None

    def note_picture(self) -> None:
        """The host says that a picture begins."""
        self.pictures.note()
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop what is no longer added to."""
        for identity, observed in list(self._observed.items()):
            observed.unused += 1
            if observed.unused > _MAX_UNUSED_RUNS or not self.applies():
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

    def run(self, called: Callable[..., Any], forward: Callable[[], Any], much_noise: bool) -> Any:
        """Run one step.

        Args:
            called: the forward of the network or of other code; names the recipe.
            forward: calls it with its arguments.
            much_noise: whether these say that there is much noise.

        Raises:
            Interrupted: see :class:`Resources`.
        """
        before, self._failure = self._statistics.block_calls, ""
        self._own = much_noise and self.applies() and self._both.fits()
        if self.pictures.begins():
            self.begin_picture()
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

    def _begin(self, called: Callable[..., Any]) -> Observed[Tape] | None:
        """Look up the recipe, or make it; what observes this step, or None."""
        self._current = None
        if not self.applies() or not multiplies_8_bits_exactly():
            return None
        self._current = identity = self._identity(called)
        if self.recipe() is not None:
            return None
        observed = self.observation(identity, MAX_CALLS)
        waits = self.pictures.told and not observed.ended
        if not warmup.active() and not waits and observed.calibration.is_complete(observed.ended):
            self._make_recipe(observed)
        return self.observation(identity, MAX_CALLS) if self.recipe() is None else None

    def _identity(self, called: Callable[..., Any]) -> tuple[str, str]:
        tensors = dict(self._module.named_parameters())
        marks = content.marks(list(tensors.values()))
        if self._checkpoint is None or self._checkpoint[0] != marks:
            self._checkpoint = marks, checkpoint_of(tensors)
        kind = type(self._module)
        name = f"{kind.__module__}.{kind.__qualname__} {self._hooks.function} by its blocks in {name_of(called)}"
        return architecture_of(name, tensors), self._checkpoint[1]

    def _observed_step(self, observed: Observed[Tape], forward: Callable[[], Any], blocks: int) -> Any:
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

    def _count(self, observed: Observed[Tape], recorder: Recorder | None, result: Any, blocks: int) -> None:
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
            self._keep(self.candidate(calibration).refuse(_UNFOLLOWED), lasts=False)
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

    def _make_recipe(self, observed: Observed[Tape]) -> None:
        recipe, lasts = self.candidate(observed.calibration), True
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
            result, lasts = recipe.refuse(last_line(error)), False
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
            form = f"{observed.name} "
            self._resources.compiled.evict(lambda key, entry: entry.network == self._name and entry.form.startswith(form))

    def refuse(self, error: Exception) -> None:
        """Use int8 no more in this process, with this checkpoint and forward."""
        if self._current is not None:
            recipe = self.recipe() or self.candidate(self.observation(self._current, MAX_CALLS).calibration)
            self._keep(recipe.refuse(last_line(error)), lasts=False)

    def _tell(self) -> None:
        """Set what the statistics say of int8."""
        if not self._hooks.quantizable:
            return
        if not self.applies():
            self._statistics.int8 = {}
        elif self._current is None:
            self._statistics.tell_int8(self._name, "off", self._failure or NO_VNNI)
        elif self.recipe() is None:
            self._statistics.tell_int8(self._name, "calibrating", CALIBRATES)
        else:
            self.tell(self._own)

    def form(self, path: str | None, settings: Settings) -> Form:
        """The form in which a block is compiled now; its path from the network, or None where it is beside it."""
        plain = Form(settings.replace(precision="auto") if settings.precision == "int8" else settings)
        if self._current is None or path is None or not self._hooks.quantizable or settings.precision != "int8":
            return plain
        trial = self.trial()
        if trial is not None:
            return plain if trial.recipe is None else self._part(trial.recipe, path, settings) or plain
        recipe = self.recipe()
        if recipe is None:
            return self.observation(self._current, MAX_CALLS).form(plain.settings, path)
        return plain if recipe.refused or self._own else self._part(recipe, path, settings) or plain

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
