"""Two plots of a run: seconds from the start to each picture, and memory against the number of resolutions used.

    python -m benchmarks.peers.plots --json-in out/peers.json --out docs/images
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from benchmarks.peers.table import OURS, PICTURES, pictures

#: Short names, and colours that are readable on white and on black.
STYLES = {
    "eager": ("PyTorch f32", "#8b8f98"),
    "eager_bf16": ("PyTorch bf16", "#a9763f"),
    "inductor": ("inductor bf16", "#b0579b"),
    "openvino": ("OpenVINO's own backend", "#2f9d8f"),
    "optimum": ("optimum-intel", "#4a86d8"),
    "genai": ("openvino-genai", "#8a72dc"),
    "onnx": ("ONNX Runtime f32", "#c9544f"),
    "cpp": ("stable-diffusion.cpp f16", "#6f9a3c"),
    OURS: ("ov_backend", "#e8681a"),
}
INK = "#7d828c"
Series = dict[str, tuple[list[float], list[float]]]


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write peers.svg and memory.svg, which docs/peers.md and docs/measurements.md show, into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    size = results["conditions"]["size"]
    square, wide = f"{size}x{size}", f"{size * 3 // 2}x{size}"
    names = (square, f"{square}\nonce more", wide, f"{square}\nagain", "second\ncheckpoint", "LoRA")
    times: Series = {}
    memory: Series = {}
    for peer, figures in results["peers"].items():
        drawn = pictures(figures)
        reached = [(number, drawn[label]["at"]) for number, label in enumerate(PICTURES, 1) if label in drawn]
        lines = [line for line in figures["lines"] if line["key"] == "picture" and line["phase"] == "new"]
        used = [(number, line["rss"] / 1024) for number, line in enumerate(lines, 1)]
        for series, points in ((times, reached), (memory, used)):
            if points:
                series[peer] = ([x for x, _ in points], [y for _, y in points])
    _figure(times, "seconds from the start of the process to the picture", names, folder / "peers")
    counts = [str(number) for number in range(1, 1 + max((len(xs) for xs, _ in memory.values()), default=1))]
    _figure(memory, "GiB resident, by the number of resolutions used", counts, folder / "memory")


def _figure(series: Series, title: str, names: Any, path: Path) -> None:
    with pyplot.rc_context({"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(8, 4.4), layout="constrained")
        for peer, (xs, ys) in series.items():
            ours = peer == OURS
            style = {"color": STYLES[peer][1], "linewidth": 3 if ours else 1.6, "zorder": 3 if ours else 2}
            axes.plot(xs, ys, marker="o", markersize=4, **style)
        axes.set_ylim(0, 1.06 * max((max(ys) for _, ys in series.values()), default=1.0))
        axes.set_xlim(0.8, len(names) + 0.15)
        axes.set_xticks(range(1, len(names) + 1), names)
        axes.set_title(title, loc="left", fontsize=11, color=INK)
        axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        _label(axes, series, len(names))
        figure.savefig(path.with_suffix(".svg"), transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _label(axes: Any, series: Series, last: int) -> None:
    """Label each line at its end, moved up where labels would overlap; peers that were stopped are marked."""
    gap, floor = axes.get_ylim()[1] * 0.055, -1e9
    for peer, (xs, ys) in sorted(series.items(), key=lambda item: item[1][1][-1]):
        name, colour = STYLES[peer]
        floor = max(ys[-1], floor + gap)
        short = xs[-1] < last
        axes.annotate(
            f"{name} (stopped)" if short else name,
            xy=(xs[-1], ys[-1]),
            xytext=(last + 0.2, floor),
            textcoords="data",
            va="center",
            color=colour,
            fontweight="bold" if peer == OURS else "normal",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.5, "linewidth": 0.7, "linestyle": ":"} if short else None,
        )


def main() -> None:
    """Draw the plots of an earlier run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json-in", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    options = parser.parse_args()
    draw(json.loads(options.json_in.read_text(encoding="utf-8")), options.out)


if __name__ == "__main__":
    main()
