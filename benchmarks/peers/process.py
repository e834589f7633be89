"""A process that tells figures line by line, within a limit of time and memory."""

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
    """The lines that were told, how it ended ("" if well), and what it took."""

    lines: list[dict[str, Any]]
    end: str
    seconds: float


def run_phase(command: list[str], environment: dict[str, str], limit: float, memory: float) -> Run:
    """Run until it ends or is ended: after ``limit`` seconds, or with more than this share of the machine's memory."""
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
            _end(child)
        reader.join()
        seconds = time.time() - start
        done = any(line["key"] == "done" for line in lines)
        if end == "" and (child.returncode or not done):
            errors.seek(0)
            end = f"failed: {_reason(errors.read().decode(errors='replace')) or f'exit code {child.returncode}'}"
    return Run(lines, end, seconds)


def _reason(told: str) -> str:
    """The last line that names an error; else the last one."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0]]
    return (named or lines or [""])[-1][:300]


def _read(stream: IO[str] | None, lines: list[dict[str, Any]]) -> None:
    assert stream is not None
    for line in stream:
        lines.append(json.loads(line))


def _watch(child: subprocess.Popen[str], deadline: float, memory: float) -> str:
    began, most = time.time(), memory * psutil.virtual_memory().total
    while child.poll() is None:
        if time.time() > deadline:
            return f"not done after {deadline - began:.0f} s"
        if _resident(child.pid) > most:
            return f"stopped at {most / 2**30:.0f} GiB of memory"
        time.sleep(0.25)
    return ""


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _end(child: subprocess.Popen[str]) -> None:
    """It and what it started: inductor has workers of its own."""
    with contextlib.suppress(ProcessLookupError):  # all have ended by themselves
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
