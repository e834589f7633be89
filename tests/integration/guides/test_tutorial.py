"""The examples of PyTorch's own torch.compile tutorial, with this backend."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

import ov_backend
from tests.helpers.densenet import DenseNet
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks


def foo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


class MyModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(100, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(self.lin(x))


def f1(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.sum() < 0:
        return -y
    return y


def f2(x: torch.Tensor, y: int) -> torch.Tensor:
    return x + y


def bar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_foo(compiled: Compile) -> None:
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    agree(compiled(foo)(x, y), foo(x, y))
    assert calls() == 1


def test_foo_as_a_decorator() -> None:
    @torch.compile(backend="openvino_fx", options={"fallback": "raise", "precision": "f32"})
    def decorated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return foo(x, y)

    x, y = torch.randn(10, 10), torch.randn(10, 10)
    agree(decorated(x, y), foo(x, y))
    assert calls() == 1


@pytest.mark.parametrize("gradients", [False, True])
def test_my_module(compiled: Compile, gradients: bool) -> None:
    module, x = MyModule(), torch.randn(10, 100)
    with torch.set_grad_enabled(gradients):
        result = compiled(module)(x)
        agree(result, module(x))
        assert result.requires_grad is gradients
    assert calls() == 1


def test_f1_data_dependent_control_flow(compiled: Compile) -> None:
    x, y = torch.randn(5, 5).abs(), torch.randn(5, 5)
    g = compiled(f1)
    agree(g(x, y), f1(x, y))
    agree(g(-x, y), f1(-x, y))


def test_f2_a_number_among_the_inputs(compiled: Compile) -> None:
    x = torch.randn(5, 5)
    g = compiled(f2)
    for y in (3, 4):
        agree(g(x, y), f2(x, y))


def test_f3_a_function_that_is_not_pytorchs(compiled: Compile) -> None:
    fft = pytest.importorskip("scipy.fft")

    def f3(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x = torch.from_numpy(fft.dct(x.numpy()))
        return x * 2

    x = torch.randn(5, 5)
    agree(compiled(f3)(x), f3(x))
    assert calls() >= 2


def test_bar_three_graphs(compiled: Compile) -> None:
    g = compiled(bar)
    a, b = torch.randn(10), torch.randn(10).abs()
    agree(g(a, b), bar(a, b))
    agree(g(a, -b), bar(a, -b))
    assert len(ov_backend.stats()) == 3
    assert not fallbacks()


def test_dynamo_explain_counts_the_graph_breaks_of_bar() -> None:
    explanation = torch._dynamo.explain(bar)(torch.randn(10), torch.randn(10))
    assert (explanation.graph_count, explanation.graph_break_count) == (2, 1)


def test_fullgraph_raises_on_bar_and_runs_foo(compiled: Compile) -> None:
    with pytest.raises(Exception, match=r"[Dd]ata.dependent|generic_jump|[Dd]ynamic control flow"):
        compiled(bar, fullgraph=True)(torch.randn(10), torch.randn(10))
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    agree(compiled(foo, fullgraph=True)(x, y), foo(x, y))


def test_densenet121_inference(compiled: Compile) -> None:
    torch.manual_seed(1)
    model = DenseNet(blocks=(2, 3, 4, 2)).eval()  # DenseNet-121 with a quarter of its layers; benchmarks has all of them
    x = torch.randn(2, 3, 64, 64)
    agree(compiled(model, fullgraph=True)(x), model(x))
    assert calls() == 1


def test_mode_is_taken_and_changes_nothing(compiled: Compile) -> None:
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    agree(torch.compile(foo, backend="openvino_fx", mode="reduce-overhead")(x, y), foo(x, y), 1e-2)
    assert calls() == 1


#: In a process that has not imported this package: what one compile by the name of its backend calls, and replaces.
BY_NAME = """
import json, sys, types, torch, torch._dynamo, openvino
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))  # Dynamo's own replacements come with its first call
kinds = (types.FunctionType, types.BuiltinFunctionType, type)
modules = [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] in ("torch", "openvino")]
before = [(module, name, value) for module in modules for name, value in vars(module).items() if isinstance(value, kinds)]
if sys.argv[1] == "import":
    import ov_backend
assert ("ov_backend" in sys.modules) is (sys.argv[1] == "import")
with torch.no_grad():
    torch.compile(lambda x: x.sin() * 2, backend="openvino_fx", options={"fallback": "raise"})(torch.ones(3))
import ov_backend
replaced = [f"{module.__name__}.{name}" for module, name, value in before if getattr(module, name) is not value]
calls = [network["calls"] for network in ov_backend.stats().values()]
print(json.dumps({"compared": len(before), "replaced": replaced, "calls": calls}))
"""


@pytest.fixture(scope="module")
def compiled_by_name() -> dict[str, Any]:
    """What ``BY_NAME`` prints; it imports the package where this is not installed, so that nothing else can find it."""
    how = "entry point" if installed() else "import"
    command = [sys.executable, "-c", BY_NAME, how]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def installed() -> bool:
    return any(entry.name == "openvino_fx" for entry in entry_points(group="torch_dynamo_backends"))


def test_found_by_its_entry_point_without_an_import(compiled_by_name: dict[str, Any]) -> None:
    if not installed():
        pytest.skip("ov-backend is not installed here, only on the path")
    assert compiled_by_name["calls"] == [1]


def test_nothing_in_pytorch_or_openvino_is_replaced(compiled_by_name: dict[str, Any]) -> None:
    assert compiled_by_name["compared"] > 10000
    assert compiled_by_name["replaced"] == []


def test_listed_among_the_backends() -> None:
    listed = torch.compiler.list_backends()
    assert "openvino_fx" in listed
    assert "openvino_ts" in listed
