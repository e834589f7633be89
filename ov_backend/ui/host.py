"""The one protocol of a host: what the panel, its jobs and its readiness ask of the program that they stand in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ov_backend.store.store import GraphStore, open_store
from ov_backend.ui.choices import Choices
from ov_backend.ui.status import Status

if TYPE_CHECKING:  # they load OpenVINO
    from ov_backend.engine.ahead.history import RememberedCall
    from ov_backend.engine.crash_sentinel import CrashSentinel
    from ov_backend.engine.engine import Engine, Network

T = TypeVar("T")
#: Width and height in pixels.
Size = tuple[int, int]
#: Called with a step that has ended, 1 is the first, and the number of all.
StepEnded = Callable[[int, int], None]


class Request(Protocol):
    """What a picture depends on, in the host's own terms."""

    @property
    def size(self) -> Size:
        """Width and height of the first pass."""

    def with_seed(self, more: int) -> Request:
        """The same with a seed that is so much larger."""

    def warm_up(self) -> Request:
        """The same in as few steps as call every network."""


class Host(Protocol):
    """A program that makes pictures: a WebUI, or a pipeline of diffusers behind the page, ``generate`` and ``batch``.

    Attributes:
        status: where progress goes: steps, stages of preparing, messages.
        cache_dir: folder of the graph store; None is that of the environment, else the user's cache folder.
        retry_advice: completes "To try again, ...", after a process has died while it prepared networks.
    """

    status: Status
    cache_dir: str | None
    retry_advice: str

    @property
    def engine(self) -> Engine | None:
        """The engine of all generations; None before the first."""

    def configure(self, choices: Choices) -> Engine:
        """The engine, set to these choices; raises ``DeviceError`` where the device cannot do it."""

    def store(self) -> GraphStore | None:
        """The graph store in use, or None."""
        return self.engine.store if self.engine is not None else open_store(self.choices().settings(self.cache_dir))

    def choices(self) -> Choices:
        """What runs where if nobody says: the settings page's, or what was chosen last."""

    def prepares_ahead(self) -> bool:
        """Whether the user wants networks to be prepared before they are needed."""
        return False

    def denoiser(self) -> Any:
        """The module that denoises, another one once another model is loaded; None while there is none."""

    def networks(self, calls: Sequence[RememberedCall], choices: Choices) -> list[Network]:
        """What these calls would reach now, with the LoRAs that are set and what a trace needs; under the lock."""

    @property
    def lock(self) -> Any:
        """The lock of the queue, with ``acquire(blocking)`` and ``release()``: who holds it is alone with the networks."""

    def alone(self, function: Callable[[], T]) -> T:
        """Call a function as a generation is run: under the lock, in the thread of generations; what it raises is raised here."""

    def last_request(self) -> Request | None:
        """That of the last generation that was completed, which a comparison repeats."""
        return None

    def request(self, size: Size | None = None, batch: int = 1, steps: int = 1) -> Request:
        """One for pictures from noise without a prompt, of the model's own size where none is given."""

    def make(self, request: Any, choices: Choices | None, ended: StepEnded, steps_only: bool = False) -> Any:
        """Make the first picture of a :class:`Request` and return it unsaved; under the lock. ``ended`` may end it by raising.

        Without choices PyTorch makes it, with ``steps_only`` no picture. Raises ``Interrupted`` if the user ended it before.
        """

    def interrupt(self) -> None:
        """End the generation that is running."""

    def interrupted(self) -> bool:
        """Whether the user has ended the job that runs by means of the host's own."""
        return False

    def before_first_step(self) -> Sequence[Callable[[], object]]:
        """What the first generation does once and what can be done before it is asked for."""
        return ()

    def marked(self, marker: CrashSentinel) -> contextlib.AbstractContextManager[None]:
        """In this block the process is marked as preparing; one that is ended on purpose leaves no mark."""
        return marker.marked()
