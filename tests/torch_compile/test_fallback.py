"""What cannot run in OpenVINO: answered all the same, counted, and said once."""

from __future__ import annotations

import logging

import pytest
import torch

import ov_backend
from ov_backend.torch_compile import fallback
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks


def complex_only(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(x).abs()


def double_precision(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin() + x.cos()


def answered_by() -> set[str]:
    """What answered instead of OpenVINO: inductor or eager PyTorch."""
    return {network["answered_by"] for network in ov_backend.stats().values()}


def test_a_graph_that_fails_runs_by_inductor(compiled: Compile, caplog: pytest.LogCaptureFixture) -> None:
    if not fallback.compiler_found():
        pytest.skip("there is no C++ compiler")
    g = compiled(double_precision, fallback="inductor")
    x = torch.randn(4, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, "ov_backend"):
        for _ in range(3):
            agree(g(x), double_precision(x))
    assert sum(fallbacks().values()) == 3
    assert calls() == 0
    assert caplog.text.count("runs in PyTorch") == 1, "said once"
    assert answered_by() == {"inductor"}


def test_without_a_compiler_it_runs_eagerly(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "compiler_found", lambda: False)
    x = torch.randn(4, dtype=torch.float64)
    agree(compiled(double_precision, fallback="inductor")(x), double_precision(x))
    assert sum(fallbacks().values()) == 1
    assert answered_by() == {"eager"}


def test_fallback_raise(compiled: Compile) -> None:
    with pytest.raises(Exception, match=r"none of its operators can run in OpenVINO.*float64"):
        compiled(double_precision, fallback="raise")(torch.randn(4, dtype=torch.float64))


def test_fallback_pytorch(compiled: Compile) -> None:
    x = torch.randn(4, dtype=torch.float64)
    agree(compiled(double_precision, fallback="pytorch")(x), double_precision(x))
    assert answered_by() == {"eager"}


def test_complex_numbers(compiled: Compile) -> None:
    x = torch.randn(8)
    agree(compiled(complex_only, fallback="pytorch")(x), complex_only(x))


def test_unsupported_operators_are_named_with_counts(compiled: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x).exp() + torch.linalg.inv(x * 2)

    x = torch.eye(3) * 2 + 0.1
    agree(compiled(f)(x), f(x))
    (network,) = ov_backend.stats().values()
    assert {count for name, count in network["in_pytorch"].items() if "linalg_inv" in name} == {2}


def test_what_raises_for_an_invalid_result_raises(compiled: Compile) -> None:
    if not hasattr(torch.ops.aten, "_linalg_check_errors"):
        pytest.skip("this torch does not trace the check")
    with pytest.raises(RuntimeError, match="singular"):
        compiled(lambda x: torch.linalg.inv(x) + 1, fallback="pytorch")(torch.zeros(3, 3))


def test_a_solver_of_given_pivots_is_not_tried_on_others(compiled: Compile) -> None:
    """Its pivots are indices that LAPACK believes: with made-up ones the process ended."""
    square = torch.randn(5, 5, dtype=torch.float32)
    factors, pivots = torch.linalg.ldl_factor(square + square.T + 9 * torch.eye(5))
    right = torch.randn(5, 2)

    def f(right: torch.Tensor) -> torch.Tensor:
        return torch.linalg.ldl_solve(factors, pivots, right * 2) + 1

    agree(compiled(f)(right), f(right))
    assert calls() == 1  # what is before and behind it is OpenVINO's
