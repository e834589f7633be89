"""Which code earlier traces have run, by the kind of call.

A kind is a class of modules with a signature. Its traces may have run different code, for a forward branches on flags: each guard
goes through the code of one trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ov_backend.engine.hooks import NetworkHooks
from ov_backend.guards.checksums import Checksums, Readings
from ov_backend.guards.code import CodeGuard, FixedCode, Guard
from ov_backend.guards.signature import Call
from ov_backend.guards.traced_code import TracedCode
from ov_backend.trace.capture.forward import Reach

_MAX_KINDS = 512
#: The most kinds of code of one kind of call, and the most guards of one network.
_MAX_CODES = 8


class TracedCodes:
    """The code of all traces of an engine by the kind of call, the one used last first."""

    def __init__(self) -> None:
        self._kinds: dict[str, list[TracedCode]] = {}

    def of(self, kind: str) -> list[TracedCode]:
        """The code of a kind's traces."""
        return self._kinds.get(kind, [])

    def use(self, kind: str, code: TracedCode) -> None:
        """Put a code first, whether it is new or not."""
        codes = self.of(kind)
        if codes[:1] != [code]:
            self._kinds[kind] = [code, *(each for each in codes if each != code)][:_MAX_CODES]
            if len(self._kinds) > _MAX_KINDS:
                del self._kinds[next(iter(self._kinds))]

    def forget(self, kind: str, code: TracedCode) -> None:
        """Look no calls of a kind up by a code any more."""
        self._kinds[kind] = [each for each in self.of(kind) if each != code]

    def clear(self) -> None:
        """Forget everything."""
        self._kinds.clear()


class Guards:
    """The guards of one network, one for the code of each kind of trace; ``roots`` are the functions called from outside."""

    def __init__(
        self,
        module: torch.nn.Module,
        roots: tuple[Callable[..., object], ...],
        hooks: NetworkHooks,
        readings: Readings | None = None,
    ) -> None:
        self._module, self._roots, self._hooks, self._readings = module, roots, hooks, readings
        self._checksums = Checksums(readings)
        self._guards: dict[TracedCode, Guard] = {}
        self._wide: Guard | None = None
        #: Code whose first trace has changed something, and by which calls are looked up once more; until such a trace succeeds.
        self.tried_again: set[TracedCode] = set()

    def candidates(self, codes: list[TracedCode]) -> Iterator[Guard]:
        """A guard for each of these codes; where there is none, the network's last one, and before the first trace a wide one."""
        if not self._hooks.watched:
            yield self._guards.get(FixedCode.traced) or self._add(FixedCode())
        elif codes:
            for code in codes:
                yield self._guards.get(code) or self._add(self._code_guard(code))
        elif self._guards:
            yield next(reversed(self._guards.values()))
        else:
            self._wide = self._wide or Guard(self._module, self._code_guard(None), self._checksums)
            yield self._wide

    def of(self, code: CodeGuard) -> Guard:
        """The guard that was made after a trace, or an older one of the same code."""
        assert code.traced is not None
        self.tried_again.discard(code.traced)
        return self._guards.get(code.traced) or self._add(code)

    def reach(self, code: CodeGuard | FixedCode, call: Call) -> Reach:
        """What a trace of a call under a guard can read and change.

        Everything reachable, for the trace may run more than the guard goes through: a hook or a module may be new, and another
        size may open a branch.
        """
        guards = [code] if isinstance(code, FixedCode) or code.traced is None else [code, self._code_guard(None)]
        containers, names, caches = (
            [each for guard in guards for each in getattr(guard, kind)] for kind in ("containers", "names", "caches")
        )
        return Reach(containers, names, self._hooks.ignore, gradients=call.gradients, caches=caches)

    def all(self) -> list[Guard]:
        """The guards of traces."""
        return list(self._guards.values())

    def note_change(self, codes: TracedCodes, kind: str, before: CodeGuard | FixedCode, code: CodeGuard, unseen: bool) -> None:
        """Take note that a trace has changed something, which was put back; PyTorch answers that call.

        What is filled once is full at the next call, and only a guard of the code that ran sees that: calls are looked up by it
        once more. Where that trace changes something as well, the code is forgotten, and the first error holds until other code
        is there. ``before`` is the guard during the trace, ``code`` one of the code that ran; ``unseen``: no guard watches what
        was changed.
        """
        traced = code.traced
        if traced is None or (before.traced is None and not unseen):
            return  # before its first trace everything reachable is watched
        if traced in codes.of(kind):
            if traced in self.tried_again:
                codes.forget(kind, traced)
        elif traced not in self.tried_again:
            self.tried_again.add(traced)
            codes.use(kind, traced)

    def read_again(self) -> None:
        """Read all weights in full."""
        self._checksums.read_again(always=True)

    def release(self) -> None:
        """Release weights that the module no longer uses."""
        for guard in self._guards.values():
            if not guard.weights.in_place():
                guard.weights.release()

    def clear(self) -> None:
        """Forget the state of weights and code."""
        self._guards.clear()
        self.tried_again.clear()
        self._wide = None
        self._checksums = Checksums(self._readings)

    def _code_guard(self, code: TracedCode | None) -> CodeGuard:
        return CodeGuard(self._module, self._roots, self._hooks.ignore, self._hooks.host_modules, code)

    def _add(self, code: CodeGuard | FixedCode) -> Guard:
        assert code.traced is not None
        self._wide = None
        guard = self._guards[code.traced] = Guard(self._module, code, self._checksums)
        if len(self._guards) > _MAX_CODES:
            del self._guards[next(iter(self._guards))]
        return guard
