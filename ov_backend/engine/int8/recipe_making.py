"""When a network's recipe for int8 is made and tried, and what answers a call whose form in 8 bits cannot be compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from ov_backend.core.errors import Interrupted, NothingIn8Bits, OVBackendError, last_line, pass_on_signals
from ov_backend.engine.int8.calibration_runs import CalibrationRuns
from ov_backend.engine.int8.low_precision import Sample
from ov_backend.engine.int8.recipe_trial import tried
from ov_backend.engine.lookup import Lookup
from ov_backend.engine.request import CompiledEntry
from ov_backend.engine.resources import Resources
from ov_backend.guards.signature import Call
from ov_backend.int8.recipe import Recipe, relative_error


class RecipeMaking:
    """The recipe of one network.

    Args:
        resources: shared with the engine's other networks.
        name: of the network.
        lookup: of the network.
        pictures: says when one begins.
        look: looks at code and weights as they are now, for a call.
        compiled: finds or compiles what answers a call.
    """

    def __init__(
        self,
        resources: Resources,
        name: str,
        lookup: Lookup,
        pictures: CalibrationRuns,
        look: Callable[[Call], object],
        compiled: Callable[[Call], CompiledEntry],
    ) -> None:
        self._resources, self._name, self._lookup = resources, name, lookup
        self._look, self._compiled = look, compiled
        self._pictures = pictures
        self._making = threading.Lock()

    def entry_of(self, call: Call) -> CompiledEntry:
        """What is compiled for a call; without int8 where its form in 8 bits cannot be compiled, and then from now on."""
        low_precision = self._lookup.low_precision
        with low_precision.for_call(call):
            try:
                return self._compiled(call)
            except Interrupted:
                raise
            except (OVBackendError, RuntimeError) as error:
                pass_on_signals(error)
                recipe, failed = low_precision.used(), last_line(error)
                if recipe is None:
                    raise
                fits_no_layer = isinstance(error, NothingIn8Bits)
        with low_precision.trying(None):
            entry = self._compiled(call)
        if fits_no_layer:
            low_precision.leave_out(call.signature, failed)
        else:
            low_precision.keep(recipe.refuse(failed), lasts=False)  # another process tries again
        return entry

    def make(self, call: Call) -> None:
        """Make the recipe, if enough was observed and a picture begins; compare it with what was observed.

        Args:
            call: the first of the picture; its weights are those that a recipe is made for.
        """
        begins, low_precision = self._pictures.begins(), self._lookup.low_precision
        if begins:
            low_precision.begin_picture()
        if (self._pictures.told and not begins) or not low_precision.may_complete(begins):
            return
        if not self._making.acquire(blocking=False):
            return
        try:
            self._look(call)  # the checkpoint is that of the weights as they are now
            calibration = low_precision.complete(begins)
            if calibration is not None:
                recipe, failed = low_precision.candidate(calibration), False
                try:
                    errors = partial(self._errors, recipe, calibration.samples)
                    result = tried(self._resources, self._name, recipe, errors)
                except Interrupted:
                    raise
                except (OVBackendError, RuntimeError) as error:  # for lack of memory, it may be: another process tries again
                    pass_on_signals(error)
                    result, failed = recipe.refuse(last_line(error)), True
                if result is not None:  # a larger size may have layers in 8 bits where this one has none
                    low_precision.keep(result, lasts=bool(recipe.ranges) and not failed)
        finally:
            self._making.release()

    def _errors(self, recipe: Recipe, samples: Sequence[Sample]) -> list[float] | None:
        """The errors of some calls with a recipe; None if the weights are those of another checkpoint by now."""
        low_precision, errors = self._lookup.low_precision, []
        for sample in samples:
            with low_precision.trying(recipe):
                entry = self._compiled(sample.call)
                if not entry.form.startswith("int8"):
                    return None
                if sample.number in entry.errors:
                    errors.append(entry.errors.pop(sample.number))
                    continue
                actual, expected = entry.program(sample.call.tensors), sample.outputs
            if entry.state != sample.state:  # a LoRA was added or removed, or an attribute set that the forward reads
                with low_precision.trying(None):
                    expected = tuple(self._compiled(sample.call).program(sample.call.tensors))
            errors.append(relative_error(actual, expected))
        return errors
