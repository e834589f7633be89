"""Faults of other backends of this kind, each kept out of ``torch.compile`` by a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ov_backend
from tests.dynamo.conftest import Compile, agree, calls, fallbacks

THREE = """
import torch, ov_backend
torch.manual_seed(0)
def f(a, b, c):
    return (a - b) * 2 + c.exp(), b - a
inputs = [torch.randn(3, 4) for _ in range(3)]
options = {{"precision": "f32", "fallback": "raise", "model_caching": True, "cache_dir": {0!r}}}
g = torch.compile(f, backend="openvino_fx", options=options)
with torch.no_grad():
    for got, want in zip(g(*inputs), f(*inputs)):
        assert torch.allclose(got, want, atol=1e-5), (got, want)
(network,) = ov_backend.stats().values()
print(len(list(__import__("pathlib").Path({0!r}).rglob("*.zip"))) or len(list(__import__("pathlib").Path({0!r}).iterdir())))
"""


def test_trap_03_inputs_keep_their_places_cold_and_warm(tmp_path: Path) -> None:
    counts = [run(THREE.format(str(tmp_path / "store"))) for _ in range(2)]
    assert counts[0] == counts[1]
    assert int(counts[0]) >= 1


def run(code: str, **environment: str) -> str:
    """The last line that a fresh Python prints."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=given, cwd=root, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


def test_trap_04_results_belong_to_the_caller(compiled: Compile) -> None:
    g = compiled(lambda x: (x * 2, x.sum()))
    first = g(torch.ones(4))
    kept = [t.clone() for t in first]
    g(torch.full((4,), 7.0))
    agree(list(first), kept)


def test_trap_05_a_warm_run_has_no_fallback(compiled: Compile, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    for _ in range(2):
        agree(compiled(net, model_caching=True, cache_dir=str(tmp_path))(x), net(x))
        assert calls() == 1
        assert not fallbacks()
        torch._dynamo.reset()
        ov_backend.reset()


def test_trap_06_two_option_sets_interleaved(compiled: Compile) -> None:
    net, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    one = compiled(net, disabled_ops=["aten.addmm"], fallback="pytorch")
    two = compiled(other, config={"INFERENCE_NUM_THREADS": 1})
    x = torch.randn(2, 4)
    for _ in range(3):
        agree(one(x), net(x))
        agree(two(x), other(x))
    stats = list(ov_backend.stats().values())
    assert sorted(network["calls"] for network in stats) in ([0, 3], [3, 3])


@pytest.mark.parametrize("device", ["CPU", "AUTO", "AUTO:CPU", "HETERO:CPU"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_trap_07_dtype_and_device(compiled: Compile, dtype: torch.dtype, device: str) -> None:
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    expected = net(x)  # in f32: torch 2.1's CPU has no f16 products
    result = compiled(net.to(dtype), device=device)(x.to(dtype))
    assert result.dtype is dtype
    agree(result.float(), expected, 2e-2)
    assert calls() == 1
    assert not fallbacks()


def test_trap_09_sizes_to_and_fro_compile_once_each(compiled: Compile) -> None:
    net = torch.nn.Conv2d(3, 4, 3)
    g = compiled(net)
    for size in (8, 10, 8, 10, 8):
        x = torch.randn(1, 3, size, size)
        agree(g(x), net(x))
    assert sum(network["compiles"] for network in ov_backend.stats().values()) == 2


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_trap_10_twenty_sizes_all_in_openvino(compiled: Compile, dynamic: bool | None) -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.SiLU())
    g = compiled(net, dynamic=dynamic)
    for size in range(8, 28):
        x = torch.randn(1, 3, size, size + 2)
        agree(g(x), net(x))
    assert calls() == 20
    assert not fallbacks()


def test_trap_23_arguments_and_edges_are_part_of_the_key(tmp_path: Path) -> None:
    code = """
import torch, ov_backend
fs = [lambda a, b: a * 2, lambda a, b: a * 3, lambda a, b: a - b, lambda a, b: b - a]
fs += [lambda a, b: a.sum(0), lambda a, b: a.sum(1)]
options = {"fallback": "raise", "precision": "f32", "model_caching": True, "cache_dir": %r}
a, b = torch.randn(3, 3), torch.randn(3, 3)
for f in fs:
    torch._dynamo.reset()
    g = torch.compile(f, backend="openvino_fx", options=options)
    with torch.no_grad():
        assert torch.allclose(g(a, b), f(a, b), atol=1e-5)
print("done")
"""
    for seed in ("1", "2"):
        assert run(code % str(tmp_path), PYTHONHASHSEED=seed) == "done"
