"""Fills the marked tables, figures and plots of README.md and docs/ from the files of runs: ``make figures``.

A mark names a function of :data:`TABLES` and what it takes, mostly the machines whose runs it shows::

    <!-- figures: unet amd-bf16-2 -->
    (the table, and a line with machine, versions, commit and date)
    <!-- end -->

In a sentence, ``<!-- figures: value batch-amd-bf16-2 read_ms -->`` stands for one figure of one file, and ``machine`` in place of
``value`` for what it was measured on; such a mark must not begin a line, where it would end the paragraph. With ``figures off:``
a mark waits for its runs, and what stands in it is left alone.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.command import write_line
from benchmarks.plot import Line, plot
from benchmarks.results import RESULTS, ROOT, Run
from benchmarks.tables import PEERS, TABLES, at, short

MARK = re.compile(r"<!-- figures: ([^>]+?) -->(.*?)<!-- end -->", re.DOTALL)
#: The texts of the plots, for those who cannot see them.
ALTERNATIVES = {
    "peers": "Seconds from the start of the process to each picture",
    "memory": "GiB resident by the number of resolutions used, beside others",
    "lifetimes": "GiB resident over a hundred calls of twelve sizes, of which three fit in memory at once",
}
#: What stands behind a figure, by the last part of its name.
UNIT_TEXTS = {"s": " s", "ms": " ms", "mib": " MiB", "gib": " GiB", "db": " dB", "percent": " %"}


class Files:
    """The runs of a folder, and which of them were used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used: dict[str, Run] = {}

    def run(self, name: str) -> Run | None:
        """A run that is fit for a document; None where there is no such file.

        Raises:
            ValueError: the file is not of this name, or of small networks, or of sources that no commit has.
        """
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        run = Run.read(path)
        for is_wrong, fault in (
            (run.name != name, f"is the run {run.name}"),
            ("--tiny" in run.arguments, "is a run of small networks"),
            (run.commit.endswith("-dirty"), "was measured with changes that are in no commit"),
        ):
            if is_wrong:
                raise ValueError(f"{path.name} {fault}")
        self.used[name] = run
        return run

    def figures(self, name: str) -> dict[str, Any]:
        """The figures of a run; empty where there is no such file."""
        run = self.run(name)
        return run.figures if run is not None else {}

    def caption(self) -> str:
        """Commands, machines and their versions, load, date and commit of what was used.

        Raises:
            ValueError: the runs are of different commits.
        """
        runs = self.used.values()
        if not runs:
            return "Not measured yet."
        if len({run.commit for run in runs}) > 1:
            raise ValueError(f"the runs {', '.join(self.used)} are of different commits")
        loads = [load for run in runs for load in run.load]
        versions = dict.fromkeys(_versions(run) for run in runs)
        parts = (
            _each(f"`{' '.join(['python -m benchmarks', *_command(run)])}`" for run in runs),
            *(f"{_each(run.machine.text for run in runs if _versions(run) == each)} ({each})" for each in versions),
            f"load {min(loads):.1f} to {max(loads):.1f}",
            f"{_each(run.date for run in runs)}, commit {next(iter(runs)).commit[:9]}",
        )
        return wrapped(f"{'; '.join(parts)}.")


def _each(texts: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _versions(run: Run) -> str:
    return f"torch {run.versions.get('torch')}, OpenVINO {run.versions.get('openvino')}"


def _command(run: Run) -> list[str]:
    """The arguments that repeat a run."""
    arguments = list(run.arguments)
    for files in {"--out", "--grid"} & {*arguments}:
        del arguments[(place := arguments.index(files)) : place + 2]
    return [run.benchmark.partition("-")[0], *arguments]


def wrapped(text: str) -> str:
    """A paragraph whose spans of code are on one line each."""
    joined = re.sub(r"`[^`]+`", lambda span: span.group().replace(" ", "\0"), text)
    return textwrap.fill(joined, 138, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def plot_of(files: Files, name: str, slug: str) -> str:
    """The SVG of one of the plots; empty where there is no run, or none of this part."""
    run = files.run(f"{'lifetimes' if name == 'lifetimes' else 'peers'}-{slug}")
    if run is None:
        return ""
    if name == "lifetimes":
        bounded = run.figures.get("bounded")
        if bounded is None:
            return ""
        points = [(number, mib / 1024) for number, mib in enumerate(bounded["series_mib"], 1)]
        alone = [(number, bounded["before_mib"] / 1024) for number, _ in points]
        lines = [Line("ours", PEERS["ours"][1], points, True), Line("PyTorch alone", PEERS["eager"][1], alone)]
        ticks = [str(number) if number in (1, len(points)) or number % 20 == 0 else "" for number, _ in points]
        return plot(f"GiB resident by the call; {run.machine.text}", ticks, lines)
    size, wide = (run.figures["conditions"][key] for key in ("size", "wide"))
    labels = {
        "first": size, "again": f"{size}\nonce more", "wide": wide, "back": f"{size}\nagain",
        "second checkpoint": "second\ncheckpoint", "LoRA": "LoRA",
    }  # fmt: skip
    lines = []
    for peer, each in run.figures["peers"].items():
        reached = [(number, each["pictures_at_s"].get(label)) for number, label in enumerate(labels, 1)]
        used = list(enumerate(each["resident_gib"], 1))
        if points := [(x, y) for x, y in (reached if name == "peers" else used) if y is not None]:
            lines.append(Line(PEERS[peer][0].strip("*"), PEERS[peer][1], points, peer == "ours"))
    if name == "peers":
        title, ticks = "seconds from the start of the process to the picture", list(labels.values())
    else:
        title = "GiB resident by the number of sizes used"
        ticks = [str(x) for x in range(1, 1 + max(len(line.points) for line in lines))]
    return plot(f"{title}; {run.machine.text}", ticks, lines)


def value(files: Files, name: str, path: str) -> str:
    """One figure of one file, with its unit."""
    found = at(files.figures(name), path)
    return short(found) + (UNIT_TEXTS.get(path.rpartition("_")[2], "") if found is not None else "")


def content(spec: str, files: Files) -> tuple[str, str]:
    """What stands in a mark, and the text of its plot or "".

    Raises:
        ValueError: there is no such table.
    """
    name, *arguments = spec.split()
    if name == "value":
        return value(files, arguments[0], " ".join(arguments[1:])), ""
    if name == "machine":
        run = files.run(arguments[0])
        return run.machine.text if run is not None else "a machine that is not known yet", ""
    if name == "plot":
        drawn = plot_of(files, *arguments)
        return f"\n![{ALTERNATIVES[arguments[0]]}](images/{arguments[0]}.svg)\n\n{files.caption()}\n", drawn
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there are {', '.join(TABLES)}, machine, plot and value")
    head, *rows = TABLES[name](files.figures, *arguments)
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n{}\n\n{}\n".format("\n".join(lines), files.caption()), ""


def made(root: Path = ROOT, results: Path = RESULTS) -> dict[Path, str]:
    """The pages, and the plots that they show, as the files of runs have them.

    Raises:
        ValueError: a mark or a file is wrong.
    """
    texts: dict[Path, str] = {}
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):

        def fill(mark: re.Match[str], page: Path = page) -> str:
            files = Files(results)
            try:
                text, drawn = content(mark.group(1), files)
                files.caption()
            except (ValueError, TypeError, KeyError, IndexError) as error:
                raise ValueError(f"{page.name}, figures: {mark.group(1)}: {error}") from error
            if drawn:
                texts[root / "docs" / "images" / f"{mark.group(1).split()[1]}.svg"] = drawn
            return f"<!-- figures: {mark.group(1)} -->{text}<!-- end -->"

        texts[page] = MARK.sub(fill, page.read_text(encoding="utf-8"))
    return texts


def main() -> None:
    """Write what differs."""
    try:
        texts = made()
    except ValueError as error:
        sys.exit(str(error))
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            write_line(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
