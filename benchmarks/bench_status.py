"""What it costs a generation that many people look: the seconds of a step with 200 pollers of the status and with none.

    python -m benchmarks.bench_status [--pollers 200] [--size 512] [--steps 500] [--window 4] [--checkpoint FILE] [--json]

The standalone page runs in a process of its own and the pollers in another, each asking again as soon as it was answered.
During one long generation they ask and are silent in turns of some seconds; a step counts for the turn that it lies in, and
each turn's median is held against that of the turn before, so that other work on the machine meets both. Every answer is
checked. The pollers' own share of the processor counts as the status's, as both run on one machine.
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

ROOT = Path(__file__).parents[1]
#: Seconds at the beginning of a turn that do not count: connections are made, or the last answers come.
SETTLE = 0.8


def main() -> None:
    """Measure and print."""
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
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pollers", type=int, default=200)
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=float, default=4.0, help="seconds of a turn")
    parser.add_argument("--checkpoint", type=Path, help="default: a small one of random weights")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="64 pixels, few pollers: to try the benchmark itself")
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
    """Some seconds in which all ask, or nobody does."""

    asking: bool
    start: float
    end: float = 0.0
    answers: int = 0
    steps: list[float] = field(default_factory=list)

    def take(self, marks: list[float]) -> None:
        """The steps that lie wholly in it."""
        inside = [mark for mark in marks if self.start + SETTLE <= mark <= self.end]
        self.steps = [after - before for before, after in pairwise(inside)]


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds of a step without and with the pollers, their ratio, and how often the pollers were answered."""
    with Server(options, folder) as server:
        page = Page(server.url, options)
        page.generate(2)  # everything is compiled in this one
        turns: list[Turn] = []
        with Pollers(server.url, options.pollers) as pollers:
            generation = Generation(page, options.steps)
            while generation.is_alive():
                answers = pollers.told("stop" if len(turns) % 2 == 0 else "go")
                turn = Turn(len(turns) % 2 == 1, time.monotonic())
                generation.join(options.window)
                turn.end = time.monotonic()
                turn.answers = pollers.told("stop") - answers
                turns.append(turn)
            if generation.error is not None:
                raise generation.error
        for turn in turns:
            turn.take(server.marks)
    counted = [(a, b) for a, b in pairwise(turns) if len(a.steps) > 2 and len(b.steps) > 2]
    ratios = [statistics.median(b.steps) / statistics.median(a.steps) for a, b in counted if b.asking]
    ratios += [statistics.median(a.steps) / statistics.median(b.steps) for a, b in counted if a.asking]
    assert len(ratios) >= 4, f"only {len(ratios)} turns were long enough: more --steps"
    with_pollers = [turn for turn in turns if turn.asking]
    assert all(turn.answers > 0 for turn in with_pollers[:-1]), "nobody was answered"
    return {
        "without": statistics.median(seconds for turn in turns if not turn.asking for seconds in turn.steps),
        "with": statistics.median(seconds for turn in with_pollers for seconds in turn.steps),
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4),
        "turns": len(turns),
        "answers_per_second": statistics.median(turn.answers / (turn.end - turn.start) for turn in with_pollers[:-1]),
    }


class Server:
    """The standalone page in a process of its own, and when it finished each step (on the machine's monotonic clock)."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_status", "--child", "serve", "--folder", str(folder)]
        command += ["--checkpoint", str(options.checkpoint)] if options.checkpoint else []
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the page did not start"
        self.marks: list[float] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.marks.extend(map(float, self.process.stdout))


def serve(options: argparse.Namespace) -> None:
    """In a child: the page, its address on the first line, then the time of every step."""
    import uvicorn

    from ov_backend.checkpoint.random_weights import write_random_checkpoint
    from ov_backend.standalone import serve as page

    checkpoint = options.checkpoint or write_random_checkpoint(options.folder / "random.safetensors")
    folders = {"out": options.folder / "out", "cache_dir": str(options.folder / "graphs")}
    generator = page.load(page.Options(checkpoint=checkpoint, **folders))
    step = generator.status.step

    def noted(done: int, total: int) -> None:
        step(done, total)
        print(time.monotonic(), flush=True)

    vars(generator.status)["step"] = noted
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = page.application(generator)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


class Page:
    """The page's own function that generates."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        from gradio_client import Client

        self.url, self.size, self.client = url, options.size, Client(url, verbose=False)
        self.number = next(d["id"] for d in self.client.config["dependencies"] if d["api_name"] == "generate")

    def generate(self, steps: int) -> None:
        """Generate one picture."""
        fields = ["a cat", "", steps, 7.0, 1, self.size, self.size, 1, 0.6]
        panel = ["CPU", "auto", True, True, True, True, 0, ""]
        self.client.predict(None, *fields, *panel, fn_index=self.number)
        run = httpx.get(f"{self.url}/openvino/status", timeout=60).json()["run"]
        assert (run["active"], run["error"], run["step"]) == (False, "", steps), run


class Generation(threading.Thread):
    """A generation under way; ``error`` is what ended it."""

    def __init__(self, page: Page, steps: int) -> None:
        super().__init__(daemon=True)
        self.page, self.steps, self.error = page, steps, None
        self.start()

    def run(self) -> None:
        """Until the picture is there."""
        try:
            self.page.generate(self.steps)
        except BaseException as error:
            self.error = error


class Pollers:
    """A process that asks for the status, when told to."""

    def __init__(self, url: str, pollers: int) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_status", "--child", url, "--pollers", str(pollers)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Pollers:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def told(self, command: str) -> int:
        """Tell them to "go" or to "stop"; how many answers they have got so far."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, "the pollers ended"
        return int(answer)


async def poll(url: str, pollers: int) -> None:
    """In a child: ask between "go" and "stop" on the standard input, each poller again as soon as it has its answer.

    Each line is answered with the number of answers so far. The requests are written by hand: a client library would
    take more of the processor than the server does.
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
                if answer["state"] == "idle":  # what is measured is asking during a generation
                    await asyncio.sleep(1.0)
            writer.close()

    tasks = [asyncio.create_task(one()) for _ in range(pollers)]
    while line := await asyncio.to_thread(sys.stdin.readline):
        (going.set if line == "go\n" else going.clear)()
        print(count, flush=True)
        await asyncio.sleep(0)
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it


if __name__ == "__main__":
    main()
