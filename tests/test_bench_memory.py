"""The benchmark of memory runs with small networks, and says what did not fit under its limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchmarks.memory_limit import Limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the figures are the Linux kernel's")


def bench(work: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.bench_memory", "--tiny", "--size", "64", "--steps", "1", "--json"]
    done = subprocess.run([*command, "--work", str(work), "--limit-by", "rlimit", *arguments], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert not list(work.iterdir()), "nothing is left on the disk"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_sdxl_under_a_limit_in_which_it_fits(tmp_path: Path) -> None:
    report = bench(tmp_path, "--sdxl", "--limit-gb", "16", "--ways", "pytorch", "low memory")
    assert report["conditions"]["network"] == "SDXL"
    assert report["conditions"]["limit"].startswith("RLIMIT_DATA of 16 GiB")
    assert report["ways"].keys() == {"pytorch", "low memory"}
    assert report["ways"]["low memory"]["compiles_count"] == 4, "both text encoders, the UNet, the VAE"
    assert report["relative_error"].keys() == {"low memory-first picture", "low memory-second picture"}


def test_what_did_not_fit_has_a_row(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    report = bench(work, "--limit-gb", "0.2", "--weights", str(tmp_path), "--ways", "default", "low memory")
    assert {way: list(figures) for way, figures in report["ways"].items()} == {
        "default": ["did not fit"],
        "low memory": ["did not fit"],
    }


def run(limit: Limit, code: str) -> str:
    return limit.run([sys.executable, "-c", code])


def test_a_failure_for_another_reason_is_raised() -> None:
    from benchmarks.memory_limit import DidNotFit, Limit

    with Limit(0.5, "rlimit") as limit:
        assert run(limit, "print(len(bytearray(1 << 28)))") == f"{1 << 28}\n"
        with pytest.raises(DidNotFit, match="MemoryError"):
            run(limit, "bytearray(1 << 29)")
        with pytest.raises(subprocess.CalledProcessError):
            run(limit, "raise ValueError")


@pytest.mark.parametrize("kind", ["auto", "cgroup-v1"])
def test_a_control_group_is_taken_where_one_can_be_made(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are ordinary ones here: nothing of this machine is changed."""
    from benchmarks import memory_limit

    for name in ("cgroup.controllers", "cgroup.subtree_control"):
        (tmp_path / name).write_text("cpu memory")
    monkeypatch.setattr(memory_limit, "own_group", lambda *_: tmp_path)
    limit = memory_limit.Limit(2, kind)
    (group,) = tmp_path.glob("bench-memory-*")
    maximum, events = ("memory.max", "memory.events") if kind == "auto" else ("memory.limit_in_bytes", "memory.oom_control")
    assert (group / maximum).read_text() == str(2 << 30)
    assert limit.name.startswith("cgroup v")
    assert run(limit, "print(1)") == "1\n"
    assert (group / "cgroup.procs").read_text() == "0"
    with pytest.raises(memory_limit.DidNotFit, match="the kernel killed it"):
        run(limit, f"open({str(group / events)!r}, 'w').write('oom 1\\noom_kill 1\\n'); raise SystemExit(1)")
    with pytest.raises(subprocess.CalledProcessError):
        run(limit, "raise MemoryError")


def test_where_no_control_group_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import memory_limit

    monkeypatch.setattr(memory_limit, "own_group", lambda *_: tmp_path / "none")
    for kind in memory_limit.KINDS:
        assert memory_limit.Limit(1, kind).name.startswith("RLIMIT_DATA")


@pytest.mark.parametrize("visible", [True, False])
def test_the_own_group_is_found(visible: bool, tmp_path: Path) -> None:
    from benchmarks.memory_limit import own_group

    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    mounts = [f"cgroup2 {tmp_path}/two cgroup2 rw 0 0", f"cgroup {tmp_path}/cpu cgroup rw,cpu 0 0"]
    (proc / "mounts").write_text("\n".join([*mounts, f"cgroup {tmp_path}/one cgroup rw,memory 0 0", ""]))
    (proc / "self" / "cgroup").write_text("4:memory:/a/b\n3:cpu:/c\n0::/d\n")
    for folder in ("one", "two", *(("one/a/b", "two/d") if visible else ())):
        (tmp_path / folder).mkdir(parents=True)
    assert own_group("cgroup", "memory", proc) == tmp_path / ("one/a/b" if visible else "one")
    assert own_group("cgroup2", "", proc) == tmp_path / ("two/d" if visible else "two")
    assert own_group("cgroup", "pids", proc) is None
