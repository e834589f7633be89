"""Draws the partitions of a model: a column for each graph, a box for each partition, in the order of execution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from ov_backend.core.amounts import counted, engineering, size_text

_WIDTH, _GAP, _TOP, _BETWEEN = 264, 36, 64, 16
_IN_A_ROW = 4
#: Number of letters of 12 pixels that fit into a box, and into a line of the list at the bottom.
_IN_A_BOX, _IN_A_LINE = 38, 120
_LINE = 16
_FILL = {"OpenVINO": "#1f5fae", "PyTorch": "#b3470f"}


def draw(report: Mapping[str, Any]) -> str:
    """An SVG document of what :meth:`ov_backend.torch_compile.report.coverage.Report.as_dict` returns."""
    graphs, breaks = report["graphs"], report["breaks"]
    y, lines = _TOP, list[str]()
    for start in range(0, len(graphs), _IN_A_ROW):
        row = graphs[start : start + _IN_A_ROW]
        for i, graph in enumerate(row):
            lines += _column(graph, _GAP + i * (_WIDTH + _GAP), y)
        y += max(map(_column_height, row)) + _GAP
    foot = [f"Graph break: {reason}" for reason in breaks]
    lines += [f'<text x="{_GAP}" y="{y + i * _LINE}">{_cut(text, _IN_A_LINE)}</text>' for i, text in enumerate(foot)]
    height = y + len(foot) * _LINE + 8
    columns = min(_IN_A_ROW, max(1, len(graphs)))
    width = max(columns * (_WIDTH + _GAP) + _GAP, 2 * _GAP + 7 * min(_IN_A_LINE, max(map(len, foot), default=0)), 420)
    at_most = "at most " if report["percent"] and report["without_graph"] else ""
    title = f"{at_most}{report['percent']:.4g} % of the operators in OpenVINO, {counted(len(breaks), 'graph break')}"
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' font-family="sans-serif" font-size="12">\n<title>{title}</title>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{_GAP}" y="26" font-size="16" font-weight="bold">{title}</text>\n{_legend()}\n{body}\n</svg>\n'
    )


def _legend() -> str:
    items = []
    for i, (name, colour) in enumerate(_FILL.items()):
        x = _GAP + i * 100
        items.append(f'<rect x="{x}" y="38" width="12" height="12" rx="2" fill="{colour}"/>')
        items.append(f'<text x="{x + 18}" y="48">{name}</text>')
    return "\n".join(items)


def _column(graph: Mapping[str, Any], x: int, y: int) -> Iterator[str]:
    for i, text in enumerate(_head(graph)):
        bold = ' font-weight="bold" font-size="14"' if not i else ""
        yield f'<text x="{x}" y="{y + 22 + i * _LINE}"{bold}>{_cut(text, _IN_A_BOX + 4)}</text>'
    y += _head_height(graph)
    for i, part in enumerate(graph["parts"]):
        height, texts = _height(part), _texts(part)
        if i:
            yield f'<path d="M{x + _WIDTH // 2} {y - _BETWEEN + 2} v10 m-4 -4 l4 4 l4 -4" stroke="#555" fill="none"/>'
        yield f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{height}" rx="5" fill="{_FILL[part["where"]]}"/>'
        first = y + (height - len(texts) * _LINE) // 2 + 12
        for line, text in enumerate(texts):
            bold = ' font-weight="bold"' if not line else ""
            yield f'<text x="{x + 10}" y="{first + line * _LINE}" fill="white"{bold}>{_cut(text, _IN_A_BOX)}</text>'
        y += height + _BETWEEN


def _head(graph: Mapping[str, Any]) -> list[str]:
    amounts = f"{engineering(graph['flops'])}FLOP, weights {size_text(graph['weight_bytes'])}"
    reason = [graph["reason"]] if graph["reason"] else []
    return [graph["label"], f"{counted(graph['operators'], 'operator')}, {graph['percent']:.4g} % in OpenVINO", amounts, *reason]


def _head_height(graph: Mapping[str, Any]) -> int:
    return 22 + len(_head(graph)) * _LINE


def _column_height(graph: Mapping[str, Any]) -> int:
    return _head_height(graph) + sum(_height(part) + _BETWEEN for part in graph["parts"])


def _height(part: Mapping[str, Any]) -> int:
    return _LINE * len(_texts(part)) + 10 + int(16 * math.log10(part["operators"] or 1))


def _texts(part: Mapping[str, Any]) -> Sequence[str]:
    """The lines of a box: place and number of operators, in PyTorch also their names, and amounts."""
    amounts = f"{engineering(part['flops'])}FLOP, {size_text(part['bytes'])}"
    names = [name.removeprefix("aten.").removesuffix(".default") for name in part["names"]]
    listed = [", ".join(names)] if part["where"] == "PyTorch" else []
    return [f"{part['where']}: {counted(part['operators'], 'operator')}", *listed, amounts]


def _cut(text: str, letters: int) -> str:
    return escape(text if len(text) <= letters else text[: letters - 1].rstrip() + "…")
