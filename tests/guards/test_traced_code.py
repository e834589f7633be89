"""Which code may read more than the names in it."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import Any

import pytest

from ov_backend.guards.reads import reads_unnamed
from ov_backend.guards.traced_code import TracedCode


def by_constant(module: Any) -> Any:
    return getattr(module, "scale") * getattr(module, "shift", 0)  # noqa: B009


def by_computed_name(module: Any, number: int) -> Any:
    return getattr(module, f"scale_{number}")


def by_table(module: Any) -> Any:
    return vars(module)["scale"]


def by_attrgetter(module: Any) -> Any:
    return operator.attrgetter("inner.scale")(module)


def by_inner_function(module: Any) -> Any:
    return functools.reduce(lambda a, name: a * getattr(module, name), ["scale", "shift"], 1)


def by_name(module: Any) -> Any:
    return module.scale


@pytest.mark.parametrize("function", [by_computed_name, by_table, by_attrgetter, by_inner_function])
def test_code_that_computes_names_may_read_anything(function: Any) -> None:
    assert reads_unnamed(function.__code__)


@pytest.mark.parametrize("function", [by_constant, by_name])
def test_code_that_names_what_it_reads_reads_nothing_else(function: Any) -> None:
    assert not reads_unnamed(function.__code__)


@pytest.mark.parametrize("function", [inspect.isfunction, inspect.isclass, inspect.ismethod])
def test_a_question_for_the_class_of_something_reads_no_attribute(function: Any) -> None:
    assert not TracedCode.of({function.__code__: "inspect", by_name.__code__: __name__}).computes_names


@pytest.mark.parametrize("function", [inspect.getmembers, inspect.isroutine, inspect.unwrap, inspect.ismethoddescriptor])
def test_other_functions_of_inspect_may_read_anything(function: Any) -> None:
    assert TracedCode.of({function.__code__: "inspect"}).computes_names
