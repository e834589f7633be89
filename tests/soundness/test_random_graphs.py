"""Random graphs of operators answer as PyTorch does; ``make soundness`` draws thousands."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from ov_backend.trace.partitioning import exact_integers
from tests.soundness import options
from tests.soundness.graphs import Program, programs
from tests.soundness.verdicts import judge


@seed(options.graph_seed())
@settings(
    max_examples=100, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(programs())
def test_a_random_graph_answers_as_pytorch_does(program: Program) -> None:
    if program.outputs:
        verdict = judge(program)
        assert verdict.status != "wrong", f"seed {options.graph_seed()}: {verdict.where}: {verdict.message}\n{verdict.program}"


def test_a_wrong_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rules for integers switched off, the harness sees what they are for."""
    tensor = torch.tensor([100, -100, 3], dtype=torch.int8)
    program = Program([tensor], ["v0 + 127", "v1.float()"], [False, False], [2], ["..."])
    assert judge(program).status in ("right", "pytorch")
    monkeypatch.setattr(exact_integers, "inexact", lambda gm, wide: {})
    verdict = judge(program)
    assert (verdict.status, verdict.where) == ("wrong", "v0 + 127")


def test_what_one_rounding_decides_is_not_called_wrong() -> None:
    """OpenVINO's exponential of 2**-23 is 1, PyTorch's the next number above it."""
    tensor = torch.full((64,), 2.0**-23)
    program = Program([tensor], ["v0.exp()", "v1 == 1"], [False, False], [2], ["..."])
    assert judge(program).status == "right"
