"""int8 for a network that runs by its blocks: one recipe for all of them, which is tried on whole steps."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from ov_backend.core.errors import Interrupted, last_line, pass_on_signals
from ov_backend.core.tensors import nested_tensors
from ov_backend.engine.ahead import warmup
from ov_backend.engine.blocks.foreign_code import name_of
from ov_backend.engine.conditions import is_finite
from ov_backend.engine.int8 import much_noise
from ov_backend.engine.int8.precision import Precision
from ov_backend.engine.int8.step_tape import Recorder, Tape
from ov_backend.engine.stats import NetworkStats
from ov_backend.guards import content
from ov_backend.int8.calibration import MIN_CALLS, Calibration
from ov_backend.int8.recipe import relative_error

#: The largest relative difference of a step that is computed again in the same way.
_SAME = 1e-3
_UNFOLLOWED = "what is computed between its blocks cannot be computed again, so the error of a step is not known"

log = logging.getLogger(__name__)


class BlocksPrecision:
    """Int8 for the steps of a network by its blocks.

    Args:
        precision: of the network.
        statistics: of the network.
    """

    def __init__(self, precision: Precision, statistics: NetworkStats) -> None:
        self._precision, self._statistics = precision, statistics

    def run(self, called: Callable[..., Any], forward: Callable[[], Any], noisy: bool) -> Any:
        """Run one step.

        Args:
            called: the forward of the network or of other code; names the recipe.
            forward: calls it with its arguments.
            noisy: whether these say that there is much noise.

        Raises:
            Interrupted: see :class:`Resources`.
        """
        precision, before, observed = self._precision, self._statistics.block_calls, None
        precision.picture_begins()
        with precision.noise(noisy):
            with self._not_failing():
                observed = self._begin(called)
            identity = precision.current
            result = forward() if observed is None or warmup.active() else self._observed_step(observed, forward, before)
            precision.current = identity
            if self._statistics.block_calls > before and precision.hooks.quantizable:
                precision.tell()
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
            log.debug("int8 of %s by its blocks failed", self._precision.name, exc_info=True)
            self._precision.current, self._precision.failure = None, last_line(error)

    def _begin(self, called: Callable[..., Any]) -> Calibration[Tape] | None:
        """Look up the recipe, or make it; what observes this step, or None."""
        precision = self._precision
        precision.current, precision.failure = None, ""
        if not precision.is_possible:
            return None
        weights = precision.weights
        precision.identify(content.marks(list(weights.values())), weights, called=name_of(called))
        if precision.recipe() is None and not warmup.active():
            observed = precision.observation(by_blocks=True)
            if precision.due(observed):
                precision.make(observed)
        return precision.observation(by_blocks=True) if precision.recipe() is None else None

    def _observed_step(self, observed: Calibration[Tape], forward: Callable[[], Any], blocks: int) -> Any:
        """Run one step whose ranges are observed; ``blocks``: calls of blocks before."""
        observed.unused = 0
        recorder, identity = None, self._precision.current
        if observed.wants_sample and observed.divided:
            recorder = Recorder()
            with recorder.recording():
                result = forward()
        else:
            result = forward()
        self._precision.current = identity
        with self._not_failing():
            self._count(observed, recorder, result, blocks)
        return result

    def _count(self, observed: Calibration[Tape], recorder: Recorder | None, result: Any, blocks: int) -> None:
        """Count a step whose ranges were observed."""
        outputs = list(nested_tensors([result]))
        was_divided, observed.divided = observed.divided, self._statistics.block_calls > blocks
        if not (was_divided and observed.divided and outputs and is_finite(outputs)):
            return
        if recorder is not None and recorder.wrote_weights and observed.wrote < MIN_CALLS:
            observed.wrote += 1
            return
        tape = None if recorder is None else recorder.finished(result)
        if recorder is None:
            observed.count(None)
        elif tape is None or (not observed.calls and not self._is_faithful(tape)):
            self._precision.keep(self._precision.candidate(observed).refuse(_UNFOLLOWED))
        else:
            tape.much_noise = much_noise.active()
            observed.count(lambda: tape)

    def _is_faithful(self, tape: Tape) -> bool:
        """Whether a step that is computed again has the same result."""
        try:
            return relative_error(tape.replay(), tape.outputs) <= _SAME
        except Interrupted:
            raise
        except Exception as error:  # of an operator that another extension made, it may be: the step itself has its result
            pass_on_signals(error)
            return False
