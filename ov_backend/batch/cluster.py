"""Makes rows in several processes on Ray (https://docs.ray.io), on this machine or on a cluster; only this module imports Ray.

When a process ends, Ray starts it again, on another machine if its own is gone, and runs its task again there. Rows of one kind
go to one process, so that their networks are compiled once. A task has a few pictures, so that little is lost when a process
ends. The pictures come back as bytes: only the process of the command writes files.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ov_backend.batch.copies import Copies, FileServer, default_folder
from ov_backend.batch.fingerprints import Fingerprints
from ov_backend.batch.make import Failure, Outcome, Paints
from ov_backend.batch.plan import shares
from ov_backend.batch.row import Row
from ov_backend.batch.worker import RowsFailed, Worker
from ov_backend.errors import OVBackendError, SettingsError, first_line, last_line

#: The address that stands for processes of this machine only.
LOCAL = "local"
MAX_WORKERS = 1024
#: The most pictures of one task, if a row has not more; so many are lost at most when a process ends.
_PICTURES_PER_TASK = 8
#: How often Ray starts a process again. After that a new one takes its place and makes the rows one by one, in case one of them
#: ends every process.
_RESTARTS = 1
#: Seconds that a machine has to start its processes.
_START_S = 600
_CONNECT_S = 5


class _Handle:
    """One worker: the process on Ray, what starts another one in its place, and its tasks."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self.start = start
        self.actor = start()
        self.tasks: Iterator[Sequence[Row]] = iter(())


class Cluster:
    """Processes that make rows.

    Args:
        address: of a Ray cluster, as ``ray start`` prints it; :data:`LOCAL` starts Ray here until :meth:`close`.
        workers: number of processes; None is one for each machine.
        paints: called in each process with the number of processes on its machine; returns what makes the pictures there.
        device: that computes.
        fingerprints: of the files that rows name.

    Raises:
        OVBackendError: Ray is missing, does not answer, or starts no process.
    """

    def __init__(
        self, address: str, workers: int | None, paints: Callable[[int], Paints], device: str, fingerprints: Fingerprints
    ) -> None:
        self._ray = import_ray()
        self._fingerprints = fingerprints
        self._workers: list[_Handle] = []
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            _connect(self._ray, address)
        try:
            self._workers = self._start(workers, paints, device)
        except BaseException:
            self.close()
            raise

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
            digests = {path: self._fingerprints.of(path) for row in task for path in row.inputs}
            running[worker.actor.make.options(retry_exceptions=[RowsFailed]).remote(task, digests)] = worker, task

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

    def _start(self, count: int | None, paints: Callable[[int], Paints], device: str) -> list[_Handle]:
        here, nodes = self._ray.get_runtime_context().get_node_id(), self._nodes()
        copies = Copies(self._reader(here), default_folder()) if set(nodes) != {here} else None
        workers = []
        for node, index, of in _places(nodes, count):
            options = {"max_restarts": _RESTARTS, "max_task_retries": -1, "scheduling_strategy": self._on(node, soft=True)}
            actor = self._ray.remote(_Process).options(**options)
            workers.append(_Handle(functools.partial(actor.remote, paints, device, index, of, here, copies)))
        return self._started(workers)

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
        except self._ray.exceptions.RayError as error:
            reason = f"{type(error).__name__}: {last_line(error)[:300]}"
            raise OVBackendError(f"A process of Ray's did not start ({reason}); install this package on its machine.") from error
        return [first[reference] for reference in started]

    def _reader(self, here: str) -> Callable[[Path], Iterable[bytes]]:
        """What reads files of this machine on another one, a few blocks ahead."""
        server = self._ray.remote(FileServer).options(num_cpus=0, scheduling_strategy=self._on(here, soft=False)).remote()
        return functools.partial(_read, server)

    def _nodes(self) -> list[str]:
        """The machines that have cores, the one with the most first."""
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        return [node["NodeID"] for node in sorted(nodes, key=lambda node: -node["Resources"]["CPU"])]

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


def import_ray() -> Any:
    """Import Ray, and keep it from sending usage statistics.

    Raises:
        OVBackendError: it is not installed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise OVBackendError("--ray and --workers need one more package: pip install 'ray>=2.54'") from error


def check_address(address: str) -> None:
    """Check that something answers at an address; Ray itself would try for minutes.

    Raises:
        SettingsError: nothing does, or it is no address.
    """
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        expected = "it must be HOST:PORT, as ray start --head prints it, auto or local"
        raise SettingsError(f"--ray is {address[:200]!r}; {expected}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        advice = "run ray start --head on that machine, or give --ray local"
        raise SettingsError(f"--ray is {address[:200]!r}, where nothing answers ({first_line(error)}); {advice}.") from error


def _connect(ray: Any, address: str) -> None:
    check_address(address)
    local = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except (OSError, RuntimeError, ValueError) as error:  # an OSError where nothing is found
        advice = "start Ray with ray start --head, or give --ray local"
        raise SettingsError(f"--ray is {address[:200]!r}, where Ray does not answer ({first_line(error)}); {advice}.") from error


def _places(nodes: Sequence[str], count: int | None) -> Iterator[tuple[str, int, int]]:
    """The machine of each process, the number of the process there, counted from 0, and the number of processes there."""
    total = len(nodes) if count is None else count
    for i, node in enumerate(nodes[:total]):
        of = len(range(i, total, len(nodes)))
        yield from ((node, index, of) for index in range(of))


def _tasks(shares: Iterator[Sequence[Row]]) -> Iterator[Sequence[Row]]:
    """The rows of shares in tasks of a few pictures."""
    for share in shares:
        step = max(_PICTURES_PER_TASK // share[0].parameters.batch, 1)  # rows of one kind have one size of batch
        yield from (share[i : i + step] for i in range(0, len(share), step))


def _read(server: Any, path: Path) -> Iterator[bytes]:
    import ray

    method = server.read.options(num_returns="streaming", _generator_backpressure_num_objects=4)
    for block in method.remote(path):
        yield ray.get(block)
