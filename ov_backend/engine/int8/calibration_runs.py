"""Tells when a picture begins: a recipe for int8 is calibrated on the calls of one picture."""

from __future__ import annotations

from ov_backend.engine.resources import Resources


class CalibrationRuns:
    """Of one network. A host says when a picture begins, and when its run of calls is over.

    Where none says so, a picture begins when a text encoder was called since the network's last call.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._told = False
        self._noted = False  # whether a picture of this network begins, and was not asked for since
        self._begun = self._encodings = 0  # the engine's counts at the last question

    @property
    def told(self) -> bool:
        """Whether a host's run of calls is in progress; then no picture begins without its word."""
        return self._told or self._resources.in_run

    def note(self) -> None:
        """The host says that a picture of this network begins."""
        self._noted = self._told = True

    def end(self) -> None:
        """The host's run of calls is over."""
        self._told = False

    def begins(self) -> bool:
        """Whether a picture begins with this call of the network; to be asked at each one."""
        resources = self._resources
        begun, encoded = resources.pictures != self._begun, resources.encodings != self._encodings
        self._begun, self._encodings = resources.pictures, resources.encodings
        begins, self._noted = self._noted or begun or (encoded and not self.told), False
        return begins
