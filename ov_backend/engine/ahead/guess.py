"""A compile beside the trace: of the program that such a call has led to last, and to which its trace mostly leads again."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable

from ov_backend.core.errors import pass_on_signals
from ov_backend.model.runtime.program import CompiledProgram, Program

log = logging.getLogger(__name__)


class Guess:
    """One program that a thread of its own loads, binds and compiles.

    A trace and the binding would keep each other waiting, for both are Python's: the guess begins with the binding, and the
    trace goes on beside OpenVINO's compile. ``make(program, bound)`` binds and compiles it, and calls ``bound()`` in between.
    """

    def __init__(
        self,
        load: Callable[[], Program | None],
        make: Callable[[Program, Callable[[], object]], tuple[CompiledProgram, int]],
    ) -> None:
        self._load, self._make = load, make
        #: What was loaded, once it is bound.
        self.program: Program | None = None
        self._made: tuple[CompiledProgram, int] | None = None
        self._bound = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="ov_backend guess", daemon=True)
        self._thread.start()
        self._bound.wait()

    def made(self) -> tuple[CompiledProgram, int] | None:
        """What is compiled and its size; waits until it is there."""
        self._thread.join()
        return self._made

    def _run(self) -> None:
        try:
            self.program = self._load()
            if self.program is not None:
                self._made = self._make(self.program, self._bound.set)
        except Exception as error:  # the call compiles it itself then, and reports its own error
            pass_on_signals(error)
            log.debug("Nothing was compiled beside the trace", exc_info=True)
        finally:
            self._bound.set()
