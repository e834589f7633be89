"""What a forward asks that is answered otherwise in a trace: modes are active there, and fake tensors have other texts."""

from __future__ import annotations

import itertools
import logging
import pprint
import re
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor
from torch._subclasses import FakeTensor as Renamed
from torch.overrides import _get_current_function_mode_stack, handle_torch_function, has_torch_function
from torch.overrides import has_torch_function_unary as asks_by_another_name
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from ov_backend import Settings
from tests.helpers.readers import assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]


class Asking(torch.nn.Module):
    """x twice, or three times if ``ask`` finds something."""

    def __init__(self, ask: Callable[[torch.Tensor, torch.nn.Linear], object]) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.ask = ask
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (3 if self.ask(x, self.linear) else 2)


def twice(x: torch.Tensor) -> torch.Tensor:
    """As PyTorch's own functions in Python are."""
    if has_torch_function((x,)):
        result: torch.Tensor = handle_torch_function(twice, (x,), x)
        return result + 1
    return 2 * x


ASKED: dict[str, tuple[Callable[[torch.Tensor, torch.nn.Linear], object], str]] = {
    "overrides of an input": (lambda x, layer: has_torch_function((x,)), "has_torch_function"),
    "overrides of a weight": (lambda x, layer: torch.overrides.has_torch_function((layer.weight,)), "has_torch_function"),
    "by another name": (lambda x, layer: asks_by_another_name(x), "has_torch_function_unary"),
    "variadic": (lambda x, layer: torch.overrides.has_torch_function_variadic(x, x), "has_torch_function_variadic"),
    "in C": (lambda x, layer: torch._C._has_torch_function((x,)), "has_torch_function"),
    "a function of its own": (lambda x, layer: twice(x).dim() > 2, "has_torch_function"),
    "fake tensor": (lambda x, layer: isinstance(x, FakeTensor), "FakeTensor"),
    "renamed fake tensor": (lambda x, layer: isinstance(x, Renamed), "Renamed"),
    "modes of functions": (lambda x, layer: len(_get_current_function_mode_stack()), "_get_current_function_mode_stack"),
    "modes of operators": (lambda x, layer: len(_get_current_dispatch_mode_stack()), "_get_current_dispatch_mode_stack"),
    "keys": (lambda x, layer: torch._C._dispatch_keys(x).has(torch._C.DispatchKey.Python), "_dispatch_keys"),
    "table": (lambda x, layer: len(x.__dict__), "__dict__ of a tensor"),
    "table by vars": (lambda x, layer: len(vars(x)), "__dict__ of a tensor"),
    "same memory": (lambda x, layer: not x.is_set_to(x.view(3, 4)), "is_set_to"),
    "tracing": (lambda x, layer: torch.fx._symbolic_trace.is_fx_tracing(), "is_fx_tracing"),
    "threads": (lambda x, layer: threading.active_count() > 100, "threading.active_count()"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_a_trace_answers_otherwise_stays_in_pytorch(strict: Strict, name: str) -> None:
    ask, word = ASKED[name]
    module = Asking(ask)
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(2):
        assert_eager(network, module)
    assert network.statistics.calls == 0
    assert word in network.statistics.last_reason


def norms(x: torch.Tensor) -> torch.Tensor:
    """PyTorch's own Python code asks for overrides in all of these."""
    products: torch.Tensor = torch.einsum("ij,kj->ik", x, x)
    return torch.nn.functional.normalize(x).sum() + torch.norm(x) + products.sum() + (1 - x).sum()


HARMLESS: dict[str, Callable[[torch.Tensor, torch.nn.Linear], Any]] = {
    "functions of torch": lambda x, layer: bool(norms(x).dim()),
    "the table of a module": lambda x, layer: len(layer.__dict__) > 100 or len(vars(layer)) > 100,
    "the table of a class": lambda x, layer: "nothing" in type(layer).__dict__,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_question_of_the_program_is_answered_by_openvino(strict: Strict, name: str) -> None:
    module = Asking(HARMLESS[name])
    network = engine_for(strict(), module)
    assert_eager(network, module)
    assert network.statistics.calls == 1


X = torch.linspace(-1, 1, 12).reshape(3, 4)
log = logging.getLogger(__name__)


class Telling(torch.nn.Module):
    """Adds what a function makes of the module and its input."""

    def __init__(self, tell: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.tell = tell
        self.weight = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.tell(self, x)


def _kept(module: Any, x: torch.Tensor) -> int:
    texts: list[str] = []
    texts.append(repr(x))
    return len(texts[0])


TEXTS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "repr": lambda m, x: len(repr(x)),
    "str": lambda m, x: len(str(x)),
    "ascii": lambda m, x: len(ascii(x)),
    "format": lambda m, x: len(format(x)),
    "f-string": lambda m, x: len(f"{x}"),
    "f-string with repr": lambda m, x: len(f"{x!r}"),
    "str.format": lambda m, x: len("{}".format(x)),  # noqa: UP032
    "percent": lambda m, x: len("%s" % x),  # noqa: UP031
    "in a list": lambda m, x: len(str([x])),
    "by a function of Python's": lambda m, x: len(pprint.pformat(x)),
    "its method": lambda m, x: len(x.__repr__()),
    "its class's method": lambda m, x: len(torch.Tensor.__repr__(x)),
    "handed on": lambda m, x: sum(map(len, map(repr, [x, x]))),
    "of a result": lambda m, x: len(str(x * 2)),
    "of a parameter": lambda m, x: len(repr(m.weight)),
    "of a buffer": lambda m, x: len(f"{m.table}"),
    "of a number": lambda m, x: len(str(m.table.sum())),
    "of a literal": lambda m, x: len(repr(torch.ones(3))),
    "of a distribution": lambda m, x: len(repr(torch.distributions.Normal(m.table.sum(), 1.0, validate_args=False))),
    "kept in a list": _kept,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_forward_that_makes_a_text_of_a_tensor_stays_in_pytorch(strict: Strict, name: str) -> None:
    module = Telling(TEXTS[name])
    network = engine_for(strict(fallback="pytorch"), module)
    for x in (X, X * 1000, X):
        torch.testing.assert_close(network(x), module(x))
    assert network.statistics.calls == 0
    assert any("repr() or str() of a tensor" in reason for reason in network.statistics.fallbacks)


def _of_the_shape(module: Any, x: torch.Tensor) -> int:
    return len(str(x.shape)) + len(f"{x.dtype} {x.device}")


def _of_an_error(module: Any, x: torch.Tensor) -> int:
    if x.dim() != 2:
        raise ValueError(f"a matrix is needed, not {x}")
    assert x.shape[1] == 4, f"four columns are needed: {x}"
    return 1


def _of_a_log(module: Any, x: torch.Tensor) -> int:
    log.debug("It is %s.", x)
    log.warning("It is %s.", x)
    return 1


@pytest.mark.parametrize("tell", [_of_the_shape, _of_an_error, _of_a_log, lambda m, x: len(str(m))])
def test_other_texts_do_not_keep_a_forward_in_pytorch(strict: Strict, tell: Callable[[Any, torch.Tensor], Any]) -> None:
    module = Telling(tell)
    network = engine_for(strict(), module)
    torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 1


def test_a_programs_own_way_of_writing_its_log_is_no_effect_of_the_forward(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = logging.getLogRecordFactory()

    def stamped(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = plain(*args, **kwargs)
        record.msg = f"{time.time_ns()} {record.msg}"
        return record

    class ToFile(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (tmp_path / "log").write_text(record.getMessage())

    monkeypatch.setattr(logging, "_logRecordFactory", stamped)
    monkeypatch.setattr(log, "handlers", [ToFile()])
    module = Telling(_of_a_log)
    network = engine_for(strict(), module)
    torch.testing.assert_close(network(X), module(X))
    assert network.statistics.calls == 1
    assert re.match(r"\d{15,} It is ", (tmp_path / "log").read_text())


def test_an_assert_that_pytest_has_rewritten_reads_nothing_of_its_plugins(strict: Strict, request: pytest.FixtureRequest) -> None:
    plugin = types.SimpleNamespace(numbers=itertools.count())  # what uses it stays in PyTorch
    request.config.pluginmanager.register(plugin, "with numbers")
    try:
        module = Telling(_of_an_error)
        network = engine_for(strict(), module)
        torch.testing.assert_close(network(X), module(X))
    finally:
        request.config.pluginmanager.unregister(plugin)
    assert any(name.startswith("@pytest") for name in _of_an_error.__code__.co_names)
    assert network.statistics.calls == 1


def test_an_error_of_a_forward_tells_of_the_tensor(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Telling(_of_an_error))
    with pytest.raises(ValueError, match=r"a matrix is needed, not tensor\(\[1\., 2\."):
        network(torch.tensor([1.0, 2.0, 3.0, 4.0]))
