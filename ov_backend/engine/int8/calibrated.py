"""What int8 is to a network, whether it is answered as a whole or by its blocks: calibrating, in use, or not used.

The first picture is computed in the device's own precision, and the ranges of the layers' inputs are observed. When the next
picture begins, a recipe is made of them. It is used if some calls of the first picture have nearly the same result in 8 bits.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from ov_backend.core.settings import Settings
from ov_backend.engine.hooks import NetworkHooks
from ov_backend.engine.int8.dual_precision_memory import DualPrecisionMemory
from ov_backend.engine.request import Form
from ov_backend.engine.resources import Resources
from ov_backend.engine.stats import NetworkStats
from ov_backend.int8.calibration import Calibration
from ov_backend.int8.recipe import Recipe
from ov_backend.model.transformations.quantize import Observe

T = TypeVar("T")


@dataclass
class Observed(Generic[T]):
    """A calibration in progress.

    Attributes:
        calibration: what was observed, with calls of type T to compare int8 with.
        number: tells what was compiled for it from what was compiled for another.
        ended: a picture has ended since the last step.
        unused: number of runs that began since the last step.
        divided: whether blocks were called in the last step; else the other forward calls the whole network, perhaps.
        wrote: number of steps that wrote into weights; these are not counted.
    """

    calibration: Calibration[T]
    number: int = field(default_factory=itertools.count(1).__next__)
    ended: bool = False
    unused: int = 0
    divided: bool = True
    wrote: int = 0

    @property
    def name(self) -> str:
        """Of the form of the calls that are observed."""
        return f"observing {self.number}"

    def form(self, settings: Settings, path: str = "") -> Form:
        """The form of what is observed; the path of a block is a part of it, because blocks may be equal."""
        name, prefix = (f"{self.name} {path}", f"{path}.") if path else (self.name, "")
        return Form(settings, name, Observe(self.calibration.observer(prefix)))


@dataclass(frozen=True)
class _Trial:
    """The calls of this thread to a network are computed with a recipe, to see whether it can be used; None is without int8."""

    of: CalibratedPrecision[Any]
    recipe: Recipe | None
    samples: Sequence[Any] = ()


_trial: contextvars.ContextVar[_Trial | None] = contextvars.ContextVar("trial", default=None)


class CalibratedPrecision(Generic[T]):
    """Int8 for one network.

    Args:
        resources: shared with the engine's other networks.
        name: of the network.
        module: the owner of the weights.
        hooks: of the network.
        statistics: of the network.
    """

    #: Weights may change at every call. The calls of so many checkpoints are kept until there are enough for a recipe.
    most_observed = 16

    def __init__(
        self, resources: Resources, name: str, module: torch.nn.Module, hooks: NetworkHooks, statistics: NetworkStats
    ) -> None:
        self._resources, self._name, self._module, self._statistics = resources, name, module, statistics
        self._hooks, self._both = hooks, DualPrecisionMemory(resources, name, module, statistics)
        #: By architecture and checkpoint, the one used last at the end.
        self._observed: dict[tuple[str, str], Observed[T]] = {}
        #: Architecture and checkpoint of the last call; None where int8 does not apply to it.
        self._current: tuple[str, str] | None = None

    def clear(self) -> None:
        """Forget what was observed."""
        self._observed.clear()

    def begin_picture(self) -> None:
        """A picture begins."""
        for observed in self._observed.values():
            observed.ended = True
            observed.calibration.begin_picture()

    def applies(self) -> bool:
        """Whether int8 is asked for, and is for this network."""
        return self._hooks.quantizable and self._resources.settings.precision == "int8"

    def recipe(self) -> Recipe | None:
        """The recipe of what was called last."""
        return None if self._current is None else self._resources.recipes.get(*self._current)

    def candidate(self, calibration: Calibration[T]) -> Recipe:
        """The recipe of a calibration, whose error is not known yet."""
        assert self._current is not None
        counts = max(1, calibration.calls), max(1, calibration.pictures)
        return Recipe(type(self._module).__qualname__, self._current[1], *counts, calibration.ranges)

    def tell(self, own: bool = False) -> None:
        """Say what int8 does; ``own``: this call is computed in the device's own precision for its noise."""
        recipe = self.recipe()
        if recipe is not None and recipe.refused:
            self._tell_off(recipe.refused, recipe.error or None)
        elif recipe is not None and (own or not self._statistics.int8.get("text", "").startswith(recipe.describe())):
            text = recipe.describe() + (self._both.of_noisy_steps if own else "")
            self._statistics.tell_int8(self._name, "on", text, recipe.error)

    def _tell_off(self, reason: str, error: float | None = None) -> None:
        self._statistics.tell_int8(self._name, "off", f"int8 is not used: {reason}", error)

    def observation(self, identity: tuple[str, str], most: int) -> Observed[T]:
        """What is observed of a checkpoint; ``most``: calls that are enough without the end of a picture."""
        observed = self._observed.pop(identity, None)
        self._observed[identity] = observed = Observed(Calibration(most)) if observed is None else observed
        if len(self._observed) > self.most_observed:
            del self._observed[next(iter(self._observed))]
        return observed

    def trial(self) -> _Trial | None:
        """What this thread tries with this network, if it does."""
        trial = _trial.get()
        return trial if trial is not None and trial.of is self else None

    def without(self) -> contextlib.AbstractContextManager[None]:
        """In this block, this thread's calls are computed without int8."""
        return self.trying(None)

    @contextlib.contextmanager
    def trying(self, recipe: Recipe | None, samples: Sequence[T] = ()) -> Iterator[None]:
        """In this block, this thread's calls are computed with a recipe; without int8 where it is None.

        Args:
            recipe: the recipe.
            samples: what is compiled in the background in this block is tried on those of its signature.
        """
        token = _trial.set(_Trial(self, recipe, samples))
        try:
            yield
        finally:
            _trial.reset(token)
