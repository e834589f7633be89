"""What differs first between two descriptions, in words."""

from __future__ import annotations

import pytest

from ov_backend.guards.what_differed import Description, argument_in_words


def _described(*found: tuple[str, tuple[object, ...]]) -> Description:
    description = Description()
    for path, parts in found:
        description.begin(path)
        description.add(*parts)
    return description


_BEFORE = ("block!scale", ("float", 1.0)), ("block!names", ("list", "2 items"))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (_BEFORE, ""),
        ((("block!scale", ("float", 0.5)), _BEFORE[1]), "block.scale 1.0 -> 0.5"),
        ((("block!scale", ("int", 1)), _BEFORE[1]), "block.scale float 1.0 -> int 1"),
        ((*_BEFORE, ("block!extra", ("int", 1))), "block.extra is new"),
        (_BEFORE[1:], "block.scale is gone"),
    ],
)
def test_the_first_difference_is_told_with_its_path(now: tuple[tuple[str, tuple[object, ...]], ...], words: str) -> None:
    before, after = _described(*_BEFORE), _described(*now)
    assert after.first_difference(before) == words
    assert (after.fingerprint() == before.fingerprint()) == (not words)


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('{"k": {"value": 1.0}} m', '{"k": {"value": 2.0}} m', "k 1.0 -> 2.0"),
        ('{"k": {"value": 1}}', '{"k": {"value": 1}} autocast=x', "nothing -> autocast=x"),
        ('{"k": {"val', '{"k": {"value": 2.0}}', "k {} -> 2.0"),
        ("[1]", "[2]", "1] -> 2]"),
    ],
)
def test_an_argument_is_named_also_where_a_stored_signature_is_cut_off(was: str, now: str, words: str) -> None:
    assert argument_in_words(was, now).replace("  ", " ").strip() == words
