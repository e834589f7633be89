"""One process of a cluster: it makes the pictures of rows, and sends them back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ov_backend import devices, posix
from ov_backend.batch.copies import Copies, Digests
from ov_backend.batch.make import TRIES, Failure, Made, Outcome, Paints, make
from ov_backend.batch.processes import Machine, Speed
from ov_backend.batch.row import Row
from ov_backend.cache.memory import resident_memory, total_memory
from ov_backend.errors import OVBackendError, first_line


class RowsFailed(Exception):
    """Rows have failed for the first time, and are to be tried again."""


class Worker:
    """Makes rows on a share of a machine's cores.

    Args:
        paints: takes the number of processes on this machine, and returns what makes the pictures.
        device: that computes.
        index: which of these processes this is, from 0.
        of: how many there are.
        copies: finds the files that rows name; None on the machine that runs the batch.
    """

    def __init__(self, paints: Callable[[int], Paints], device: str, index: int, of: int, copies: Copies | None) -> None:
        import torch

        self._cores = posix.use_cores(index, of)
        torch.set_num_threads(self._cores)
        self._paints, self._device, self._copies = paints(of), device, copies
        self._outcomes: dict[int, Outcome] = {}

    def ready(self) -> bool:
        """True: an answer shows that the process has started."""
        return True

    def machine(self) -> Machine:
        """The machine, described by its only worker; the memory is rounded to GiB, as it differs a little at each start."""
        names = ", ".join(devices.full_name(each) for each in devices.members(self._device))
        return Machine(names, self._cores, total_memory() >> 30 << 30)

    def speed(self, row: Row, digests: Digests, seconds: float) -> Speed:
        """How fast this worker makes a row again and again, at least once and for so many seconds.

        Raises:
            OVBackendError: the row fails.
        """
        start, count = time.perf_counter(), 0
        while not count or time.perf_counter() - start < seconds:
            outcome = self._attempt(row, digests, 1)
            if isinstance(outcome, Failure):
                raise OVBackendError(outcome.reason)
            count += len(outcome.files)
        return Speed(count / (time.perf_counter() - start), resident_memory())

    def make(self, rows: Sequence[Row], digests: Digests) -> list[Outcome]:
        """The outcome of each row.

        Raises:
            RowsFailed: a row has failed and is to be tried again. Ray then calls this method again, which keeps what is made.
        """
        self._outcomes = {row.number: self._outcomes[row.number] for row in rows if row.number in self._outcomes}
        for row in rows:
            before = self._outcomes.get(row.number)
            if not isinstance(before, Made):
                self._outcomes[row.number] = self._attempt(row, digests, before.attempts + 1 if before else 1)
        outcomes = [self._outcomes[row.number] for row in rows]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure) and outcome.attempts < TRIES]
        if failures:
            raise RowsFailed(failures[0].reason)
        self._outcomes.clear()
        return outcomes

    def _attempt(self, row: Row, digests: Digests, attempt: int) -> Outcome:
        try:
            local = self._copies.localized(row, digests) if self._copies is not None else row
        except OSError as error:
            return Failure(f"{type(error).__name__}: {first_line(error)[:300]}", 0.0, attempt)
        return make(self._paints, local, self._device, text_of=row, attempt=attempt)
