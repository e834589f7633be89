"""What NaN and infinity become: every row of the table in docs/coverage.md is computed by PyTorch and by OpenVINO."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ov_backend.core.errors import PositionOutOfRange
from ov_backend.model.compiler import Compiler
from tests.model.test_compiler import SETTINGS, captured

PAGE = Path(__file__).parents[3] / "docs" / "coverage.md"
#: `expression` | x | PyTorch's result | OpenVINO's result
ROW = re.compile(r"^\| `([^`]+)` \| (\[[^]]*\]) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8").partition("## NaN and infinity")[2].partition("\n## ")[0])


def values(cell: str) -> torch.Tensor:
    """A cell of the table as a tensor."""
    numbers = re.sub(r"-?\b(nan|inf)\b", r"'\g<0>'", cell)
    return torch.tensor([float(value) for value in ast.literal_eval(numbers)])


def test_the_table_has_rows() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize("expression,x,expected,answered", ROWS, ids=[f"{row[0]} of {row[1]}" for row in ROWS])
def test_a_row_is_what_both_answer(expression: str, x: str, expected: str, answered: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = eval(expression, {"torch": torch, "F": F, "x": x})
        return result

    tensor = values(x)
    torch.testing.assert_close(f(tensor).float().reshape(-1), values(expected), equal_nan=True, rtol=0, atol=5e-3)
    program = Compiler(captured(f, tensor), SETTINGS).compile().program
    (result,) = program.compile({}, SETTINGS)([tensor])
    if answered == "depends":  # on the instruction set of the CPU, or on the version of PyTorch
        assert result.shape == f(tensor).shape
    else:
        torch.testing.assert_close(result.float().reshape(-1), values(answered), equal_nan=True, rtol=0, atol=5e-3)


def test_an_index_out_of_range_is_left_to_pytorch_which_raises() -> None:
    table, ids = torch.randn(3, 4), torch.tensor([1, 9])
    with pytest.raises(IndexError):
        F.embedding(ids, table)
    program = Compiler(captured(F.embedding, torch.tensor([1, 2]), table), SETTINGS).compile().program
    assert program.outer is None
    with pytest.raises(PositionOutOfRange):
        program.compile({}, SETTINGS)([ids, table])


def test_a_division_of_integers_by_zero_raises() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.div(x + 1, x, rounding_mode="floor") + 1

    program = Compiler(captured(f, torch.tensor([1, 2])), SETTINGS).compile().program
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        program.compile({}, SETTINGS)([torch.tensor([0, 2])])


def test_the_error_function_is_right_to_a_millionth() -> None:
    x = torch.tensor([1e-1, 1e-3, 1e-5, -1e-6, 1e-7, 0.0])
    (result,) = Compiler(captured(torch.erf, x), SETTINGS).compile().program.compile({}, SETTINGS)([x])
    torch.testing.assert_close(result, torch.erf(x), rtol=0, atol=1.5e-6)
