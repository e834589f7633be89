"""A compile beside the trace: of the program that such a call has led to last, and to which its trace mostly leads again."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable

from ov_backend.errors import pass_on_signals
from ov_backend.guards.pytree import Spec
from ov_backend.runtime.program import CompiledProgram, Program

log = logging.getLogger(__name__)


class Guess:
    """One program that a thread of its own loads, binds and compiles.

    Args:
        text: of the program.
        load: the program with the description of its result, from the disk; None where it is not there.
        make: binds and compiles it; also returns its size in bytes.
    """

    def __init__(
        self,
        text: str,
        load: Callable[[], tuple[Program, Spec] | None],
        make: Callable[[Program], tuple[CompiledProgram, int]],
    ) -> None:
        self.text, self._load, self._make = text, load, make
        self._program: tuple[Program, Spec] | None = None
        self._made: tuple[CompiledProgram, int] | None = None
        self._loaded = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="ov_backend guess", daemon=True)
        self._thread.start()

    def program(self, text: str) -> tuple[Program, Spec] | None:
        """The program, if the guess was right; waits until it is loaded."""
        if text != self.text:
            return None
        self._loaded.wait()
        return self._program

    def made(self, text: str) -> tuple[CompiledProgram, int] | None:
        """What is compiled and its size, if the guess was right; waits until it is there."""
        if text != self.text:
            return None
        self._thread.join()
        return self._made

    def _run(self) -> None:
        try:
            self._program = self._load()
            self._loaded.set()
            if self._program is not None:
                self._made = self._make(self._program[0])
        except Exception as error:  # the call compiles it itself then, and reports its own error
            pass_on_signals(error)
            log.debug("Nothing was compiled beside the trace", exc_info=True)
        finally:
            self._loaded.set()
