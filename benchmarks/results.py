"""The run of a benchmark as a file: its figures, and the machine, commit, versions, date and load that they belong to.

A file says which sources were measured by their content, so that a commit that was given by hand can be checked. Its digest is
that of everything in it: a figure that is changed by hand makes the file unreadable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ov_backend.core.atomic_file import atomic_write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: How the name of a figure ends, or that of a dict or list around it.
UNITS = ("_s", "_ms", "_mib", "_gib", "_db", "_percent", "_error", "_ratio", "_count", "_per_hour", "_threads", "_levels")
#: The folders whose modules decide what is measured.
MEASURED = ("ov_backend", "benchmarks")
#: What Linux calls the units of a CPU that matter here, from the fastest on.
FLAGS = {
    "amx_tile": "AMX",
    "avx512_bf16": "bf16",
    "avx512_vnni": "VNNI",
    "avx_vnni": "VNNI",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
#: The variable that limits the instructions of PyTorch and OpenVINO.
LIMIT = "ONEDNN_MAX_CPU_ISA"


@dataclass(frozen=True)
class Machine:
    """The machine of a run, as this process may use it.

    Attributes:
        cpu: its name in /proc/cpuinfo.
        cores: that the process may use.
        memory_gib: of the machine.
        units: of :data:`FLAGS`, from the fastest on.
        limit: the instructions to which PyTorch and OpenVINO were limited, or "".
        threads: that were asked for by OMP_NUM_THREADS, or "".
    """

    cpu: str
    cores: int
    memory_gib: int
    units: tuple[str, ...]
    limit: str = ""
    threads: str = ""

    @classmethod
    def this(cls) -> Machine:
        """The machine that this process runs on."""
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        flags = fields.get("flags", "").split()
        units = tuple(dict.fromkeys(unit for flag, unit in FLAGS.items() if flag in flags))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        limits = (os.environ.get(name, "") for name in (LIMIT, "OMP_NUM_THREADS"))
        return cls(fields["model name"], len(os.sched_getaffinity(0)), round(memory), units, *limits)

    @property
    def name(self) -> str:
        """The CPU's name without trade marks, generation and clock."""
        return re.sub(r"^\d+th Gen|\((R|TM)\)|\b(Processor|CPU)\b|@.*|\d+-Core", "", self.cpu).replace("  ", " ").strip()

    @property
    def kind(self) -> str:
        """The fastest of its units, or the limit, as in the name of a file."""
        return (self.limit or (*self.units, "other")[0]).lower().replace("_", "-")

    @property
    def slug(self) -> str:
        """Maker, kind and cores, as in the name of a file."""
        threads = f"-{self.threads}-threads" if self.threads else ""
        return f"{self.name.split()[0].lower()}-{self.kind}-{self.cores}{threads}"

    @property
    def text(self) -> str:
        """The machine in words."""
        fastest = f"with {self.units[0]}" + ("" if "AMX" in self.units else ", without AMX")
        units = f"limited to {self.limit.replace('_', ' with ')}" if self.limit else fastest
        threads = f", {self.threads} threads" if self.threads else ""
        return f"{self.cores} cores of an {self.name} {units}{threads}"


@dataclass(frozen=True)
class Run:
    """One run of a benchmark.

    Attributes:
        benchmark: the name that ``python -m benchmarks`` takes, and a word for what its options change, as "memory-sdxl".
        arguments: of the command line.
        commit: the commit, with "-dirty" if a module of :data:`MEASURED` differs from it.
        sources: the digest of these modules.
        date: in UTC, as 2026-11-28.
        machine: what it ran on.
        versions: of Python, torch, OpenVINO and diffusers.
        load: the load average of a minute at the start and at the end.
        figures: numbers whose names end in their unit.
    """

    benchmark: str
    arguments: tuple[str, ...]
    commit: str
    sources: str
    date: str
    machine: Machine
    versions: dict[str, str]
    load: tuple[float, float]
    figures: dict[str, Any]

    @classmethod
    def begins(cls, benchmark: str, arguments: Iterable[str]) -> Run:
        """A run without figures that begins now."""
        measured, load = sources(working_blobs()), os.getloadavg()[0]
        date = datetime.now(timezone.utc).date().isoformat()
        return cls(benchmark, tuple(arguments), commit(measured), measured, date, Machine.this(), versions(), (load, load), {})

    def ends(self, figures: dict[str, Any], variant: str) -> Run:
        """The same run with its figures, which ends now.

        Raises:
            ValueError: a figure has no unit, or the commit is not known.
        """
        figures = json.loads(json.dumps(figures))
        if missing := list(without_unit(figures)):
            raise ValueError(f"no unit in the name of {', '.join(missing)}; one of {', '.join(UNITS)} is expected at its end")
        if not self.commit:
            raise ValueError("this folder has no Git repository: set COMMIT to the 40 digits of its commit")
        name, load = "-".join(filter(None, [self.benchmark, variant])), (self.load[0], os.getloadavg()[0])
        return dataclasses.replace(self, benchmark=name, load=load, figures=figures)

    @property
    def name(self) -> str:
        """The name of its file, without ``.json``."""
        return f"{self.benchmark}-{self.machine.slug}"

    def write(self, folder: Path = RESULTS) -> Path:
        """Write its file, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        fields = json.loads(json.dumps(dataclasses.asdict(self)))
        with atomic_write(path := folder / f"{self.name}.json") as file:
            file.write((json.dumps({"digest": digest(fields), **fields}, indent=1) + "\n").encode())
        return path

    @classmethod
    def read(cls, path: Path) -> Run:
        """The run of a file.

        Raises:
            ValueError: a field is missing, or the file was changed after it was written.
        """
        fields = json.loads(path.read_text(encoding="utf-8"))
        if missing := [field.name for field in dataclasses.fields(cls) if field.name not in fields]:
            raise ValueError(f"{path.name} has no {', '.join(missing)}; run the benchmark again")
        if fields.pop("digest", "") != digest(fields):
            raise ValueError(f"{path.name} was changed after the benchmark had written it; run the benchmark again")
        machine = fields["machine"] | {"units": tuple(fields["machine"]["units"])}
        tuples = {name: tuple(fields[name]) for name in ("arguments", "load")}
        return cls(**{**fields, **tuples, "machine": Machine(**machine)})


def without_unit(figures: Any, name: str = "figures") -> Iterable[str]:
    """The names of numbers that end in no unit, and are not in something whose name does."""
    if name.endswith(UNITS):
        return
    if isinstance(figures, (dict, list)):
        for key, value in figures.items() if isinstance(figures, dict) else enumerate(figures):
            yield from without_unit(value, f"{name}.{key}")
    elif isinstance(figures, (int, float)) and not isinstance(figures, bool):
        yield name


def digest(fields: dict[str, Any]) -> str:
    """The digest of the fields of a file."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """The versions that a run depends on."""
    found = {"python": platform.python_version()}
    for package in ("torch", "openvino", "diffusers"):
        try:
            found[package] = version(package).partition("+")[0].partition("-")[0]
        except PackageNotFoundError:
            continue
    return found


def working_blobs() -> dict[str, str]:
    """Git's names for the contents of the measured modules in this folder, by path."""
    contents = {path: path.read_bytes() for name in MEASURED for path in (ROOT / name).rglob("*.py")}
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        for path, content in contents.items()
    }


def committed_blobs(name: str) -> dict[str, str]:
    """The same of a commit; empty if Git does not know it."""
    rows = [line.split(maxsplit=3) for line in git("ls-tree", "-r", name, *MEASURED).splitlines()]
    return {path: blob for _, _, blob, path in rows if path.endswith(".py")}


def sources(blobs: dict[str, str]) -> str:
    """The digest of measured modules."""
    return hashlib.sha256(repr(sorted(blobs.items())).encode()).hexdigest()


def commit(measured: str) -> str:
    """The commit that is checked out, if it has these sources; else the one that the variable COMMIT names.

    A machine that gets the files without their commits needs the variable; ``tests/test_figures.py`` checks it.
    """
    name, given = git("rev-parse", "HEAD").strip(), os.environ.get("COMMIT", "")
    if name and sources(committed_blobs(name)) == measured:
        return name
    if re.fullmatch("[0-9a-f]{40}", given):
        return given
    return f"{name}-dirty" if name else ""


def git(*arguments: str) -> str:
    """What Git prints; "" where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""
