"""Makes rows in several processes on Ray (https://docs.ray.io), on this machine or on a cluster; only this module imports Ray.

When a process ends, Ray starts it again, on another machine if its own is gone, and runs its row again there. Rows of one kind
go to one process, so that their networks are compiled once. The pictures come back as bytes: only the process of the command
writes files.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ov_backend.batch.executor import Renderer, RowResult, execute
from ov_backend.batch.pictures import sha256
from ov_backend.batch.plan import shares
from ov_backend.batch.row import Row
from ov_backend.core import interrupts, posix
from ov_backend.core.errors import OVBackendError, SettingsError, first_line, last_line, short_repr

#: The address that stands for processes of this machine only.
LOCAL = "local"
_CONNECT_S = 5


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
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or "/" in host or not port.isdecimal():
        expected = "it must be HOST:PORT, as ray start --head prints it, auto or local"
        raise SettingsError(f"--ray is {short_repr(address)}; {expected}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        advice = "run ray start --head on that machine, or give --ray local"
        raise SettingsError(f"--ray is {address[:200]!r}, where nothing answers ({first_line(error)}); {advice}.") from error


def connect(ray: Any, address: str) -> None:
    """Join the cluster at an address, or start Ray here where that is "local".

    Raises:
        SettingsError: no cluster answers, or it does not accept this machine's token.
    """
    check_address(address)
    local = {"include_dashboard": False} if address == LOCAL else {}
    try:
        if address not in (LOCAL, "auto"):
            _check_token(ray, address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        interrupts.install_for_termination()  # Ray's own handler prints a stack of C++
    except ray.exceptions.AuthenticationError as error:
        raise SettingsError(f"--ray is {address[:200]!r}, {_about_token(error)}.") from error
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:  # an OSError where nothing is found
        advice = "start Ray with ray start --head, or give --ray local"
        raise SettingsError(f"--ray is {address[:200]!r}, where Ray does not answer ({first_line(error)}); {advice}.") from error


def _check_token(ray: Any, address: str) -> None:
    """Ask a cluster for its number: without its token, ``ray.init`` would try for half a minute and not say why.

    Raises:
        AuthenticationError: of Ray's.
        RayError: nothing of Ray's answers.
    """
    try:
        setup = importlib.import_module("ray._private.authentication.authentication_token_setup")
        require, client = setup.ensure_token_if_auth_enabled, ray._raylet.GcsClient
    except (ImportError, AttributeError):  # another version of Ray; then ray.init says what is wrong
        return
    require(create_token_if_missing=False)  # without a token the client would end this process
    client(address=address)


def _about_token(error: Exception) -> str:
    """What to set where a token is missing or wrong."""
    where = "the file ~/.ray/auth_token or the variable RAY_AUTH_TOKEN"
    if "RAY_AUTH_MODE is currently" in str(error):  # Ray's note where it is not "token"
        return f"which asks for a token; set RAY_AUTH_MODE=token, and put the cluster's token into {where}"
    reason = first_line(error).partition(". ")[0][:200]
    how = "ray get-auth-token on the cluster's first machine prints it"
    return f"which needs another token ({reason}); put the cluster's into {where} ({how})"


#: How often Ray starts a process again. Then a new one takes its place and runs the row that the old one did not; if that ends
#: as often, the row fails, as it may be what ends the processes.
_RESTARTS = 1
#: Seconds that a machine has to start its processes.
_START_S = 600


class Cluster:
    """Processes that make rows.

    Args:
        address: of a Ray cluster, as ``ray start`` prints it; "local" starts Ray here until :meth:`close`.
        count: number of processes; None is one for each machine.
        renderer: called in each process with the number of processes on its machine; returns what makes the pictures there.
        device: that computes.
        content_of: the SHA-256 of a file that a row names.

    Raises:
        OVBackendError: Ray is missing, does not answer, or starts no process.
    """

    def __init__(
        self,
        address: str,
        count: int | None,
        renderer: Callable[[int], Renderer],
        device: str,
        content_of: Callable[[Path], str],
    ) -> None:
        self._ray, self._content_of = import_ray(), content_of
        self._starts: list[Callable[[], Any]] = []
        self._processes: list[Any] = []
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            connect(self._ray, address)
        try:
            self._start(count, renderer, device)
        except BaseException:
            self.close()
            raise

    def results(self, rows: Sequence[Row]) -> Iterator[tuple[Row, RowResult]]:
        """Each row with what became of it, in the order in which they end."""
        divided = iter(shares(rows, len(self._processes)))
        streams: list[Iterator[Row]] = [itertools.chain.from_iterable(divided) for _ in self._processes]  # of the same shares
        running: dict[Any, tuple[int, Row]] = {}
        suspected: set[int] = set()

        def begin(process: int) -> None:
            row = next(streams[process], None)
            if row is not None:
                digests = {path: self._content_of(path) for path in row.inputs}
                running[self._processes[process].make.remote(row, digests)] = process, row

        for process in range(len(streams)):
            begin(process)
        while running:
            (ended,), _ = self._ray.wait([*running], num_returns=1)
            process, row = running.pop(ended)
            try:
                result = self._ray.get(ended)
            except self._ray.exceptions.RayError as error:
                self._ray.kill(self._processes[process])
                self._processes[process] = self._starts[process]()
                if row.number not in suspected:
                    suspected.add(row.number)
                    streams[process] = itertools.chain([row], streams[process])
                    begin(process)
                    continue
                reason = f"{type(error).__name__}: every process that was to make it has ended"
                result = RowResult(error=reason, attempts=2 * (_RESTARTS + 1))
            begin(process)
            yield row, result

    def close(self) -> None:
        """End the processes, and Ray itself where it was started or joined here."""
        for process in self._processes:
            self._ray.kill(process)
        if self._is_ours:
            self._ray.shutdown()

    def _start(self, count: int | None, renderer: Callable[[int], Renderer], device: str) -> None:
        """Start the processes; those of one machine divide its cores.

        Raises:
            OVBackendError: none has started.
        """
        home, nodes = self._ray.get_runtime_context().get_node_id(), machines(self._ray)
        for node, of in _spread(nodes, count).items():
            for index in range(of):
                options = {"max_restarts": _RESTARTS, "max_task_retries": -1, "scheduling_strategy": _on(node)}
                process = self._ray.remote(_Process).options(**options)
                self._starts.append(functools.partial(process.remote, renderer, device, index, of, home))
        self._processes = [start() for start in self._starts]
        ready = [process.ready.remote() for process in self._processes]
        started, late = self._ray.wait(ready, num_returns=len(ready), timeout=_START_S)
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
        for i in sorted(map(ready.index, late), reverse=True):
            self._ray.kill(self._processes.pop(i))
            del self._starts[i]


class _Process:
    """One process of the cluster.

    Args:
        renderer: takes the number of processes on this machine, and returns what makes the pictures.
        device: that computes.
        index: which of these processes this is, from 0.
        of: how many there are.
        home: Ray's number of the machine that runs the batch.
    """

    def __init__(self, renderer: Callable[[int], Renderer], device: str, index: int, of: int, home: str) -> None:
        import ray
        import torch

        torch.set_num_threads(posix.use_cores(index, of))
        self._renderer, self._device, self._content_of = renderer(of), device, functools.cache(sha256)
        self._is_home = ray.get_runtime_context().get_node_id() == home

    def ready(self) -> bool:
        """True: an answer shows that the process has started."""
        return True

    def make(self, row: Row, digests: Mapping[Path, str]) -> RowResult:
        """Make the pictures of a row, if this machine has the files that it names, with the same SHA-256."""
        missing = None if self._is_home else next((path for path in digests if not self._has(path, digests[path])), None)
        if missing is None:
            return execute(self._renderer, row, self._device)
        what = f"{missing} is not on the machine {socket.gethostname()} with the content that it has where the batch runs"
        return RowResult(error=f"{what}; copy it there, or put it into a folder that all machines share")

    def _has(self, path: Path, digest: str) -> bool:
        try:
            return self._content_of(path) == digest
        except OSError:
            return False


def _on(node: str) -> Any:
    """On this machine, and where it is gone on another one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=True)


def machines(ray: Any) -> list[str]:
    """The machines of the cluster that have cores, the one with the most first."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return [node["NodeID"] for node in sorted(nodes, key=lambda node: -node["Resources"]["CPU"])]


def _spread(nodes: Sequence[str], count: int | None) -> dict[str, int]:
    """The number of processes on each machine."""
    total = len(nodes) if count is None else count
    return {node: len(range(i, total, len(nodes))) for i, node in enumerate(nodes[:total])}
