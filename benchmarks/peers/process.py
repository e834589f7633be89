"""Runs a process that prints figures line by line, within limits of time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil


@dataclass(frozen=True)
class Run:
    """The printed lines, why the process failed or "", and its seconds."""

    lines: list[dict[str, Any]]
    end: str
    seconds: float


def run_phase(command: list[str], environment: dict[str, str], limit: float, memory: float) -> Run:
    """Run a process; stop it after ``limit`` seconds, or if it takes more than this share of the machine's memory."""
    lines: list[dict[str, Any]] = []
    start = time.time()
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [*command, "--start", str(start)],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        reader = threading.Thread(target=_read, args=(child.stdout, lines))
        reader.start()
        try:
            end = _watch(child, start + limit, memory)
        finally:
            _kill(child)
        reader.join()
        seconds = time.time() - start
        done = any(line["key"] == "done" for line in lines)
        if end == "" and (child.returncode or not done):
            errors.seek(0)
            end = f"failed: {_reason(errors.read().decode(errors='replace')) or f'exit code {child.returncode}'}"
    return Run(lines, end, seconds)


def _reason(stderr: str) -> str:
    """The last line that names an error, or else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return (errors or lines or [""])[-1][:300]


def _read(stream: IO[str] | None, lines: list[dict[str, Any]]) -> None:
    assert stream is not None
    for line in stream:
        lines.append(json.loads(line))


def _watch(child: subprocess.Popen[str], deadline: float, memory: float) -> str:
    start, most_bytes = time.time(), memory * psutil.virtual_memory().total
    while child.poll() is None:
        if time.time() > deadline:
            return f"not done after {deadline - start:.0f} s"
        if _resident(child.pid) > most_bytes:
            return f"stopped at {most_bytes / 2**30:.0f} GiB of memory"
        time.sleep(0.25)
    return ""


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill the process and its children; inductor starts workers."""
    with contextlib.suppress(ProcessLookupError):  # all have ended already
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
