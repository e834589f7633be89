"""Transforms of torch.func and other compilers take an accelerated module as they take the module itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ov_backend import Settings, accelerate
from ov_backend.core.patching import TELLS
from ov_backend.pipelines.accelerate import Accelerated
from ov_backend.pipelines.compiled import BYPASSED

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@pytest.fixture
def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return Two().eval().requires_grad_(False)


@pytest.fixture
def accelerated(strict: Strict, module: torch.nn.Module) -> Iterator[Accelerated]:
    with accelerate({"net": module}, strict(fallback="pytorch")) as accelerated:
        module(X)
        yield accelerated


def _ensemble(module: torch.nn.Module) -> torch.Tensor:
    weights = {name: torch.stack([weight, weight * 2]) for name, weight in module.named_parameters()}
    return torch.vmap(lambda each: torch.func.functional_call(module, each, (X,)))(weights)


TRANSFORMS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "functionalize": lambda module: torch.func.functionalize(module)(X),
    "vmap": lambda module: torch.vmap(module)(X),
    "vmap over weights": _ensemble,
    "grad": lambda module: torch.func.grad(lambda x: module(x).sum())(X),
    "torch.jit.trace": lambda module: torch.jit.trace(module, X, check_trace=False)(X * 3),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_a_transform_gives_what_it_gives_for_the_module_itself(
    module: torch.nn.Module, transform: Callable[[torch.nn.Module], Any], strict: Strict
) -> None:
    expected = transform(module)
    with accelerate({"net": module}, strict(fallback="pytorch")) as accelerated:
        module(X)
        torch.testing.assert_close(transform(module), expected)
        reasons = accelerated.stats()["net"]["fallbacks"]
    assert any("torch.func's " in reason or "torch.jit.trace" in reason for reason in reasons)


def _exported(module: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    if torch.__version__.startswith("2.1."):
        pytest.skip("this torch.export reads the source of the forward")
    return torch.export.export(module, (X,)).module()


COMPILERS: dict[str, Callable[[torch.nn.Module], Callable[[torch.Tensor], torch.Tensor]]] = {
    "torch.export": _exported,
    "torch.compile": lambda module: torch.compile(module, backend="eager", fullgraph=True),
    "torch.compile around it": lambda module: torch.compile(torch.nn.Sequential(module), backend="eager", fullgraph=True),
}


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS.keys())
def test_another_compiler_compiles_what_stood_there_before(
    accelerated: Accelerated, module: torch.nn.Module, compiler: Callable[[torch.nn.Module], Any]
) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        expected = module(X)
        calls = accelerated.stats()["net"]["calls"]
        torch.testing.assert_close(compiler(module)(X), expected, rtol=1e-3, atol=1e-5)
    assert accelerated.stats()["net"]["calls"] == calls
    said = accelerated.stats()["net"]["corrections"]
    assert list(said) == ([BYPASSED] if compiler is not _exported and TELLS else [])


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.after = inner, torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.inner(x))


def _never(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    raise AssertionError("Dynamo compiles it")


def _by_method(module: torch.nn.Module) -> torch.nn.Module:
    module.compile(backend=_never)
    return module


def _its_forward(module: torch.nn.Module) -> torch.nn.Module:
    module.forward = torch.compile(module.forward, backend=_never)  # type: ignore[method-assign]
    return module


COMPILED: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "torch.compile(module)": lambda module: torch.compile(module, backend=_never),
    "module.compile()": _by_method,
    "its forward": _its_forward,
    "torch.compile(part)": lambda module: Outer(torch.compile(module, backend=_never)),
    "part.compile()": lambda module: Outer(_by_method(module)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_what_was_compiled_before_runs_whole_in_openvino(module: torch.nn.Module, name: str, strict: Strict) -> None:
    if name.endswith("()") and not hasattr(module, "_compiled_call_impl"):
        pytest.skip("a module of this torch has no compile()")
    torch._dynamo.reset()
    expected = module(X)
    compiled = COMPILED[name](module).eval().requires_grad_(False)
    before, expected = vars(compiled).copy(), compiled.after(expected) if isinstance(compiled, Outer) else expected
    with accelerate({"net": compiled}, strict()) as accelerated:
        for _ in range(2):
            torch.testing.assert_close(compiled(X), expected, rtol=1e-4, atol=1e-5)
    statistics = accelerated.stats()["net"]
    assert (statistics["calls"], statistics["compiles"]) == (2, 1)
    assert not statistics["by_blocks"]
    assert vars(compiled) == before


def test_a_hook_of_what_was_compiled_runs_at_every_call(module: torch.nn.Module, strict: Strict) -> None:
    torch._dynamo.reset()
    met: list[torch.Tensor] = []
    module.register_forward_hook(lambda *call: met.append(call[-1]))
    compiled = torch.compile(module, backend=_never)
    with accelerate({"net": compiled}, strict()):
        results = [compiled(X), compiled(X)]
    assert all(a is b for a, b in zip(met, results, strict=True))


def test_a_network_of_torch_jit_trace_stays_in_pytorch_with_the_reason(module: torch.nn.Module, strict: Strict) -> None:
    traced = torch.jit.trace(module, X)
    with accelerate({"net": traced}, strict(fallback="pytorch")) as accelerated:
        torch.testing.assert_close(traced(X), module(X))
    assert ["scripted by torch.jit" in reason for reason in accelerated.stats()["net"]["fallbacks"]] == [True]


class Static(torch.nn.Module):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_static_forward_is_compiled_by_another_compiler(strict: Strict) -> None:
    torch._dynamo.reset()
    module = Static()
    with accelerate({"net": module}, strict(fallback="pytorch")) as accelerated, torch.no_grad():
        assert torch.equal(module(X), X * 2)
        assert torch.equal(torch.compile(module, backend="eager")(X), X * 2)
        assert list(accelerated.stats()["net"]["corrections"]) == [BYPASSED] * TELLS


def test_what_another_thread_compiles_leaves_calls_in_openvino(accelerated: Accelerated, module: torch.nn.Module) -> None:
    torch._dynamo.reset()
    compiling, done = threading.Event(), threading.Event()

    def slow(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        compiling.set()
        assert done.wait(60)
        return graph.forward

    other = threading.Thread(target=lambda: torch.compile(torch.nn.Linear(4, 4), backend=slow)(X))
    other.start()
    try:
        assert compiling.wait(60)
        before = accelerated.stats()["net"]["calls"]
        module(X)
        assert accelerated.stats()["net"]["calls"] == before + 1
    finally:
        done.set()
        other.join()
