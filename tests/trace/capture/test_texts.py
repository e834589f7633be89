"""The text of a fake tensor is another than that of a tensor: a forward that makes one stays in PyTorch."""

from __future__ import annotations

import itertools
import logging
import pprint
import re
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
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
