"""A compile that no call waits for: a known graph is bound and compiled while the host goes on."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable

from ov_backend.cache import memory
from ov_backend.engine.ahead import Unverified
from ov_backend.engine.compile_job import CompileJob
from ov_backend.engine.request import CompileRequest

log = logging.getLogger(__name__)

#: Of what the weights take in float32: what a compile needs at its peak, and what it leaves, at most.
_PEAK, _LEFT = 2.0, 1.0


def compile_ahead(job: CompileJob, is_unchanged: Callable[[CompileRequest], bool]) -> None:
    """Compile what a request asks for, if its graph is known and its compiled form fits into the memory budget; else do nothing.

    Nothing is evicted for it, no error of it is remembered, and no stage is reported: a call that needs the same compiles it.

    Args:
        job: the request, and what the network gives a job.
        is_unchanged: whether the weights have not been written to since the request.
    """
    request, resources, context = job.request, job.resources, job.context
    if resources.epoch != request.epoch or not is_unchanged(request):
        return
    job.check_refusals()
    program = resources.programs.get(request.graph_key) or job.load()
    if program is None:
        return
    resources.evict_dead()
    if not _fits(job):
        log.debug("%s is not prepared ahead: its compiled form would not fit into the memory budget", context.name)
        return
    resources.programs.put(request.graph_key, program)
    compiled, size = job.measured(lambda: job.compile(program[0]), collect=False)
    if resources.epoch != request.epoch or not is_unchanged(request):
        log.debug("%s was prepared for weights that have changed since", context.name)
        return
    entry = job.entry(compiled, program[1])
    entry.unverified = Unverified(weakref.ref(request.guard.weights), request.generation, time.monotonic())
    if resources.compiled.bytes + size <= resources.compiled.budget:
        job.put(entry, size)


def _fits(job: CompileJob) -> bool:
    weights, compiled, low_memory = job.float_bytes(), job.resources.compiled, job.resources.low_memory
    if low_memory.is_wanted(job.request.settings, sum(tensor.nbytes for tensor in job.request.weights.values())):
        return False  # weights are given back meanwhile, one network after another
    return compiled.bytes + _LEFT * weights <= compiled.budget and _PEAK * weights <= memory.available_memory()
