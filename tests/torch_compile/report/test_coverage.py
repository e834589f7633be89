"""Reports: ``ov_backend.explain``, coverage of modules, and ``python -m ov_backend report``."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

import ov_backend
from ov_backend.cli import main as cli
from ov_backend.torch_compile.report import coverage as report


def bar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return torch.linalg.inv(x @ x.t()) * b


def example() -> tuple[object, tuple[torch.Tensor, torch.Tensor]]:
    return bar, (torch.randn(4, 4), torch.randn(4, 4).abs())


def test_explain_names_operators_lines_and_breaks() -> None:
    model, inputs = example()
    explained = ov_backend.explain(model, *inputs)
    assert len(explained.graphs) == 2
    first, second = explained.graphs
    assert (first.percent, first.unsupported) == (100.0, ())
    *check, inverse = sorted(second.unsupported, key=lambda each: each.operator)
    assert "linalg_inv" in inverse.operator
    assert (inverse.count, inverse.reason) == (1, "OpenVINO has no conversion for it")
    assert "test_coverage.py" in inverse.lines[0]
    assert "torch.linalg.inv(x @ x.t())" in inverse.lines[0]
    assert [each.operator for each in check] in ([], ["aten._linalg_check_errors.default"]), "torch 2.1 does not trace it"
    assert [part.where for part in second.parts] == ["OpenVINO", "PyTorch", "OpenVINO"]
    assert second.flops == 2 * 4 * 4 * 4, "one product of 4 x 4 matrices"
    (graph_break,) = explained.breaks
    assert "if b.sum() < 0" in graph_break


def test_coverage_of_a_whole_module() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
    with torch.no_grad():
        explained = report.of_module("net", net, torch.zeros(1, 3, 10, 10))
    assert (explained.operators, explained.percent, len(explained.parts)) == (3, 100.0, 1)
    assert explained.flops == 2 * (8 * 8 * 8 * 27 + 4 * 6 * 6 * 72)
    assert explained.weight_bytes == 4 * sum(p.numel() for p in net.parameters())


def test_json_and_svg() -> None:
    model, inputs = example()
    explained = ov_backend.explain(model, *inputs)
    assert json.loads(explained.json())["graphs"][1]["unsupported"][0]["count"] == 1
    boxes = ElementTree.fromstring(explained.svg()).findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == 1 + 2 + sum(len(graph.parts) for graph in explained.graphs)  # background, legend, partitions


def test_the_picture_names_what_stays_in_pytorch_and_where_it_breaks() -> None:
    model, inputs = example()
    texts = [text for text in ElementTree.fromstring(ov_backend.explain(model, *inputs).svg()).itertext() if text.strip()]
    assert any("linalg_inv_ex" in text for text in texts)
    assert any(text.startswith("PyTorch: ") for text in texts)
    assert any(text.startswith("Graph break:") for text in texts)


@pytest.mark.parametrize("as_json", [False, True])
def test_command(as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["report", "tests.torch_compile.report.test_coverage:example", "--svg", str(tmp_path / "p.svg")]
    assert cli.main([*arguments, *(["--json"] if as_json else [])]) == 0
    printed = capsys.readouterr().out
    if as_json:
        explained = json.loads(printed)
        assert (len(explained["graphs"]), len(explained["breaks"])) == (2, 1)
    else:
        assert printed.startswith("2 graphs, 1 graph break, ")
        assert "in PyTorch: 1 x aten.linalg_inv_ex.default: OpenVINO has no conversion for it" in printed
    ElementTree.parse(tmp_path / "p.svg")


def with_keywords() -> tuple[object, dict[str, torch.Tensor]]:
    return (lambda x, scale: (x * scale).softmax(-1)), {"x": torch.randn(3, 4), "scale": torch.ones(4)}


def test_command_takes_keyword_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "tests.torch_compile.report.test_coverage:with_keywords"]) == 0
    assert "2 operators, 100 % in OpenVINO, 1 partition" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["nowhere", "no_such_module:f", f"{__name__}:no_such_name", f"{__name__}:FIVE"])
def test_command_refuses_other_targets(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", target]) == 2
    message = capsys.readouterr().err
    assert "module:callable" in message
    assert len(message.splitlines()) == 1


FIVE = 5


SMALL_UNET = {"block_out_channels": (32, 64), "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
SMALL_UNET |= {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"), "attention_head_dim": (4, 8)}
SMALL_VAE = {"block_out_channels": (32, 32, 32, 32)}


def test_command_on_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    from tests.helpers.random_checkpoint import write_random_checkpoint

    path = write_random_checkpoint(tmp_path / "x.safetensors", unet=SMALL_UNET, vae=SMALL_VAE, text={"num_hidden_layers": 2})
    assert cli.main(["report", str(path), "--size", "64", "--json", "--svg", str(tmp_path / "p.svg")]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert explained["percent"] == 100.0
    assert {graph["name"] for graph in explained["graphs"]} == {"unet", "vae_encode", "vae_decode", "text_encoder"}
    assert all(graph["flops"] and graph["weight_bytes"] for graph in explained["graphs"])
