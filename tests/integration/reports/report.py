"""What the programs share: a report is one, and a program runs a module in each of the ways that this project has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import ov_backend
from ov_backend import Settings
from tests.helpers.torch_compile import agree, calls, fallbacks, total


@dataclass(frozen=True)
class Report:
    """One public report.

    Attributes:
        source: repository and number.
        program: states what must hold; its docstring says it in a sentence.
        torch: the first version that has what the program needs.
        full: it takes seconds, and is left out of short runs.
    """

    source: str
    program: Callable[[Ways], None]
    torch: tuple[int, int] = (2, 1)
    full: bool = False

    def __str__(self) -> str:
        return f"{self.source.rpartition('/')[2].replace('#', '-')}-{self.program.__name__}"


class Ways:
    """Ways to run a function or module: as it is, by ``torch.compile``, and by ``accelerate`` with these settings; in f32."""

    def __init__(self, settings: Callable[..., Settings]) -> None:
        self.settings = settings

    def compiled(self, model: Any, *, dynamic: bool | None = False, fullgraph: bool = False, **options: Any) -> Any:
        """``torch.compile``; every fallback raises unless ``fallback`` is given."""
        given = {"precision": "f32", "fallback": "raise", **options}
        return torch.compile(model, backend="openvino_fx", dynamic=dynamic, fullgraph=fullgraph, options=given)

    @contextmanager
    def accelerated(self, module: torch.nn.Module, **changes: Any) -> Iterator[Any]:
        """``module`` by ``accelerate`` until the block ends; what is yielded counts its calls."""
        with ov_backend.accelerate({"net": module}, self.settings(**changes)) as network:
            yield Counts(network)

    def agree(
        self, model: Any, *args: Any, openvino: bool = True, whole: bool = True, tolerance: float = 1e-3, **kwargs: Any
    ) -> None:
        """Both ways answer as PyTorch does: structure, shapes, dtypes, values and what is written into the arguments.

        Args:
            model: a function or a module.
            args, kwargs: of one call.
            openvino: OpenVINO computes at least a part of it; otherwise all of it stays in PyTorch.
            whole: it is one graph; otherwise ``torch.compile`` breaks it, and ``accelerate`` leaves it to PyTorch with a reason.
            tolerance: of floats, relative to the largest value.
        """
        module = model if isinstance(model, torch.nn.Module) else Function(model).eval()
        expected = _called(module, args, kwargs)
        torch._dynamo.reset()
        ov_backend.reset()  # torch 2.1 does not
        compiled = self.compiled(module, fallback="raise" if openvino and whole else "pytorch")
        for _ in range(2):
            agree(_called(compiled, args, kwargs), expected, tolerance)
        assert (calls() > 0) is openvino, f"calls in OpenVINO: {calls()}, in PyTorch: {fallbacks()}"
        with self.accelerated(module, fallback="raise" if openvino and whole else "pytorch") as counts:
            for _ in range(2):
                agree(_called(module, args, kwargs), expected, tolerance)
            assert (counts("calls") > 0) is (openvino and whole), counts.reasons()
            assert whole or all("Exception" not in reason for reason in counts.reasons())

    def raise_alike(self, model: Any, *args: Any, **kwargs: Any) -> None:
        """What PyTorch refuses with an exception is refused with an exception of the same class in both ways."""
        module = model if isinstance(model, torch.nn.Module) else Function(model).eval()
        expected = _raised(module, args, kwargs)
        # Dynamo puts what an operator raises in a trace into a RuntimeError of its own.
        assert isinstance(_raised(self.compiled(module, fallback="pytorch"), args, kwargs), (type(expected), RuntimeError))
        with self.accelerated(module, fallback="pytorch"):
            assert type(_raised(module, args, kwargs)) is type(expected)


class Function(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Counts:
    """The counts of one accelerated network."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def __call__(self, name: str) -> int:
        """A count, such as "calls", with those of the network's blocks."""
        return sum(counts[name] for counts in self.network.stats().values())

    def reasons(self) -> list[str]:
        """Why calls were answered by PyTorch."""
        return [reason for counts in self.network.stats().values() for reason in counts["fallbacks"]]


def compiles() -> int:
    """Compiles for ``torch.compile`` since the last reset."""
    return total("compiles")


def _called(model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The result of a call with copies of the arguments, and these copies afterwards."""
    args, kwargs = pytree.tree_map(_copy, (args, kwargs))
    torch.manual_seed(7)
    result = model(*args, **kwargs)
    return result, (args, kwargs)


def _raised(model: Any, args: Any, kwargs: Any) -> Exception:
    try:
        _called(model, args, kwargs)
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


def _copy(value: Any) -> Any:
    """A copy of a tensor with the same strides; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if 0 in value.stride():
        return _expanded(value)
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def _expanded(value: torch.Tensor) -> torch.Tensor:
    """A copy of an expanded tensor, that is expanded too."""
    base = value
    for dim, stride in enumerate(value.stride()):
        base = base.narrow(dim, 0, 1) if stride == 0 else base
    return base.clone().expand(value.shape)
