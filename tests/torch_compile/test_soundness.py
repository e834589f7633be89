"""torch.compile: threads, copies of values, slices, gradients of gradients, literals, masks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend

OPTIONS: dict[str, Any] = {"device": "CPU", "precision": "f32", "fallback": "raise"}


def compiled(function: Any, **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="openvino_fx", options={**OPTIONS, **options})


class Layer(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((64,), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * self.weight


def test_two_instances_in_two_threads_answer_with_their_own_weights() -> None:
    modules = [Layer(1.0), Layer(2.0)]
    functions = [compiled(module) for module in modules]
    x = torch.randn(16, 64)
    expected = [module(x) for module in modules]
    for function in functions:
        function(x)
    wrong: list[int] = []

    def run(number: int) -> None:
        with torch.no_grad():
            for _ in range(60):
                if not torch.allclose(functions[number](x), expected[number], atol=1e-4):
                    wrong.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_gradient_of_a_gradient_is_pytorch_s() -> None:
    function = compiled(lambda x: (x**3).sum())
    x = torch.ones(3, requires_grad=True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
        gradient.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 6.0))


def test_a_penalty_on_a_gradient_beside_another_loss_reaches_the_weights() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    function, data = compiled(module), torch.randn(3, 8)

    def gradients(call: Any) -> list[torch.Tensor | None]:
        module.zero_grad()
        with torch.enable_grad():
            x = data.clone().requires_grad_()
            y = call(x)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (y.mean() + 10 * (gradient.norm(dim=1) - 1).pow(2).mean()).backward()
        return [x.grad, *(None if weight.grad is None else weight.grad.clone() for weight in module.parameters())]

    for ours, pytorch_s in zip(gradients(function), gradients(module)):
        torch.testing.assert_close(ours, pytorch_s)


def test_a_gradient_of_a_gradient_with_an_input_that_depends_on_another() -> None:
    def loss(function: Any) -> torch.Tensor:
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x, x * x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()
        assert x.grad is not None
        return x.grad

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * x * y + y.sin()

    with torch.enable_grad():
        torch.testing.assert_close(loss(compiled(function)), loss(function))


def test_gradients_that_a_graph_asks_for_itself_are_there_under_no_grad() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x * 2

    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert compiled(function, fallback="pytorch")(x).requires_grad == function(x).requires_grad


def test_a_graph_that_switches_gradients_on_for_what_asks_for_none_runs_in_openvino() -> None:
    layer = torch.nn.Linear(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.distributions.Categorical(logits=layer(x)).entropy()

    with torch.no_grad():
        torch.testing.assert_close(compiled(function, fallback="raise")(torch.ones(2, 3)), function(torch.ones(2, 3)))


def test_slices_of_one_tensor_share_a_compile() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    function = compiled(module, aot_autograd=True)
    data = torch.randn(48, 8)
    with torch.enable_grad():
        for start in range(0, 48, 8):
            function(data[start : start + 8]).sum().backward()
    stats = ov_backend.stats()
    assert sum(values["captures"] for values in stats.values()) <= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_literals_of_half_precision_are_the_graph_s_own(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x, torch.tensor(-1, dtype=x.dtype))

    x, mask = torch.randn(64, 64).to(dtype), torch.rand(64, 64) > 0.5
    fast = compiled(function)
    for _ in range(3):
        torch.testing.assert_close(fast(x, mask), function(x, mask))
        [torch.full((100,), 7.0) for _ in range(50)]


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_safe_softmax"), reason="this torch returns NaN itself")
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_attends_to_nothing_is_zero(kind: str) -> None:
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    keeps = torch.ones(1, 2, 4, 4, dtype=torch.bool)
    keeps[:, :, 1] = False
    mask = keeps if kind == "bool" else torch.zeros(1, 2, 4, 4).masked_fill(~keeps, float("-inf"))
    function = torch.nn.functional.scaled_dot_product_attention
    expected = function(q, k, v, attn_mask=mask)
    assert not expected[:, :, 1].any()
    torch.testing.assert_close(compiled(lambda *args: function(*args))(q, k, v, mask), expected, rtol=1e-3, atol=1e-4)


def test_another_program_s_compiled_form_is_not_taken(tmp_path: Any) -> None:
    options = {"blob_cache": "on", "model_caching": True, "cache_dir": str(tmp_path)}
    x = torch.ones(3)
    assert torch.equal(compiled(lambda x: x * 2 + 1, **options)(x), x * 2 + 1)
    torch._dynamo.reset()
    ov_backend.reset()
    from ov_backend.torch_compile import backend

    backend._numbers = iter(range(1000))  # a second process counts its graphs from the start
    assert torch.equal(compiled(lambda x: x * 3 - 7, **options)(x), x * 3 - 7)
