"""The pictures that judge int8 are not those that choose its rules, nor those that calibrate."""

from __future__ import annotations

from collections import Counter

from benchmarks.bench_int8_judging import RECIPES, judged_by
from benchmarks.int8_pictures import CHOOSING, FIRST, JUDGING, SAMPLERS


def test_pictures_that_judge_choose_and_calibrate_share_no_prompt_and_no_seed() -> None:
    parts = (CHOOSING, JUDGING, FIRST)
    for what in ("prompt", "seed"):
        values = [{getattr(picture, what) for picture in part} for part in parts]
        assert sum(map(len, values)) == len(set().union(*values)), what
        assert list(map(len, values)) == list(map(len, parts)), f"each picture has a {what} of its own"


def test_those_that_judge_are_of_every_sampler_and_each_is_drawn_by_several_recipes() -> None:
    assert {picture.sampler for picture in JUDGING} == set(SAMPLERS)
    assert all(len({getattr(each, name) for each in JUDGING}) >= 3 for name in ("steps", "guidance", "side"))
    drawn = Counter(number for recipe in range(RECIPES) for number in judged_by(recipe, len(JUDGING)))
    assert len(FIRST) == RECIPES
    assert set(drawn) == set(range(len(JUDGING)))
    assert min(drawn.values()) >= 4
