"""The observer asks once what a function has to be looked at for, and forgets none that counts."""

from __future__ import annotations

import gc
import math
import sys
import time
from types import FrameType
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from ov_backend.trace.capture import impure, observer, trace_detection
from ov_backend.trace.capture.observer import Observer


def test_no_function_that_counts_is_taken_for_a_method_of_a_plain_value() -> None:
    known = {*impure._IMPURE, *trace_detection.ASKS_TRACE, *observer.ASKS_AUTOCAST}
    modules = [sys.modules[name] for name in impure._ACTING if name in sys.modules]
    functions = [each for module in modules for each in vars(module).values() if type(each) is type(len)]
    functions += [each for each in gc.get_objects() if type(each) is type(len) and id(each) in known]
    assert len(functions) > len(known) / 2
    assert not [each for each in functions if id(type(each.__self__)) in observer.PLAIN]


class Noting(Observer):
    """Notes which functions written in C it has looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = list[str]()

    def _call_c(self, frame: FrameType, function: Any, owner: Any) -> None:
        self.looked_at.append(function.__name__)
        super()._call_c(frame, function, owner)


def test_a_function_that_only_computes_is_looked_at_once_and_one_that_acts_always() -> None:
    with Noting() as watching:
        for _ in range(3):
            math.sqrt(2.0)
            "a".join(["b"])
            time.time()
    counts = {name: watching.looked_at.count(name) for name in ("sqrt", "join", "time")}
    assert counts == {"sqrt": 1, "join": 0, "time": 3}
    assert watching.effects == ["calls time.time"] * 3


def test_code_that_is_equal_to_other_code_is_looked_at_for_the_same() -> None:
    copies = [compile("def f(x):\n    return type(x)\n", "a test", "exec") for _ in range(2)]
    spaces: list[dict[str, Any]] = [{"__name__": __name__} for _ in copies]
    for copy, space in zip(copies, spaces):
        exec(copy, space)
    first, second = (space["f"] for space in spaces)
    assert first.__code__ == second.__code__
    assert first.__code__ is not second.__code__
    with FakeTensorMode():
        fake = torch.zeros(1)
    with Observer() as watching:
        first(1.0)
        second(fake)
    assert watching.effects == ["asks for the class of a tensor"]
    with Observer() as watching:
        first(1.0)
    assert not watching.effects
