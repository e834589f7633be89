"""What the bytecode of a function says that it asks."""

from __future__ import annotations

import argparse
import dataclasses
import dis
import inspect
import logging
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.nn.functional

from ov_backend.guards import reads
from ov_backend.guards.reads import compares_with_tensor
from ov_backend.guards.traced_code import lists_attributes

ASKS = [
    "type(x) is torch.Tensor",
    "type(x) == torch.Tensor",
    "type(x) in (torch.Tensor, int)",
    "type(x) in {y, torch.Tensor}",
    "torch.Tensor is type(x)",
    "x.__class__ is Tensor",
    "isinstance(x, y) and type(x) is not torch.Tensor",
    "type(x) is (torch.Tensor if y else int)",
]
ASKS_NOT = [
    "isinstance(x, (torch.Tensor, list)) and type(y) is int",
    "isinstance(x, torch.Tensor) is True and type(y)",
    "type(y) is int and torch.Tensor(x)",
]


def code_of(expression: str) -> types.CodeType:
    code = compile(f"def f(x, y):\n    return 1 if {expression} else 2\n", "a test", "exec").co_consts[0]
    assert isinstance(code, types.CodeType)
    return code


@pytest.mark.parametrize("expression", ASKS)
def test_code_that_asks_for_the_class_of_a_tensor_is_known(expression: str) -> None:
    assert compares_with_tensor(code_of(expression))


@pytest.mark.parametrize("expression", ASKS_NOT)
def test_code_that_asks_for_no_class_of_a_tensor_is_known(expression: str) -> None:
    assert not compares_with_tensor(code_of(expression))


@pytest.mark.parametrize("expression", ["next(iter(x.__dict__))", "list(vars(x))", "[a for a in x.__dict__]", "f(**vars(x))"])
def test_code_that_goes_through_attributes_is_known(expression: str) -> None:
    assert lists_attributes(code_of(expression))


def test_code_that_asks_for_one_attribute_goes_through_none() -> None:
    assert not lists_attributes(code_of("'a' in x.__dict__ and x.__dict__['a']"))


LIBRARIES = (argparse, dataclasses, inspect, logging, typing, torch.nn.functional)
QUESTIONS: list[Callable[[types.CodeType], object]] = [reads.chains_of, reads.globals_set_by, reads.imports_of]


def codes() -> Iterator[types.CodeType]:
    """The code of functions and methods of some libraries."""
    for library in LIBRARIES:
        for value in vars(library).values():
            members = vars(value).values() if isinstance(value, type) else (value,)
            yield from (member.__code__ for member in members if isinstance(member, types.FunctionType))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each.__name__)
def test_what_does_not_stand_in_the_code_is_not_found_in_it(question: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    question.cache_clear()
    quick = {code: question(code) for code in codes()}
    monkeypatch.setattr(reads, "operations_of", lambda code: frozenset(dis.opname))
    question.cache_clear()
    assert {code: question(code) for code in quick} == quick
    question.cache_clear()
    assert len(set(quick.values())) > 1
