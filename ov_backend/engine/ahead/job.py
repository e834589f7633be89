"""A compile that no call waits for: a known graph is bound and compiled while the host goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ov_backend.engine.ahead.ahead import Unverified
from ov_backend.engine.compile_job import CompileJob
from ov_backend.engine.int8.low_precision import CallSample
from ov_backend.engine.request import CompileRequest
from ov_backend.guards.content import Mark

log = logging.getLogger(__name__)


def compile_ahead(
    job: CompileJob,
    is_untouched: Callable[[CompileRequest, tuple[Mark, ...]], bool],
    marks: tuple[Mark, ...],
    samples: Sequence[CallSample] = (),
) -> None:
    """Compile what a request asks for, if its graph is known and its compiled form fits into the memory budget; else do nothing.

    Nothing is evicted for it, no error of it is remembered, and no stage is reported: a call that needs the same compiles it. The
    results of the samples, which are observed calls, are noted with it.
    """
    request, resources, context = job.request, job.resources, job.context
    if resources.epoch != request.epoch or not is_untouched(request, marks):
        return
    job.check_refusals()
    program = resources.programs.get(request.text) or job.load(is_guessed=True)
    if program is None:
        return
    resources.evict_dead()
    if not job.memory.fits_beside_others():
        log.debug("%s is not prepared ahead: its compiled form would not fit beside the others", context.name)
        return
    context.stats.graph_hits += resources.programs.get(request.text) is None
    resources.programs.put(request.text, program)
    compiled, size = job.memory.measured(lambda: job.compile(program))
    if resources.epoch != request.epoch or not is_untouched(request, marks):
        log.debug("%s was prepared for weights that have changed since", context.name)
        return
    entry = job.entry(compiled)
    entry.unverified = Unverified(marks, time.monotonic())
    for sample in samples if entry.program.owns else ():
        if sample.state == entry.state:  # else other weights or code have computed it
            entry.tried[sample.number] = [x.clone() for x in entry.program(sample.call.tensors)]
    if resources.compiled.bytes + size <= resources.compiled.budget:
        job.put(entry, size)
