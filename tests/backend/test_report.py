"""``ov_backend.explain`` and ``python -m ov_backend report``."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ov_backend
from ov_backend import report, report_command
from ov_backend.errors import SettingsError


def bar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return torch.linalg.inv(x @ x.t()) * b


def example() -> tuple[object, tuple[torch.Tensor, torch.Tensor]]:
    return bar, (torch.randn(4, 4), torch.randn(4, 4).abs())


def test_explain_names_operators_lines_and_breaks() -> None:
    model, inputs = example()
    told = ov_backend.explain(model, *inputs)
    assert len(told.graphs) == 2
    first, second = told.graphs
    assert (first.percent, first.unsupported) == (100.0, ())
    (inverse,) = second.unsupported
    assert "linalg_inv" in inverse.operator
    assert (inverse.count, inverse.reason) == (1, "OpenVINO has no conversion for it")
    assert "test_report.py" in inverse.lines[0]
    assert "torch.linalg.inv(x @ x.t())" in inverse.lines[0]
    assert [part.where for part in second.parts] == ["OpenVINO", "PyTorch", "OpenVINO"]
    assert second.flops == 2 * 4 * 4 * 4, "one product of 4 x 4 matrices"
    (stop,) = told.breaks
    assert "if b.sum() < 0" in stop


def test_coverage_of_a_whole_module() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
    with torch.no_grad():
        told = report.of_module("net", net, torch.zeros(1, 3, 10, 10))
    assert (told.operators, told.percent, len(told.parts)) == (3, 100.0, 1)
    assert told.flops == 2 * (8 * 8 * 8 * 27 + 4 * 6 * 6 * 72)
    assert told.weight_bytes == 4 * sum(p.numel() for p in net.parameters())


def test_json_and_svg() -> None:
    model, inputs = example()
    told = ov_backend.explain(model, *inputs)
    assert json.loads(told.json())["graphs"][1]["unsupported"][0]["count"] == 1
    boxes = ElementTree.fromstring(told.svg()).findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == 1 + 2 + sum(len(graph.parts) for graph in told.graphs)  # background, legend, partitions


@pytest.mark.parametrize("as_json", [False, True])
def test_command(as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = SimpleNamespace(target="tests.backend.test_report:example", size=64, json=as_json, svg=tmp_path / "p.svg")
    assert report_command.run(given) == 0  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    assert json.loads(printed)["breaks"] if as_json else "1 graph breaks" in printed
    assert (tmp_path / "p.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("target", ["nowhere", "no_such_module:f", "tests.backend.test_report:no_such_name"])
def test_command_refuses_other_targets(target: str) -> None:
    with pytest.raises(SettingsError, match="module:callable"):
        report_command.of_target(target)
