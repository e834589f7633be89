"""Pressing Generate soon after the start of ``serve``: does preparing networks in the background help, and does it ever delay?

    python -m benchmarks.bench_start [--moments 30] [--within 8] [--size 256] [--other 384] [--checkpoint FILE] [--out FOLDER]

One server process makes a picture of each size by PyTorch and by OpenVINO, and so fills the store; the last one is of ``--size``,
which later processes prepare at their start: each finds the notes of earlier runs as the first has left them, whatever size was
asked for since. Each later server is a new process, whose page is loaded as a browser does: Generate is pressed once, some
seconds later, for the size that is prepared or for the other one, whose graphs are only stored. The same is done with
``--no-prepare``. Seconds count from the press until the status shows the first step, which it may do 0.1 s late. Each picture is
compared with PyTorch's before its time counts.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from PIL import Image

from benchmarks.command import parser_of, show, write_line
from ov_backend.ui.comparison import psnr

ROOT = Path(__file__).parents[1]
#: Least PSNR in dB of a picture in bf16 with PyTorch's; another seed's picture is below 15.
LEAST_PSNR = 20.0
#: Seconds between two looks at the status; a snapshot serves everybody for 0.1 s.
LOOK_S = 0.05
#: Seconds of reading the page before Generate is pressed.
READING_S = 10.0


class Press(NamedTuple):
    """One press of Generate: seconds since the page could be opened, and seconds from the press."""

    size: str
    moment_s: float
    first_step_s: float
    picture_s: float


def main() -> None:
    """Measure and print the figures."""
    parser = parser_of(__doc__, "a few presses")
    parser.add_argument("--moments", type=int, default=30, help="random moments in all, alternately with the two sizes")
    parser.add_argument("--within", type=float, default=8.0, help="seconds after the start in which they lie")
    parser.add_argument("--without", type=int, default=4, help="presses of each size without preparing")
    parser.add_argument("--size", type=int, default=256, help="pixels of the square picture that is prepared")
    parser.add_argument("--other", type=int, default=384, help="pixels of the one that is not")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--checkpoint", type=Path, help="default: the demo checkpoint")
    options, _ = parser.parse_known_args()
    if options.tiny:
        options.moments, options.within, options.without, options.size, options.other, options.steps = 2, 2.0, 1, 256, 192, 4
    with tempfile.TemporaryDirectory() as folder:
        result = Bench(options, Path(folder)).measure()
    show(result, options, lambda result, options: write_line(table(result, options)))


class Bench:
    """Servers on one store, and PyTorch's pictures to compare with."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.graphs, self.runs = folder / "graphs", folder / "runs"
        self.expected: dict[int, Image.Image] = {}

    def measure(self) -> dict[str, Any]:
        """All presses, by what was done."""
        options = self.options
        sizes = (options.other, options.size)
        with self.server(prepare=False) as page:
            for size in sizes:
                page.generate(size, in_openvino=False)
                self.expected[size] = page.picture()
            for size in sizes:
                self.press(page, size, time.monotonic())
        shutil.copytree(self.graphs / "runs", self.runs)
        drawn = random.Random(options.seed)
        kinds = [(sizes[i % 2], True) for i in range(options.moments)]
        kinds += [(size, False) for size in sizes for _ in range(options.without)]
        drawn.shuffle(kinds)  # other work on the machine affects all
        presses: dict[bool, list[Press]] = {True: [], False: []}
        for size, prepare in kinds:
            presses[prepare] += self.pressed_after(drawn.uniform(0, options.within), size, prepare)
        read = [self.pressed_after(READING_S, options.size, prepare=True, again=True) for _ in range(min(3, options.moments))]
        unprepared = [press for press in presses[False] if press.size == str(options.size)]
        return {
            "prepared": [press._asdict() for press in presses[True]],
            "without": [press._asdict() for press in presses[False]],
            "after reading": [first._asdict() for first, *_ in read],
            "later pictures": [later._asdict() for _, later in read],
            "median": {"read_first_step_s": median([first for first, *_ in read]), "unprepared_first_step_s": median(unprepared)},
        }

    def pressed_after(self, seconds: float, size: int, prepare: bool, again: bool = False) -> list[Press]:
        """Start a server, and press Generate some seconds after its page can be opened; ``again`` makes a later picture too."""
        with self.server(prepare) as page:
            opened = time.monotonic()
            time.sleep(seconds)
            return [self.press(page, size, opened) for _ in range(2 if again else 1)]

    def press(self, page: Page, size: int, opened: float) -> Press:
        """Press Generate, and check the picture."""
        moment = time.monotonic() - opened
        first_step, picture = page.generate(size)
        likeness = psnr(page.picture(), self.expected[size])
        assert likeness > LEAST_PSNR, f"the picture of {size} is not PyTorch's: PSNR {likeness:.1f} dB"
        return Press(str(size), moment, first_step, picture)

    @contextmanager
    def server(self, prepare: bool) -> Iterator[Page]:
        """The page of a new process; the last run that it knows of is one of the size that is to be prepared."""
        if self.runs.exists():
            shutil.rmtree(self.graphs / "runs")
            shutil.copytree(self.runs, self.graphs / "runs")
        out = self.folder / "out"
        command = [sys.executable, "-m", "ov_backend", "serve", "--port", "0", "--out", str(out)]
        command += ["--cache-dir", str(self.graphs)]
        command += ["--checkpoint", str(self.options.checkpoint)] if self.options.checkpoint else []
        command += [] if prepare else ["--no-prepare"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            yield Page(next(line.split()[1] for line in process.stdout if line.startswith("Open http")), out, self.options.steps)
        finally:
            process.terminate()
            process.wait()


def median(presses: Sequence[Press]) -> float:
    """The median of the seconds until the first step."""
    return statistics.median(press.first_step_s for press in presses)


class Page:
    """A client of the standalone page, which sends what a browser sends."""

    def __init__(self, url: str, out: Path, steps: int) -> None:
        self.url, self.out, self.steps = url, out, steps
        self.client = httpx.Client(base_url=url, timeout=60)
        config = self.client.get("/config").raise_for_status().json()
        generate = next(each for each in config["dependencies"] if each["api_name"] == "generate")
        components = {each["id"]: each["props"] for each in config["components"]}
        self.function = generate["id"]
        #: What the page holds at its start, by label; a number where there is none.
        self.fields = {components[each].get("label") or each: components[each].get("value") for each in generate["inputs"]}
        assert len(self.fields) == len(generate["inputs"]), "two inputs of the page have one label"
        for each in config["dependencies"]:
            if any(event == "load" for _, event in each["targets"]):
                self.send(each["id"], [None] * len(each["inputs"]))

    def generate(self, size: int, in_openvino: bool = True) -> tuple[float, float]:
        """Generate one picture; seconds until its first step is done, and until the picture is there."""
        number = (self.status()["run"] or {"number": 0})["number"]
        changed = {"Prompt": "a fox in the snow", "Steps": self.steps, "Seed": 1, "Width": size, "Height": size}
        changed |= {f"Run the {network} in OpenVINO": in_openvino for network in ("UNet", "VAE", "text encoder")}
        assert changed.keys() <= self.fields.keys(), "the page's labels have changed"
        start, first_step = time.monotonic(), 0.0
        self.send(self.function, list({**self.fields, **changed}.values()))
        while True:
            run = self.status()["run"]
            if run and run["number"] > number:
                first_step = first_step or (time.monotonic() - start if run["step"] else 0.0)
                if not run["active"]:
                    assert (run["error"], run["step"]) == ("", self.steps), run
                    return first_step, time.monotonic() - start
            time.sleep(LOOK_S)

    def send(self, function: int, values: list[Any]) -> None:
        """Put a call of one of the page's functions into its queue."""
        body = {"data": values, "fn_index": function, "session_hash": "bench"}
        self.client.post("/gradio_api/queue/join", json=body).raise_for_status()

    def status(self) -> dict[str, Any]:
        """The live status."""
        return dict(self.client.get("/openvino/status").raise_for_status().json())

    def picture(self) -> Image.Image:
        """The newest picture."""
        newest = max(self.out.glob("*.png"), key=lambda path: path.stat().st_mtime_ns)
        with Image.open(newest) as picture:
            return picture.convert("RGB")


def table(result: dict[str, Any], options: argparse.Namespace) -> str:
    """The figures as text: seconds from the press to the first step and to the picture."""
    lines = ["seconds from the press of Generate"]
    lines.append(f"{'':44}{'first step':>22}{'picture':>22}")
    lines.append(f"{'':44}{'median':>11}{'largest':>11}{'median':>11}{'largest':>11}")
    for size, name in ((options.size, "prepared"), (options.other, "not prepared")):
        for key, what in (("without", "--no-prepare"), ("prepared", f"at random moments within {options.within:g} s")):
            lines.append(row(f"{size} ({name}), {what}", [each for each in result[key] if each["size"] == str(size)]))
    lines.append(row(f"{options.size}, after {READING_S:g} s of reading", result["after reading"]))
    lines.append(row(f"{options.size}, a later picture", result["later pictures"]))
    return "\n".join(lines)


def row(name: str, presses: Sequence[dict[str, Any]]) -> str:
    """One line of the table."""
    cells = [f(press[what] for press in presses) for what in ("first_step_s", "picture_s") for f in (statistics.median, max)]
    return f"{name:44}" + "".join(f"{cell:11.2f}" for cell in cells)


if __name__ == "__main__":
    main()
