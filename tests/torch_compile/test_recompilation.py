"""What compiles anew, and what does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

import ov_backend
from ov_backend.model import compiler
from tests.helpers.alone import alone
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks, total


def compiles() -> int:
    return total("compiles")


def test_the_second_round_recompiles_nothing(compiled: Compile) -> None:
    net = torch.nn.Conv2d(3, 4, 3)
    g = compiled(net)
    inputs = [torch.randn(b, 3, 8, 8) for b in (1, 4, 8)]
    for x in inputs:
        agree(g(x), net(x))
    assert compiles() == 3
    for x in inputs:
        agree(g(x), net(x))
    assert compiles() == 3


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="since torch 2.6")
@pytest.mark.parametrize("dynamic", [False, True])
def test_fail_on_recompile_passes_on_the_second_round(compiled: Compile, dynamic: bool) -> None:
    net = torch.nn.Conv2d(3, 4, 3)
    g = compiled(net, dynamic=dynamic)
    inputs = [torch.randn(2, 3, size, size + 1) for size in (8, 10, 12)]
    for x in inputs:
        agree(g(x), net(x))
    before = compiles()
    with torch.compiler.set_stance("fail_on_recompile"):
        for x in inputs:
            agree(g(x), net(x))
        if dynamic:
            x = torch.randn(2, 3, 20, 21)  # a size never seen: Dynamo's graph serves it, and so does OpenVINO's
            agree(g(x), net(x))
    assert compiles() == before


def test_mark_dynamic_is_one_dynamo_graph(compiled: Compile) -> None:
    net = torch.nn.Linear(4, 3)
    g = compiled(net, dynamic=None)
    for batch in (2, 3, 5, 9):
        x = torch.randn(batch, 4)
        torch._dynamo.mark_dynamic(x, 0)
        agree(g(x), net(x))
    assert len({name.removesuffix(" dynamic") for name in ov_backend.stats()}) == 1
    assert calls() == 4


def test_another_dtype_or_branch_is_another_graph(compiled: Compile) -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x * 2 if flag else x + 1

    g = compiled(f)
    for x in (torch.randn(3), torch.randn(3).to(torch.bfloat16)):
        for flag in (True, False):
            agree(g(x, flag), f(x, flag), 1e-2)
    assert len(ov_backend.stats()) == 4


@torch.no_grad()
def conversions(folder: Path, dynamic_shapes: bool = False) -> tuple[int, int]:
    """Compile a small network with a store; the number of conversions, and of compiles."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    options = {"precision": "f32", "fallback": "raise", "model_caching": True, "cache_dir": str(folder)}
    options["dynamic_shapes"] = dynamic_shapes
    with mock.patch.object(compiler, "convert", wraps=compiler.convert) as convert:
        g = torch.compile(net, backend="openvino_fx", options=options, dynamic=dynamic_shapes)
        for batch in (3, 5) if dynamic_shapes else (3,):
            x = torch.randn(batch, 4)
            agree(g(x), net(x))
    return convert.call_count, compiles()


@pytest.mark.parametrize("dynamic_shapes", [False, True], ids=["static", "dynamic_shapes"])
def test_stored_graphs_serve_the_next_process_also_from_a_copied_folder(tmp_path: Path, dynamic_shapes: bool) -> None:
    assert conversions(tmp_path / "here", dynamic_shapes) == (1, 1)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    assert alone(conversions, tmp_path / "there", dynamic_shapes) == (0, 1)


@pytest.mark.skipif(torch.__version__ < "2.5", reason="Dynamo makes a graph for each float")
def test_a_number_that_is_another_at_every_write_does_not_compile_for_ever(compiled: Compile) -> None:
    """As the learning rate of a compiled optimizer step under a scheduler."""

    def decay(weight: torch.Tensor, rate: float) -> None:
        weight.mul_(rate)

    g = compiled(decay, dynamic=None, fallback="inductor")
    actual, expected = torch.ones(3), torch.ones(3)
    for step in range(14):
        for function, weight in ((g, actual), (decay, expected)):
            function(weight, 1.5 - step / 10)
        agree(actual, expected)
    before, frames = compiles(), torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert before <= 9
    for step in range(14, 20):
        g(actual, 1.5 - step / 10)
    assert compiles() == before
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == frames, "inductor takes the number as an input"
    assert list(fallbacks()) == ["its arguments had 8 different values beside tensors, and each is another graph"]
