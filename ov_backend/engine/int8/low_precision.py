"""int8 for the calls of one network or block: in which form one is answered, and what is observed of it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ov_backend.core.errors import Interrupted, NotFiniteWeight, NothingIn8Bits, OVBackendError, last_line, pass_on_signals
from ov_backend.core.settings import Settings
from ov_backend.engine.ahead import warmup
from ov_backend.engine.conditions import has_finite_inputs
from ov_backend.engine.int8 import much_noise
from ov_backend.engine.int8.precision import Precision
from ov_backend.engine.request import CompiledEntry, Form
from ov_backend.guards.signature import Call, Signature
from ov_backend.guards.weights import WeightsGuard

_NOT_STATIC = "it is for graphs of fixed sizes and weights that are not trained"
_IN_F32 = "with these weights a result was not finite, so they compute in f32"
Compiled = Callable[[Call], CompiledEntry]


@dataclass(eq=False)
class CallSample:
    """A call of a whole network that was observed: its arguments, its flat results, and the state that gave them.

    Each sample has another number.
    """

    call: Call
    outputs: tuple[torch.Tensor, ...]
    state: tuple[str, str, str]
    compiled: Compiled
    number: int = field(default_factory=itertools.count().__next__)
    changed: bool = False

    @property
    def much_noise(self) -> bool:
        """Whether its timestep says that there is much noise."""
        return much_noise.in_call(self.call)

    def replay(self) -> Sequence[torch.Tensor]:
        """Compute the call again, or take what was computed in the background."""
        entry = self.compiled(self.call)
        self.changed = entry.state != self.state
        return entry.tried.pop(self.number, None) or entry.program(self.call.tensors)


class LowPrecision:
    """Int8 for the calls of a network, or of one of its blocks.

    Args:
        precision: of the network.
        compiled: finds or compiles what answers a call.
        look: looks at code and weights as they are now, for a call.
        of_block: whether these are a block's: its steps are observed, and its recipe is the network's.

    Attributes:
        path: of the block from the network; None where it is not a part of it.
    """

    def __init__(self, precision: Precision, compiled: Compiled, look: Callable[[Call], object], of_block: bool) -> None:
        self.precision, self._compiled, self._look, self._of_block = precision, compiled, look, of_block
        self.path: str | None = None if of_block else ""
        self._making = threading.Lock()
        #: By recipe and signature, why its calls have no layer in 8 bits.
        self._without: dict[tuple[str, Signature], str] = {}

    def form(self, settings: Settings, weights: WeightsGuard) -> Form:
        """The form in which a network with these weights is compiled now."""
        if not self._of_block:
            self._identify(settings.precision == "int8", weights)
        return self.precision.form(settings, self.path)

    def _identify(self, asked: bool, weights: WeightsGuard) -> None:
        """Set which recipe belongs to these weights; ``asked``: int8 is asked for."""
        precision, hooks = self.precision, self.precision.hooks
        if asked and precision.is_possible:
            checkpoint = "" if hooks.watched else weights.digest
            precision.identify(weights.digest, weights.tensors, checkpoint=checkpoint)
        else:
            precision.current, precision.failure = None, ""
        if not hooks.quantizable and asked and not hooks.watched:
            precision.tell_off(_NOT_STATIC)
        elif hooks.quantizable and not asked and precision.applies():
            precision.tell_off(_IN_F32)
        elif hooks.quantizable and not asked:
            precision.tell_nothing()
        elif hooks.quantizable and precision.trial() is None:
            precision.tell()

    def for_call(self, call: Call) -> contextlib.AbstractContextManager[None]:
        """In this block, a call is computed without int8 if its arguments are not finite, or if no layer would be in 8 bits.

        8 bits have neither NaN nor infinity. So is a call with much noise, where both forms fit in memory.
        """
        precision, recipe = self.precision, self.precision.recipe()
        if not precision.applies() or (self._of_block and not precision.form(precision.resources.settings, self.path).name):
            return contextlib.nullcontext()
        if recipe is not None and (reason := self._without.get((recipe.digest, call.signature))):
            if not self._of_block:
                precision.tell_off(reason)
            return precision.without()
        if not has_finite_inputs(call.tensors):
            return precision.without()
        return precision.noise(not self._of_block and much_noise.in_call(call))

    def entry_of(self, call: Call) -> CompiledEntry:
        """What is compiled for a call; without int8 where its form in 8 bits cannot be compiled, and then from now on."""
        precision = self.precision
        with self.for_call(call):
            try:
                return self._compiled(call)
            except Interrupted:
                raise
            except (OVBackendError, RuntimeError) as error:
                pass_on_signals(error)
                recipe, failed = precision.used(), last_line(error)
                if recipe is None:
                    raise
                kind = type(error)
        with precision.without():
            entry = self._compiled(call)
        if kind not in (NothingIn8Bits, NotFiniteWeight):
            precision.keep(recipe.refuse(failed))
            return entry
        if kind is NothingIn8Bits:  # the recipe's layers are those of other sizes
            self._without[recipe.digest, call.signature] = failed
        if not self._of_block:
            precision.tell_off(failed)
        return entry

    def count(self, entry: CompiledEntry, call: Call, outputs: Sequence[torch.Tensor]) -> None:
        """Count a call that was answered by what is compiled."""
        observed = self.precision.last_observed
        if observed is None or entry.form != observed.name:
            return
        observed.count(lambda: CallSample(_cloned(call), tuple(x.clone() for x in outputs), entry.state, self._compiled))

    def make(self, call: Call) -> None:
        """Make the recipe, if enough was observed.

        Args:
            call: the next one; its weights are those that a recipe is made for.
        """
        precision = self.precision
        if self._of_block:
            return
        precision.picture_begins()
        if not any(map(precision.due, precision.observed.values())) or not self._making.acquire(blocking=False):
            return
        try:
            self._look(call)  # the checkpoint is that of the weights as they are now
            observed = precision.last_observed
            if observed is not None and precision.due(observed):
                precision.make(observed)
        finally:
            self._making.release()

    def make_ahead(self, prepare: Callable[[Signature], bool]) -> None:
        """Begin to make a recipe in the background, if it can be made: ``prepare(signature)`` begins to compile a form in 8 bits.

        When the next picture begins and nothing more was observed, its recipe has the same digest, and finds what was compiled.
        """
        precision, observed = self.precision, self.precision.last_observed
        if warmup.active() or observed is None or observed.by_blocks or not precision.applies():
            return
        if not observed.is_complete(True):
            return
        recipe, samples = precision.candidate(observed), precision.tried_on(observed)
        if not recipe.ranges or not samples:
            return
        with precision.trying(recipe, samples):
            for signature in {sample.call.signature for sample in samples}:
                prepare(signature)
        noisy = {sample.call.signature for sample in observed.samples if sample.much_noise}
        if noisy and precision.both.fits():
            with precision.without():
                for signature in noisy:
                    prepare(signature)

    def comes_next(self, call: Call) -> bool:
        """Whether a call was computed without int8 for its noise, and those that follow it in its picture are in 8 bits."""
        return not self._of_block and much_noise.in_call(call) and self.precision.used() is not None

    def samples(self, signature: Signature) -> list[CallSample]:
        """The observed calls of a signature that what is compiled now is tried on."""
        trial = self.precision.trial()
        return [sample for sample in trial.samples if sample.call.signature == signature] if trial is not None else []


def _cloned(call: Call) -> Call:
    return replace(call, tensors=tuple(tensor.clone() for tensor in call.tensors))
