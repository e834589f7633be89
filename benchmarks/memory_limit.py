"""Runs a command under a limit on its memory, and says whether it died of that limit.

A control group (cgroup v2, ``memory.max``) is what containers have: pages of files count, but the kernel drops them before it
kills. Where no such group can be made, RLIMIT_DATA limits what is mapped privately and may be written. It is stricter: memory
that was never touched counts too, and so do weights that low memory has offloaded, because they may be written. So what fits
does fit, and what does not may fit under the other one.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import PIPE

#: "auto" is a control group of version 2, "cgroup-v1" one of version 1 inside this process's own; else both are RLIMIT_DATA.
KINDS = ("auto", "cgroup-v1", "rlimit")
#: What programs say that got no memory, or no memory for a thread's stack.
_NO_MEMORY = re.compile(
    r"MemoryError|bad_alloc|an(no|')t allocate memory|out of memory|not enough memory|failed to map segment"
    r"|start new thread|hread creation failed|pthread_create failed",
    re.IGNORECASE,
)
#: What has failed with more than this share of its limit has failed because of it.
_NEARLY = 0.9


class DidNotFit(Exception):
    """A command died of its limit; the message says how."""


class Limit:
    """A limit on the memory of each command that it runs; a context manager.

    Attributes:
        name: of the kind that was found, for people.
    """

    def __init__(self, gigabytes: float, kind: str = "auto") -> None:
        self.size = int(gigabytes * (1 << 30))
        self._group: Path | None = None
        if kind != "rlimit":
            self._group = _make_group(self.size) if kind == "auto" else _make_group_v1(self.size)
        if self._group is None or not self._admits():
            self._group = None
            _check_rlimit(self.size)
        self.name = f"RLIMIT_DATA of {gigabytes:g} GiB (offloaded weights count)"
        if self._group is not None:
            self.name = f"{'cgroup v2, memory.max' if kind == 'auto' else 'cgroup v1'} of {gigabytes:g} GiB"

    def __enter__(self) -> Limit:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.rmdir()

    def _admits(self) -> bool:
        """Whether a process may join the group; else the group is removed."""
        try:
            subprocess.run(["true"], preexec_fn=self._join(), check=True)
        except subprocess.SubprocessError:
            self._remove()
            return False
        return True

    def run(self, command: Sequence[str]) -> str:
        """The output of a command.

        Raises:
            DidNotFit: it died of the limit.
            CalledProcessError: it failed for another reason.
        """
        kills, most = self._kills(), 0
        with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, preexec_fn=self._join()) as process:
            try:
                while True:
                    try:
                        output, errors = process.communicate(timeout=0.02)
                        break
                    except subprocess.TimeoutExpired:
                        most = max(most, _data(process.pid))
            except BaseException:
                process.kill()
                raise
        if process.returncode and self._kills() > kills:
            raise DidNotFit("the kernel killed it")
        if process.returncode and self._group is None:
            said = [line.strip() for line in errors.splitlines() if _NO_MEMORY.search(line)]
            if said or most > _NEARLY * self.size:  # a small piece that is refused may make any error of it
                raise DidNotFit(said[-1][:150] if said else f"it failed with {most >> 20} MiB")
        sys.stderr.write(errors)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(command))
        return str(output)

    def _join(self) -> Callable[[], object]:
        """What the child does before it becomes the command."""
        if self._group is None:
            return lambda: resource.setrlimit(resource.RLIMIT_DATA, (self.size, self.size))
        members = self._group / "cgroup.procs"
        return lambda: members.write_text("0")

    def _kills(self) -> int:
        """How often the kernel has killed a process of the group."""
        for name in ("memory.events", "memory.oom_control") if self._group is not None else ():
            with contextlib.suppress(OSError):
                found = re.search(r"^oom_kill (\d+)", (self._group / name).read_text(), re.MULTILINE)
                return int(found[1]) if found else 0
        return 0


def _data(process: int) -> int:
    """The bytes of a process that RLIMIT_DATA counts; 0 where it has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmData:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
        return int(found[1]) << 10 if found else 0
    return 0


def _make_group(size: int) -> Path | None:
    """A new group of version 2 inside this process's own, or else beside it; None where neither can be made."""
    own = own_group("cgroup2", "")
    for parent in (own, own.parent) if own is not None else ():
        try:
            if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                if parent != own or "memory" not in (parent / "cgroup.controllers").read_text().split():
                    continue  # a group that is not our own is left as it is
                (parent / "cgroup.subtree_control").write_text("+memory")
            return _filled(parent, {"memory.max": size}, {"memory.swap.max": 0})
        except OSError:  # may not be written, or has processes of its own, as all groups but the root must not
            continue
    return None


def _make_group_v1(size: int) -> Path | None:
    """A new group of version 1 inside this process's own; None where it cannot be made."""
    own = own_group("cgroup", "memory")
    with contextlib.suppress(OSError):
        return _filled(own, {"memory.limit_in_bytes": size}, {"memory.swappiness": 0}) if own is not None else None
    return None


def _filled(parent: Path, values: dict[str, int], wishes: dict[str, int]) -> Path:
    """A new group with these values; without swap, where the kernel counts it.

    Raises:
        OSError: the group or a value was refused; then there is no group.
    """
    group = parent / f"bench-memory-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in values.items():
            (group / name).write_text(str(value))
    except OSError:
        group.rmdir()
        raise
    for name, value in wishes.items():
        with contextlib.suppress(OSError):
            (group / name).write_text(str(value))
    return group


def own_group(kind: str, controller: str, proc: Path = Path("/proc")) -> Path | None:
    """The folder of this process's control group, or None."""
    mounts = [line.split() for line in (proc / "mounts").read_text().splitlines()]
    places = [Path(m[1]) for m in mounts if m[2] == kind and (not controller or controller in m[3].split(","))]
    groups = (line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines())
    paths = [path for _, controllers, path in groups if controller in controllers.split(",")]
    if not places or not paths:
        return None
    inside = places[0] / paths[0].lstrip("/")
    return inside if inside.is_dir() else places[0]  # a container may see only its own part


def _check_rlimit(size: int) -> None:
    """Assert that the kernel keeps to RLIMIT_DATA; not all do."""
    code = f"import mmap, resource; resource.setrlimit(resource.RLIMIT_DATA, ({size}, {size}))\n"
    code += f"try: mmap.mmap(-1, {size + 1}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\nexcept OSError: print('kept')"
    done = subprocess.run([sys.executable, "-c", code], stdout=PIPE, text=True, check=True)
    assert "kept" in done.stdout, "no limit on memory can be set here: the kernel does not keep to RLIMIT_DATA"
