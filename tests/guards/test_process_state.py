"""What a forward asks the process counts: switches of torch, the environment, limits of the interpreter."""

from __future__ import annotations

import decimal
import locale
import os
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ov_backend import Settings
from ov_backend.guards import autocast
from tests.helpers.readers import Scaled, X, assert_eager
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]
Change = Callable[[pytest.MonkeyPatch], Any]

ASKED: dict[str, tuple[Callable[[Any], float], Change]] = {
    "a variable of the environment": (
        lambda m: float(os.environ.get("OF_THIS_TEST", "1.5")),
        lambda patch: patch.setenv("OF_THIS_TEST", "3"),
    ),
    "getenv": (lambda m: float(os.getenv("OF_THIS_TEST", "1.5")), lambda patch: patch.setenv("OF_THIS_TEST", "3")),
    "the command line": (lambda m: float(len(sys.argv)), lambda patch: patch.setattr(sys, "argv", [*sys.argv, "one more"])),
    "the limit of recursions": (
        lambda m: sys.getrecursionlimit() / 1000,
        lambda patch: sys.setrecursionlimit(sys.getrecursionlimit() + 500),
    ),
    "deterministic algorithms": (
        lambda m: 2.0 if torch.are_deterministic_algorithms_enabled() else 3.0,
        lambda patch: torch.use_deterministic_algorithms(True),
    ),
    "a backend of torch": (
        lambda m: 2.0 if torch.backends.mkldnn.enabled else 3.0,
        lambda patch: torch.backends.mkldnn.set_flags(False),
    ),
    "the precision of products": (
        lambda m: float(len(torch.get_float32_matmul_precision())),
        lambda patch: torch.set_float32_matmul_precision("high"),
    ),
}


def _divided(module: Any) -> float:
    try:
        return 2.0 + float(np.float32(1) / np.float32(0) < 0)
    except FloatingPointError:
        return 3.0


ASKED["how decimal numbers are rounded"] = (
    lambda m: float(decimal.Decimal(2) / decimal.Decimal(3)),
    lambda patch: patch.setattr(decimal.getcontext(), "prec", 1),
)
ASKED["which errors numpy raises"] = _divided, lambda patch: np.seterr(divide="raise")


@pytest.fixture(autouse=True)
def _restored() -> Any:
    errors = np.seterr(divide="ignore")
    limit, precision = sys.getrecursionlimit(), torch.get_float32_matmul_precision()
    yield
    np.seterr(**errors)
    sys.setrecursionlimit(limit)
    torch.use_deterministic_algorithms(False)
    torch.backends.mkldnn.set_flags(True)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("read, change", ASKED.values(), ids=ASKED.keys())
def test_a_changed_answer_of_the_process_is_no_stale_one_of_a_network(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, read: Callable[[Any], float], change: Change
) -> None:
    module = Scaled(read)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    before = read(module)
    change(monkeypatch)
    assert read(module) != before
    assert_eager(network, module)


@pytest.mark.parametrize("read", [lambda m: eval("2.0"), lambda m: globals()["SCALE"]])
def test_code_that_may_read_anything_stays_in_pytorch(strict: Strict, read: Callable[[Any], float]) -> None:
    module = Scaled(read)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0


is_on, AUTO = torch.is_autocast_enabled, torch.autocast


def _in_the_dtype_of_autocast(module: Any) -> float:
    with AUTO("cpu"):
        return 2.0 if torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16 else 3.0


AUTOCAST: dict[str, tuple[Callable[[Any], float], Callable[[], Any], Callable[[], Any]]] = {
    "the CPU's dtype": (
        lambda m: 2.0 if torch.get_autocast_cpu_dtype() is torch.bfloat16 else 3.0,
        lambda: torch.set_autocast_cpu_dtype(torch.float16),
        lambda: torch.set_autocast_cpu_dtype(torch.bfloat16),
    ),
    "the CPU's dtype, by the autocast that takes it": (
        _in_the_dtype_of_autocast,
        lambda: torch.set_autocast_cpu_dtype(torch.float16),
        lambda: torch.set_autocast_cpu_dtype(torch.bfloat16),
    ),
    "a GPU's dtype": (
        lambda m: 2.0 if torch.get_autocast_gpu_dtype() is torch.float16 else 3.0,
        lambda: torch.set_autocast_gpu_dtype(torch.bfloat16),
        lambda: torch.set_autocast_gpu_dtype(torch.float16),
    ),
    "a GPU": (
        lambda m: 2.0 if torch.is_autocast_enabled() else 3.0,
        lambda: torch.set_autocast_enabled(True),
        lambda: torch.set_autocast_enabled(False),
    ),
    "a GPU, by another name": (
        lambda m: 3.0 - is_on(),
        lambda: torch.set_autocast_enabled(True),
        lambda: torch.set_autocast_enabled(False),
    ),
}


@pytest.mark.parametrize("what", AUTOCAST)
def test_a_trace_answers_for_autocast_as_the_thread_of_the_call(strict: Strict, what: str) -> None:
    read, change, restore = AUTOCAST[what]
    if what.startswith("the CPU's dtype") and not hasattr(torch, "get_autocast_dtype"):
        pytest.skip("PyTorch before 2.4 knows one dtype")
    module = Scaled(read)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    before = read(module)
    change()
    try:
        assert read(module) != before
        assert_eager(network, module)
        assert_eager(engine_for(strict(), module), module)  # it has no code that ran before
    finally:
        restore()
    assert_eager(network, module)
    assert (network.statistics.calls, network.statistics.captures) == (3, 2)
    assert autocast.state() == autocast.OF_NEW_THREAD


def test_whether_autocast_keeps_casts_of_weights_is_no_question_for_a_trace(strict: Strict) -> None:
    module = Scaled(lambda m: 2.0 if torch.is_autocast_cache_enabled() else 3.0)
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0


def _of_the_cpu(module: Any) -> float:
    return 2.0 if torch.is_autocast_cpu_enabled() and torch.get_autocast_cpu_dtype() is torch.bfloat16 else 3.0


def test_autocast_of_the_cpu_is_answered(strict: Strict) -> None:
    module = Scaled(_of_the_cpu)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(network(X), module(X), rtol=5e-2, atol=5e-2)
    assert network.statistics.calls == 2


SCALE = 2.0


def _of_an_import(module: Any) -> float:
    import of_this_test

    return float(of_this_test.scale)


def _of_an_imported_name(module: Any) -> float:
    from of_this_test import scale

    return float(scale)


@pytest.mark.parametrize("read", [_of_an_import, _of_an_imported_name])
def test_the_answer_follows_what_is_imported_when_it_is_called(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, read: Callable[[Any], float]
) -> None:
    imported = types.ModuleType("of_this_test")
    imported.scale = 2.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "of_this_test", imported)
    module = Scaled(read)
    network = engine_for(strict(), module)
    assert_eager(network, module)
    imported.scale = 3.0  # type: ignore[attr-defined]
    assert_eager(network, module)


def _warns(module: Any) -> float:
    warnings.warn("of this test", stacklevel=1)
    return 2.0


@pytest.mark.filterwarnings("ignore:of this test")
def test_a_warning_that_has_become_an_error_is_raised(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Scaled(_warns))
    network(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="of this test"):
            network(X)


def test_a_forward_that_asks_for_the_locale_stays_in_pytorch(strict: Strict) -> None:
    network = engine_for(strict(fallback="pytorch"), Scaled(lambda m: float(len(locale.localeconv()["decimal_point"]))))
    network(X)
    assert network.statistics.calls == 0
