"""The families of networks that diffusers has: the pictures are PyTorch's, and the table in docs/models.md is right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ov_backend
from ov_backend import Settings

pytest.importorskip("diffusers")

from tests.helpers.diffusers_families import FAMILIES
from tests.helpers.extent import some

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
#: Where PyTorch's time goes, in any network.
_HEAVY = ("convolution", "linear", "mm", "bmm", "scaled_dot_product_attention", "native_layer_norm", "native_group_norm")
PART = ("two ControlNets", "T2I-Adapter", "LoRAs of PEFT", "Flux")


def rows() -> dict[str, list[str]]:
    """The table's rows by family: networks, their graphs, and how many heavy operators PyTorch has run."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in lines if name in FAMILIES}


def in_pytorch(draw: Callable[[], Any]) -> int:
    """How many products, convolutions and normalisations PyTorch runs itself for a picture."""
    with torch.autograd.profiler.profile() as profile:
        draw()
    return sum(event.name.removeprefix("aten::") in _HEAVY for event in profile.function_events)


def test_every_family_has_a_row() -> None:
    assert rows().keys() == FAMILIES.keys()


@pytest.mark.parametrize("name", some(PART, FAMILIES))
def test_family(name: str, strict: Callable[..., Settings]) -> None:
    try:
        family = FAMILIES[name]()
    except (ImportError, AttributeError, TypeError) as missing:
        pytest.skip(f"not in the packages installed here: {missing}")
    family.pipe.set_progress_bar_config(disable=True)
    expected = [draw() for draw in family.draws]
    with ov_backend.accelerate(family.pipe, strict(model_caching=False)) as accelerated:
        pictures = [draw() for draw in family.draws]
        left = in_pytorch(family.draws[-1])
        stats = accelerated.stats()
    for picture, want in zip(pictures, expected):
        assert np.linalg.norm(picture - want) <= 1e-3 * np.linalg.norm(want)
    assert min(want.std() for want in expected) > 0.02, "a flat picture would prove nothing"
    assert not any(values["fallbacks"] for values in stats.values())
    graphs = Counter({network: values["captures"] for network, values in stats.items() if values["calls"]})
    networks, stated_left, *_ = rows()[name]
    assert {network: int(count) for network, count in re.findall(r"`(\w+)` (\d+)", networks)} == graphs
    assert int(stated_left) == left
