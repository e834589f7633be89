"""The cost of status polling for a generation: the seconds of a step with 200 pollers and without any.

    python -m benchmarks.bench_status [--pollers 200] [--size 512] [--steps 500] [--window 4] [--checkpoint FILE] [--json]

The standalone server runs in one process and the pollers in another; each poller sends its next request as soon as it has an
answer. During one long generation they poll and pause in turns of some seconds. A step belongs to the turn that contains it, and
each turn's median is compared with that of the previous turn, so that other work on the machine affects both. Every answer is
checked. The pollers run on the same machine, so their processor time counts as a part of the cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.command import write_line

ROOT = Path(__file__).parents[1]
#: Seconds at the beginning of a turn that do not count: connections are opened, or the last answers arrive.
SETTLE = 0.8


def main() -> None:
    """Measure and print the figures."""
    options = parse()
    if options.child == "serve":
        serve(options)
    elif options.child:
        asyncio.run(poll(options.child, options.pollers))
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(options, Path(folder))
        sys.stdout.write(json.dumps(result, indent=1) + "\n" if options.json else table(result, options))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pollers", type=int, default=200)
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of a turn")
    parser.add_argument("--checkpoint", type=Path, help="default: a small one with random weights")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="64 pixels, few pollers, to test the benchmark")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.tiny:
        options.size, options.steps, options.window, options.pollers = 64, 800, 1.5, 20
    return options


def table(result: dict[str, Any], options: argparse.Namespace) -> str:
    """The figures as text."""
    return (
        f"{options.pollers} pollers, {options.size}x{options.size}, {os.cpu_count()} cores, {result['turns']} turns\n"
        f"step without  {result['without']:.4f} s\nstep with     {result['with']:.4f} s\nratio         {result['ratio']:.3f}\n"
        f"answers       {result['answers_per_second']:.1f} a second\n"
    )


@dataclass
class Turn:
    """Some seconds in which all pollers poll, or all pause."""

    polling: bool
    start: float
    end: float = 0.0
    answers: int = 0
    steps: list[float] = field(default_factory=list)

    def set_steps(self, times: list[float]) -> None:
        """Set the durations of the steps that lie completely in this turn."""
        inside = [time for time in times if self.start + SETTLE <= time <= self.end]
        self.steps = [after - before for before, after in pairwise(inside)]


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds of a step without and with the pollers, their ratio, and the pollers' answers per second."""
    with Server(options, folder) as server:
        page = Page(server.url, options)
        page.generate(2)  # compiles everything
        turns: list[Turn] = []
        with Pollers(server.url, options.pollers) as pollers:
            generation = Generation(page, options.steps)
            while generation.is_alive():
                answers = pollers.send("stop" if len(turns) % 2 == 0 else "go")
                turn = Turn(len(turns) % 2 == 1, time.monotonic())
                generation.join(options.window)
                turn.end = time.monotonic()
                turn.answers = pollers.send("stop") - answers
                turns.append(turn)
            if generation.error is not None:
                raise generation.error
        for turn in turns:
            turn.set_steps(server.step_times)
    counted = [(a, b) for a, b in pairwise(turns) if len(a.steps) > 2 and len(b.steps) > 2]
    ratios = [statistics.median(b.steps) / statistics.median(a.steps) for a, b in counted if b.polling]
    ratios += [statistics.median(a.steps) / statistics.median(b.steps) for a, b in counted if a.polling]
    assert len(ratios) >= 4, f"only {len(ratios)} turns were long enough: increase --steps"
    with_pollers = [turn for turn in turns if turn.polling]
    assert all(turn.answers > 0 for turn in with_pollers[:-1]), "no poller was answered"
    return {
        "without": statistics.median(seconds for turn in turns if not turn.polling for seconds in turn.steps),
        "with": statistics.median(seconds for turn in with_pollers for seconds in turn.steps),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4),
        "turns": len(turns),
        "answers_per_second": statistics.median(turn.answers / (turn.end - turn.start) for turn in with_pollers[:-1]),
    }


class Server:
    """The standalone server in a separate process, and the times at which it finished steps (monotonic clock)."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_status", "--child", "serve", "--folder", str(folder)]
        command += ["--checkpoint", str(options.checkpoint)] if options.checkpoint else []
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the server did not start"
        self.step_times: list[float] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.step_times.extend(map(float, self.process.stdout))


def serve(options: argparse.Namespace) -> None:
    """In a child process: serve the page; print its address, then the time of every step."""
    import uvicorn

    from ov_backend.checkpoint.random_weights import write_random_checkpoint
    from ov_backend.hosts.standalone import serve as standalone

    checkpoint = options.checkpoint or write_random_checkpoint(options.folder / "random.safetensors")
    folders = {"out": options.folder / "out", "cache_dir": str(options.folder / "graphs")}
    generator = standalone.load(standalone.Options(checkpoint=checkpoint, **folders))
    step = generator.status.step

    def timed_step(done: int, total: int) -> None:
        step(done, total)
        write_line(time.monotonic())

    vars(generator.status)["step"] = timed_step
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = standalone.application(generator)
        write_line(f"http://127.0.0.1:{listening.getsockname()[1]}")
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


class Page:
    """A client of the standalone page."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        from gradio_client import Client

        self.url, self.size, self.client = url, options.size, Client(url, verbose=False)
        self.number = next(d["id"] for d in self.client.config["dependencies"] if d["api_name"] == "generate")

    def generate(self, steps: int) -> None:
        """Generate one picture, as the page's button does."""
        fields = ["a cat", "", steps, 7.0, 1, self.size, self.size, 1, 0.6, "DDIM"]
        panel = ["CPU", "auto", True, True, True, True, 0, "", "auto"]
        self.client.predict(None, *fields, *panel, fn_index=self.number)
        run = httpx.get(f"{self.url}/openvino/status", timeout=60).json()["run"]
        assert (run["active"], run["error"], run["step"]) == (False, "", steps), run


class Generation(threading.Thread):
    """A running generation; ``error`` is the error that ended it, or None."""

    def __init__(self, page: Page, steps: int) -> None:
        super().__init__(daemon=True)
        self.page, self.steps, self.error = page, steps, None
        self.start()

    def run(self) -> None:
        """Generate one picture."""
        try:
            self.page.generate(self.steps)
        except BaseException as error:
            self.error = error


class Pollers:
    """A process that polls the status between the commands "go" and "stop"."""

    def __init__(self, url: str, pollers: int) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_status", "--child", url, "--pollers", str(pollers)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Pollers:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def send(self, command: str) -> int:
        """Send "go" or "stop"; returns the number of answers so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, "the pollers ended"
        return int(answer)


async def poll(url: str, pollers: int) -> None:
    """In a child process: poll between the lines "go" and "stop" of standard input.

    For each line, the number of answers so far is printed. The requests are plain text, because a client library would take more
    processor time than the server does.
    """
    going, count = asyncio.Event(), 0
    address = urlsplit(url)
    request = f"GET /openvino/status HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()

    async def one() -> None:
        nonlocal count
        while True:
            await going.wait()
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            while going.is_set():
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 "), head
                length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith(b"content-length:"))
                answer = json.loads(await reader.readexactly(length))
                assert answer["version"] == 1, answer
                count += 1
                if answer["state"] == "idle":  # only polling during a generation is measured
                    await asyncio.sleep(1.0)
            writer.close()

    tasks = [asyncio.create_task(one()) for _ in range(pollers)]
    while line := await asyncio.to_thread(sys.stdin.readline):
        (going.set if line == "go\n" else going.clear)()
        write_line(count)
        await asyncio.sleep(0)
        for task in tasks:
            if task.done():
                task.result()  # raises the error that ended it


if __name__ == "__main__":
    main()
