"""Numbers of objects that cannot be described."""

from __future__ import annotations

import gc

from ov_backend.guards.describe import number_of


class Object:
    pass


def test_an_object_keeps_its_number_and_another_never_gets_it() -> None:
    numbers = set()
    for make in (Object, lambda: [1], Object):
        for _ in range(20):
            value = make()
            number = number_of(value)
            assert number_of(value) == number
            assert number not in numbers
            numbers.add(number)
            del value
            gc.collect(0)
