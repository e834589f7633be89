"""Makes rows in several processes on Ray (https://docs.ray.io), on this machine or on a cluster; only this module imports Ray.

When a process ends, Ray starts it again, on another machine if its own is gone, and runs its task again there. Rows of one kind
go to one process, so that their networks are compiled once. A task has a few pictures, so that little is lost when a process
ends. The pictures come back as bytes: only the process of the command writes files.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ov_backend.batch.connection import connect, import_ray
from ov_backend.batch.copies import Copies, Digests, FileServer, default_folder
from ov_backend.batch.fingerprints import Fingerprints
from ov_backend.batch.make import Failure, Outcome, Paints
from ov_backend.batch.plan import shares
from ov_backend.batch.processes import Speed, Trial, best
from ov_backend.batch.row import Row
from ov_backend.batch.worker import RowsFailed, Worker
from ov_backend.errors import OVBackendError, first_line, last_line

#: The most pictures of one task, if a row has not more; so many are lost at most when a process ends.
_PICTURES_PER_TASK = 8
#: How often Ray starts a process again. After that a new one takes its place and makes the rows one by one, in case one of them
#: ends every process.
_RESTARTS = 1
#: Seconds that a machine has to start its processes.
_START_S = 600
#: Seconds for which processes are timed, once their networks are ready.
_TRIAL_S = 3.0


class _Handle:
    """One worker: the process on Ray, what starts another one in its place, and its tasks."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self.start = start
        self.actor = start()
        self.tasks: Iterator[Sequence[Row]] = iter(())


class Cluster:
    """Processes that make rows.

    Args:
        address: of a Ray cluster, as ``ray start`` prints it; "local" starts Ray here until :meth:`close`.
        workers: number of processes; None is one for each machine; a trial measures on each machine how many are best there.
        paints: called in each process with the number of processes on its machine; returns what makes the pictures there.
        device: that computes.
        fingerprints: of the files that rows name.

    Attributes:
        rates: pictures a second by the number of processes, where a trial has measured it in this run; the last machine's.

    Raises:
        OVBackendError: Ray is missing, does not answer, or starts no process.
    """

    def __init__(
        self, address: str, workers: int | Trial | None, paints: Callable[[int], Paints], device: str, fingerprints: Fingerprints
    ) -> None:
        self._ray = import_ray()
        self._fingerprints = fingerprints
        self._workers: list[_Handle] = []
        self._server: Any = None
        self.rates: dict[int, float] = {}
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            connect(self._ray, address)
        try:
            self._workers = self._start(workers, paints, device)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """How many processes make rows."""
        return len(self._workers)

    def outcomes(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Outcome]]:
        """Each row with its outcome, in the order in which tasks end."""
        ordered = iter(shares(rows, len(self._workers)))
        running: dict[Any, tuple[_Handle, Sequence[Row]]] = {}
        for worker in self._workers:
            worker.tasks = _tasks(ordered)  # all draw from the same shares
            self._begin(worker, running)
        while running:
            (ended,), _ = self._ray.wait([*running], num_returns=1)
            worker, task = running.pop(ended)
            try:
                results: Sequence[Outcome] = self._ray.get(ended)
            except self._ray.exceptions.RayError as error:
                results = self._replace(worker, task, error)
            self._begin(worker, running)
            yield from zip(task, results)

    def close(self) -> None:
        """End the processes, and Ray itself where it was started or joined here."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        if self._is_ours:
            self._ray.shutdown()

    def _begin(self, worker: _Handle, running: dict[Any, tuple[_Handle, Sequence[Row]]]) -> None:
        """Give a worker its next task, if there is one."""
        task = next(worker.tasks, None)
        if task is not None:
            method = worker.actor.make.options(retry_exceptions=[RowsFailed])
            running[method.remote(task, self._digests(task))] = worker, task

    def _digests(self, rows: Sequence[Row]) -> Digests:
        return {path: self._fingerprints.of(path) for row in rows for path in row.inputs}

    def _replace(self, worker: _Handle, task: Sequence[Row], error: Exception) -> Sequence[Outcome]:
        """Start another process in the place of one that Ray does not start again.

        Returns:
            the failure of the task's row. Nothing if the task has several rows: the new process then makes them one by one.
        """
        self._ray.kill(worker.actor)
        worker.actor = worker.start()
        if len(task) == 1:
            reason = f"{type(error).__name__}: every process that was to make it has ended"
            return [Failure(reason, 0.0, _RESTARTS + 1)]
        worker.tasks = itertools.chain(([row] for row in task), worker.tasks)
        return []

    def _start(self, count: int | Trial | None, paints: Callable[[int], Paints], device: str) -> list[_Handle]:
        here, nodes = self._ray.get_runtime_context().get_node_id(), machines(self._ray)
        copies = Copies(self._reader(here), default_folder()) if set(nodes) != {here} else None

        def handle(node: str, index: int, of: int) -> _Handle:
            options = {"max_restarts": _RESTARTS, "max_task_retries": -1, "scheduling_strategy": self._on(node, soft=True)}
            actor = self._ray.remote(_Process).options(**options)
            return _Handle(functools.partial(actor.remote, paints, device, index, of, here, copies))

        if isinstance(count, Trial):
            counts = {node: self._measured(count, functools.partial(handle, node)) for node in nodes}
        else:
            counts = _spread(nodes, count)
        return self._started([handle(node, index, of) for node, of in counts.items() for index in range(of)])

    def _measured(self, trial: Trial, handle: Callable[[int, int], _Handle]) -> int:
        """How many processes are best on one machine: remembered, or measured now."""
        (alone,) = self._started([handle(0, 1)])
        machine = self._ray.get(alone.actor.machine.remote())
        count = trial.results.get(machine, trial.row)
        if count is not None:
            self._ray.kill(alone.actor)
            return count

        def speeds(of: int) -> list[Speed]:
            workers = [alone] if of == 1 else [handle(index, of) for index in range(of)]
            try:
                return self._speeds(workers, trial.row)
            finally:
                for worker in workers:
                    self._ray.kill(worker.actor)

        count, self.rates = best(machine, speeds)
        if self.rates[1]:
            trial.results.put(machine, trial.row, count)
        return count

    def _speeds(self, workers: Sequence[_Handle], row: Row) -> list[Speed]:
        """What each of the workers shows while all of them make a row again and again; nothing where one fails."""
        digests, speeds = self._digests([row]), list[Speed]()
        try:
            for seconds in (0.0, _TRIAL_S):  # the first time prepares the networks
                speeds = self._ray.get([worker.actor.speed.remote(row, digests, seconds) for worker in self._started(workers)])
        except (OVBackendError, self._ray.exceptions.RayError):
            return []
        return speeds if len(speeds) == len(workers) else []

    def _started(self, workers: Sequence[_Handle]) -> list[_Handle]:
        """The workers that have started; the others are ended."""
        first = {worker.actor.ready.remote(): worker for worker in workers}
        started, late = self._ray.wait([*first], num_returns=len(first), timeout=_START_S)
        for reference in late:
            self._ray.kill(first[reference].actor)
        if not started:
            raise OVBackendError(f"Ray has started no process in {_START_S} s; wait until a core of the cluster is free.")
        try:
            self._ray.get(started)
        except self._ray.exceptions.OutOfMemoryError as error:
            advice = "give fewer --workers, or free memory on its machine"
            raise OVBackendError(f"Ray has ended a process for want of memory ({first_line(error)[:300]}); {advice}.") from error
        except self._ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {last_line(error)[:300]}"
            raise OVBackendError(f"A process of Ray's did not start ({reason}); install this package on its machine.") from error
        return [first[reference] for reference in started]

    def _reader(self, here: str) -> Callable[[Path], Iterable[bytes]]:
        """What reads files of this machine on another one, a few blocks ahead."""
        name = f"files-{uuid.uuid4().hex}"  # Ray warns of handles among the arguments of processes that it starts again
        options = {"name": name, "num_cpus": 0, "scheduling_strategy": self._on(here, soft=False)}
        self._server = self._ray.remote(FileServer).options(**options).remote()
        return functools.partial(_read, name)

    def _on(self, node: str, soft: bool) -> Any:
        """On this machine, and where it is gone on another one if that is ``soft``."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=soft)


class _Process(Worker):
    """A worker that knows whether it is on the machine that runs the batch; Ray may start it again on another one."""

    def __init__(
        self, paints: Callable[[int], Paints], device: str, index: int, of: int, home: str, copies: Copies | None
    ) -> None:
        import ray

        is_home = ray.get_runtime_context().get_node_id() == home
        super().__init__(paints, device, index, of, None if is_home else copies)


def machines(ray: Any) -> list[str]:
    """The machines of the cluster that have cores, the one with the most first."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return [node["NodeID"] for node in sorted(nodes, key=lambda node: -node["Resources"]["CPU"])]


def count_machines(address: str) -> int:
    """The number of a cluster's machines; joins it for a moment.

    Raises:
        OVBackendError: Ray is missing, or does not answer.
    """
    ray = import_ray()
    if ray.is_initialized():
        return len(machines(ray))
    connect(ray, address)
    try:
        return len(machines(ray))
    finally:
        ray.shutdown()


def _spread(nodes: Sequence[str], count: int | None) -> dict[str, int]:
    """The number of processes on each machine."""
    total = len(nodes) if count is None else count
    return {node: len(range(i, total, len(nodes))) for i, node in enumerate(nodes[:total])}


def _tasks(shares: Iterator[Sequence[Row]]) -> Iterator[Sequence[Row]]:
    """The rows of shares in tasks of a few pictures."""
    for share in shares:
        step = max(_PICTURES_PER_TASK // share[0].parameters.batch, 1)  # rows of one kind have one size of batch
        yield from (share[i : i + step] for i in range(0, len(share), step))


def _read(server: str, path: Path) -> Iterator[bytes]:
    import ray

    method: Any = ray.get_actor(server).read.options(num_returns="streaming", _generator_backpressure_num_objects=4)
    for block in method.remote(path):
        yield ray.get(block)
