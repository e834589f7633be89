"""What it costs a generation that many people look: the seconds of a step with 200 pollers of the status and with none.

    python -m benchmarks.bench_status [--pollers 200] [--size 512] [--steps 20] [--repeats 3] [--checkpoint FILE] [--json]

The standalone page runs in a process of its own and the pollers in another, each asking again as soon as it was answered.
Generations with and without them take turns; the ratio is the median of the pairs' ratios. Every answer is checked.
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
import threading
import time
from pathlib import Path
from typing import Any

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
        asyncio.run(poll(options.child, options.pollers, options.seconds))
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
    parser.add_argument("--repeats", type=int, default=3, help="pairs of generations")
    parser.add_argument("--checkpoint", type=Path, help="default: a small one of random weights")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="64 pixels, few pollers: to try the benchmark itself")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.tiny:
        options.size, options.steps, options.repeats, options.pollers = 64, 30, 1, 20
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
            generate(url, options)  # everything is compiled in this one
            pairs, answers = [], []
            for _ in range(options.repeats):
                quiet = generate(url, options)
                seen, busy = with_pollers(url, options, quiet * options.steps)
                pairs.append((quiet, busy))
                answers.append(seen)
        finally:
            server.terminate()
    return {
        "without": statistics.median(quiet for quiet, _ in pairs),
        "with": statistics.median(busy for _, busy in pairs),
        "ratio": statistics.median(busy / quiet for quiet, busy in pairs),
        "answers_per_second": statistics.median(answers),
        "pairs": pairs,
    }


def generate(url: str, options: argparse.Namespace) -> float:
    """Generate one picture by the page's own function; the average seconds of a step."""
    from gradio_client import Client

    client = Client(url, verbose=False)
    number = next(d["id"] for d in client.config["dependencies"] if d["api_name"] == "generate")
    fields = ["a cat", "", options.steps, 7.0, 1, options.size, options.size, 1, 0.6]
    panel = ["CPU", "auto", True, True, True, True, 0, ""]
    client.predict(None, *fields, *panel, fn_index=number)
    run = httpx.get(f"{url}/openvino/status", timeout=60).json()["run"]
    assert (run["active"], run["error"], run["step"]) == (False, "", options.steps), run
    return float(run["average_seconds_per_step"])


def with_pollers(url: str, options: argparse.Namespace, seconds: float) -> tuple[float, float]:
    """Answers a second that the pollers got, and the seconds of a step while they asked."""
    command = [sys.executable, "-m", "benchmarks.bench_status", "--child", url, "--pollers", str(options.pollers)]
    pollers = subprocess.Popen([*command, "--seconds", str(3 * seconds + 30)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert pollers.stdout is not None
    assert pollers.stdout.readline() == "polling\n"
    try:
        step = generate(url, options)
    finally:
        pollers.terminate()
    counted = json.loads(pollers.communicate()[0].splitlines()[-1])
    return counted["answers"] / counted["seconds"], step


async def poll(url: str, pollers: int, seconds: float) -> None:
    """Ask until terminated, each poller again as soon as it has its answer; then print how often that was."""
    import signal

    stop, count, start = asyncio.Event(), 0, time.monotonic()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def one(client: httpx.AsyncClient) -> None:
        nonlocal count
        while not stop.is_set() and time.monotonic() - start < seconds:
            answer = await client.get(f"{url}/openvino/status")
            assert answer.json()["version"] == 1
            count += 1
            if answer.json()["state"] == "idle":  # what is measured is asking during a generation
                await asyncio.sleep(0.2)

    limits = httpx.Limits(max_connections=pollers, max_keepalive_connections=pollers)
    async with httpx.AsyncClient(limits=limits, timeout=60) as client:
        tasks = [asyncio.create_task(one(client)) for _ in range(pollers)]
        threading.Timer(2.0, lambda: (sys.stdout.write("polling\n"), sys.stdout.flush())).start()
        await asyncio.gather(*tasks)
    sys.stdout.write(json.dumps({"answers": count, "seconds": time.monotonic() - start}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
