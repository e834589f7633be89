"""The fingerprint of a walk: equal for equal modules, another for every difference."""

from __future__ import annotations

from typing import Any

import pytest

from ov_backend.guards.walk import Walk
from tests.helpers.readers import Object, Scaled


def test_equal_modules_have_equal_fingerprints() -> None:
    first, second = (Scaled(lambda m: m.o.scale, o=Object()) for _ in range(2))
    assert Walk(first, [first.forward]).fingerprint == Walk(second, [second.forward]).fingerprint
    second.o.scale = 4.0
    assert Walk(first, [first.forward]).fingerprint != Walk(second, [second.forward]).fingerprint


def test_a_configuration_that_differs_has_another_fingerprint() -> None:
    diffusers = pytest.importorskip("diffusers")
    shape: dict[str, Any] = {
        "block_out_channels": (8, 8),
        "down_block_types": ("DownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "UpBlock2D"),
        "norm_num_groups": 4,
        "layers_per_block": 1,
    }
    kinds = [diffusers.UNet2DModel(**shape, center_input_sample=centred) for centred in (False, True)]
    fingerprints = {Walk(module, [module.forward]).fingerprint for module in kinds}
    assert len(fingerprints) == 2


def test_what_cannot_be_described_is_named() -> None:
    module = Scaled(lambda m: 2.0, stream=(each for each in [1]))
    assert any("generator" in words for words in Walk(module, [module.forward]).volatile.values())


def test_a_class_that_has_no_name_of_its_module_is_described() -> None:
    odd = type("Odd", (), {"__module__": vars(type)["__module__"], "scale": 2.0})
    module = Scaled(lambda m: m.o.scale, o=odd())
    before = Walk(module, [module.forward]).fingerprint
    odd.scale = 3.0
    assert Walk(module, [module.forward]).fingerprint != before
