"""A plot of lines as SVG: the same numbers give the same text, so that a plot can be compared with what it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Readable on white and on black.
INK = "#7d828c"
WIDTH, HEIGHT = 840, 420
LEFT, RIGHT, TOP, BOTTOM = 46, 590, 44, 370
#: Pixels between the names of two lines.
GAP = 17


@dataclass(frozen=True)
class Line:
    """A line of a plot.

    Attributes:
        name: at its end.
        colour: as "#e8681a".
        points: each x, from 1 on, with its y, from 0 on.
        is_bold: it is drawn above the others.
    """

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    is_bold: bool = False


def plot(title: str, ticks: Sequence[str], lines: Sequence[Line]) -> str:
    """The plot; the n-th tick is the name of x = n, and "" leaves it out."""
    top = max(y for line in lines for _, y in line.points) * 1.06
    step = next((step for step in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000) if top / step <= 8), top / 8)

    def x_of(x: float) -> float:
        return round(LEFT + 14 + (RIGHT - LEFT - 28) * (x - 1) / max(1, len(ticks) - 1), 1)

    def y_of(y: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * y / top, 1)

    parts = [_text(LEFT, TOP - 22, title, size=15)]
    for number in range(int(top / step) + 1):
        y = y_of(number * step)
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{INK}" stroke-opacity="0.3"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{number * step:g}", anchor="end"))
    for number, tick in enumerate(ticks, 1):
        parts += [_text(x_of(number), BOTTOM + 20 + 15 * i, part, anchor="middle") for i, part in enumerate(tick.split("\n"))]
    for line in sorted(lines, key=lambda line: line.is_bold):
        path = " ".join(f"{x_of(x)},{y_of(y)}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{4 if line.is_bold else 2}"/>')
        if len(line.points) <= 12:
            parts += [f'<circle cx="{x_of(x)}" cy="{y_of(y)}" r="3.5" fill="{line.colour}"/>' for x, y in line.points]
    ordered = sorted(lines, key=lambda line: -line.points[-1][1])
    for line, y in zip(ordered, _apart([y_of(line.points[-1][1]) for line in ordered])):
        name = line.name + (" (stopped)" if line.points[-1][0] < len(ticks) else "")
        parts.append(_text(RIGHT + 8, y + 4, name, colour=line.colour, weight="bold" if line.is_bold else "normal"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>", ""])


def _apart(places: list[float]) -> list[float]:
    """Places from the top to the bottom, moved down so that they do not overlap, and up again where they leave the plot."""
    for number in range(1, len(places)):
        places[number] = max(places[number], places[number - 1] + GAP)
    limit = float(BOTTOM)
    for number in reversed(range(len(places))):
        places[number] = limit = min(places[number], limit)
        limit -= GAP
    return places


def _text(x: float, y: float, text: str, size: int = 13, anchor: str = "start", colour: str = INK, weight: str = "normal") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
