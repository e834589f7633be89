"""How the pipeline behind the standalone page makes its last picture once more, to compare both ways to make it."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from ov_backend.engine.engine import Engine, Network
from ov_backend.hosts.standalone.generation_queue import Turns
from ov_backend.hosts.standalone.measure import measure_picture, measure_step
from ov_backend.hosts.standalone.pipeline_call import Start
from ov_backend.hosts.standalone.upscalers import Upscalers
from ov_backend.ui.choices import Choices
from ov_backend.ui.compare_int8 import compare_int8
from ov_backend.ui.comparison import Comparison, Measured
from ov_backend.ui.controller import JobControl, Size
from ov_backend.ui.infotext import Parameters


class Comparing(abc.ABC):
    """The comparisons of a :class:`ov_backend.hosts.standalone.generator.PictureGenerator`, which has the rest."""

    _turns: Turns
    _choices: Choices
    _networks: dict[str, Network]
    _last: tuple[Parameters, Start] | None
    recent: tuple[Path, ...]
    #: The files of the generation that was compared last.
    compared: tuple[Path, ...] = ()
    _last_batch: int
    upscalers: Upscalers

    @property
    @abc.abstractmethod
    def default_size(self) -> int:
        """Side in pixels of the square picture that the model was trained for."""

    @abc.abstractmethod
    def _configure(self, choices: Choices) -> Engine: ...

    @abc.abstractmethod
    def _accelerated(self, choices: Choices, request: str = "") -> contextlib.AbstractContextManager[None]: ...

    @abc.abstractmethod
    def _pictures(self, parameters: Parameters, picture: Start, **overrides: Any) -> list[Image.Image]: ...

    def _compare(self, choices: Choices | None, control: JobControl) -> Comparison:
        """Make the last picture by PyTorch and by OpenVINO; before the first one, time a step at the checkpoint's own size."""
        choices = dataclasses.replace(choices or self._choices, unet=True)
        with self._comparing() as (size, batch):
            return control.compare(size, batch, lambda: self._measure(control), lambda: self._measure(control, choices))

    def _compare_int8(self, choices: Choices | None, control: JobControl) -> Comparison:
        """Make a picture as the last one, of another seed, in the device's own precision and in int8, or time a step of both."""
        own, int8 = (dataclasses.replace(choices or self._choices, unet=True, precision=each) for each in ("auto", "int8"))
        with self._comparing() as (size, batch):
            engine = self._configure(int8)
            sides = (lambda seed: self._measure(control, own, seed)), (lambda seed: self._measure(control, int8, seed))
            return compare_int8(control, size, batch, engine.both_forms, *sides)

    @contextlib.contextmanager
    def _comparing(self) -> Iterator[tuple[Size, int]]:
        """In this block no generation begins; size and batch of what is compared."""
        side = self.default_size
        with self._turns.taken():
            self.compared = self.recent
            if self._last is None:
                yield (side, side), self._last_batch
            else:
                self.upscalers.load(self._last[0])
                yield (self._last[0].width, self._last[0].height), 1

    def _measure(self, control: JobControl, choices: Choices | None = None, seed: int = 0) -> Measured:
        """Make and time the last picture with a seed so much larger; before the first one, a step. Without choices by PyTorch."""
        side = self.default_size
        with self._accelerated(choices) if choices is not None else contextlib.nullcontext():
            for network in self._networks.values():
                network.begin_run()  # after a picture that calibrates the next one is made in int8
            if self._last is None:
                return measure_step(self._pictures, Parameters(width=side, height=side, steps=2, batch=self._last_batch), control)
            parameters, start = self._last
            parameters = dataclasses.replace(parameters, batch=1, seed=(parameters.seed + seed) % (1 << 32))
            return measure_picture(self._pictures, parameters, start, control)
