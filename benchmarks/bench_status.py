"""What it costs a generation that many people look: the seconds of a step with 200 pollers of the status and with none.

    python -m benchmarks.bench_status [--pollers 200] [--size 512] [--steps 20] [--repeats 8] [--checkpoint FILE] [--json]

The standalone page runs in a process of its own and the pollers in another, each asking again as soon as it was answered.
Generations with and without them take turns, and which of a pair comes first too; the ratio is the median of the pairs'
ratios. Every answer is checked. The pollers' own share of the processor counts as the status's, as both run on one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

ROOT = Path(__file__).parents[1]
RANDOM = """
import pathlib, sys
from ov_backend.checkpoint.random import write_random_checkpoint
write_random_checkpoint(pathlib.Path(sys.argv[1]))
"""


def main() -> None:
    """Measure and print."""
    options = parse()
    if options.child:
        asyncio.run(poll(options.child, options.pollers))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options, Path(folder))
    if options.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
        return
    sys.stdout.write(
        f"{options.pollers} pollers, {options.size}x{options.size}, {options.steps} steps, {os.cpu_count()} cores\n"
        f"step without  {result['without']:.4f} s\nstep with     {result['with']:.4f} s\nratio         {result['ratio']:.3f}\n"
        f"answers       {result['answers_per_second']:.1f} a second\n"
    )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pollers", type=int, default=200)
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=8, help="pairs of generations")
    parser.add_argument("--checkpoint", type=Path, help="default: a small one of random weights")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="64 pixels, few pollers: to try the benchmark itself")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.tiny:
        options.size, options.steps, options.repeats, options.pollers = 64, 30, 2, 20
    return options


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Seconds of a step without and with the pollers, their ratio, and how often the pollers were answered."""
    checkpoint = options.checkpoint or folder / "random.safetensors"
    if options.checkpoint is None:
        subprocess.run([sys.executable, "-c", RANDOM, str(checkpoint)], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "ov_backend", "serve", "--checkpoint", str(checkpoint), "--port", "0"]
    command += ["--out", str(folder / "out"), "--cache-dir", str(folder / "graphs")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            url = next(line.split()[1] for line in server.stdout if line.startswith("Open http"))
            page = Page(url, options)
            page.generate()  # everything is compiled in this one
            with Pollers(url, options.pollers) as pollers:
                pairs, rates = [], []
                for number in range(options.repeats):
                    found = {}
                    for polled in (False, True) if number % 2 else (True, False):
                        found[polled], rate = pollers.during(page.generate) if polled else (page.generate(), None)
                        rates += [rate] if rate is not None else []
                    pairs.append((found[False], found[True]))
        finally:
            server.terminate()
    return {
        "without": statistics.median(quiet for quiet, _ in pairs),
        "with": statistics.median(busy for _, busy in pairs),
        "ratio": statistics.median(busy / quiet for quiet, busy in pairs),
        "answers_per_second": statistics.median(rates),
        "pairs": pairs,
    }


class Page:
    """The page's own function that generates."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        from gradio_client import Client

        self.url, self.options, self.client = url, options, Client(url, verbose=False)
        self.number = next(d["id"] for d in self.client.config["dependencies"] if d["api_name"] == "generate")

    def generate(self) -> float:
        """Generate one picture; the average seconds of a step."""
        size, steps = self.options.size, self.options.steps
        panel = ["CPU", "auto", True, True, True, True, 0, ""]
        self.client.predict(None, "a cat", "", steps, 7.0, 1, size, size, 1, 0.6, *panel, fn_index=self.number)
        run = httpx.get(f"{self.url}/openvino/status", timeout=60).json()["run"]
        assert (run["active"], run["error"], run["step"]) == (False, "", steps), run
        return float(run["average_seconds_per_step"])


class Pollers:
    """A process that asks for the status, when told to."""

    def __init__(self, url: str, pollers: int) -> None:
        command = [sys.executable, "-m", "benchmarks.bench_status", "--child", url, "--pollers", str(pollers)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._told("") == "ready"

    def __enter__(self) -> Pollers:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def during(self, generate: Any) -> tuple[float, float]:
        """The seconds of a step while all ask, and how many answers a second they got together."""
        before, start = int(self._told("go")), time.monotonic()
        step = generate()
        return step, (int(self._told("stop")) - before) / (time.monotonic() - start)

    def _told(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if command:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, "the pollers ended"
        return answer


async def poll(url: str, pollers: int) -> None:
    """Ask between "go" and "stop" on the standard input, each poller again as soon as it has its answer.

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
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        (going.set if line == "go\n" else going.clear)()
        print(count, flush=True)
        await asyncio.sleep(0)
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it


if __name__ == "__main__":
    main()
