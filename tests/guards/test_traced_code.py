"""The code of a trace: how it is written to a file, and which code may read more than the names in it."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import pytest

from ov_backend.guards.reads import reads_unnamed
from ov_backend.guards.traced_code import TracedCode

CODE = TracedCode(frozenset({"ab" * 16}), frozenset({"scale", "forward"}), False, (dataclasses.asdict,), frozenset({"scale"}))  # type: ignore[arg-type]


def test_another_process_reads_what_this_one_wrote() -> None:
    assert TracedCode.from_json(CODE.as_json()) == CODE


def test_a_root_without_a_name_is_not_written() -> None:
    assert dataclasses.replace(CODE, roots=(lambda: None,)).as_json() is None  # type: ignore[arg-type]


WRONG: dict[str, Any] = {
    "digests": ["no list", [1], ["a"] * 5000, ["a" * 600]],
    "names": [None, {"a": 1}, [None]],
    "computes_names": [1, None, "no"],
    "roots": [["nowhere:function"], ["dataclasses:missing"], ["dataclasses:MISSING"], 7],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_forged_description_is_no_code(field: str) -> None:
    for value in WRONG[field]:
        assert TracedCode.from_json({**(CODE.as_json() or {}), field: value}) is None
    assert TracedCode.from_json({"digests": []}) is None
    assert TracedCode.from_json(None) is None


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
