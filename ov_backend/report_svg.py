"""The partitions of a model as a picture: one column for each graph, one box for each partition, in the order they run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_WIDTH, _GAP, _TOP = 220, 40, 92
_FILL = {"OpenVINO": "#2f7ed8", "PyTorch": "#e8743b"}


def draw(report: Mapping[str, Any]) -> str:
    """An SVG document.

    Args:
        report: what :meth:`ov_backend.report.Report.as_dict` gives.
    """
    columns = [list(_column(graph, i)) for i, graph in enumerate(report["graphs"])]
    height = max([_TOP + sum(_height(part) + 14 for part in graph["parts"]) for graph in report["graphs"]], default=_TOP) + 20
    width = max(1, len(columns)) * (_WIDTH + _GAP) + _GAP
    title = f"{report['percent']:.4g} % of the operators in OpenVINO, {len(report['breaks'])} graph breaks"
    body = "\n".join(line for column in columns for line in column)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{_GAP}" y="24" font-size="15">{escape(title)}</text>\n{_legend()}\n{body}\n</svg>\n'
    )


def _legend() -> str:
    items = []
    for i, (name, colour) in enumerate(_FILL.items()):
        x = _GAP + i * 100
        items.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="46">{name}</text>')
    return "\n".join(items)


def _height(part: Mapping[str, Any]) -> int:
    return 34 + int(16 * math.log10(1 + part["operators"]))


def _column(graph: Mapping[str, Any], number: int) -> Iterator[str]:
    x, y = _GAP + number * (_WIDTH + _GAP), _TOP
    yield f'<text x="{x}" y="{y - 22}" font-weight="bold">{escape(graph["name"])}</text>'
    yield f'<text x="{x}" y="{y - 7}">{graph["operators"]} operators, {graph["percent"]:.4g} % in OpenVINO</text>'
    for i, part in enumerate(graph["parts"]):
        height = _height(part)
        if i:
            yield f'<path d="M{x + _WIDTH // 2} {y - 14} v9 m-4 -4 l4 5 l4 -5" stroke="#555" fill="none"/>'
        yield f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{height}" rx="5" fill="{_FILL[part["where"]]}"/>'
        middle = y + height // 2
        yield f'<text x="{x + 10}" y="{middle - 2}" fill="white">{part["where"]}: {part["operators"]} operators</text>'
        amounts = f"{part['flops'] / 1e9:.3g} GFLOP, {part['bytes'] / 1e6:.3g} MB"
        yield f'<text x="{x + 10}" y="{middle + 13}" fill="white">{amounts}</text>'
        y += height + 14
