"""Transformers and VAEs of diffusers through ``accelerate``: as a whole or by their blocks, in f32 against eager.

CI runs a representative part; ZOO=all runs all.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from tests.helpers.extent import some
from tests.integration.architectures.test_zoo import error
from tests.integration.architectures.zoo_accelerated import TRANSFORMERS, VAES

CASES = {**TRANSFORMERS, **VAES}
PART = (
    "FluxTransformer2DModel, first block cache",
    "QwenImageTransformer2DModel",
    "ZImageTransformer2DModel",
    "Lumina2Transformer2DModel",
    "AutoencoderKLWan",
    "AutoencoderOobleck",
)


@pytest.mark.parametrize("name", some(PART, CASES))
def test_whole_or_by_blocks(name: str, strict: Callable[..., Settings], record_property: Any) -> None:
    diffusers = pytest.importorskip("diffusers")
    case = CASES[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    try:
        network = getattr(diffusers, name.split(",")[0])(**case.config).eval()
        case.prepare(network)
    except (ImportError, AttributeError, TypeError) as missing:
        pytest.skip(f"not in the packages installed here: {missing}")
    for weight in network.parameters():
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    call, around = case.call(), case.around or (lambda network: contextlib.nullcontext())
    with around(network):
        expected = network(**call)
    modules = {part: network.get_submodule(part) for part in case.parts} or {"network": network}
    with ov_backend.accelerate(modules, strict(fallback="pytorch")) as accelerated:
        with around(network):
            found = error(network(**call), expected)
        stats = accelerated.stats()
    record_property("error", found)
    assert found <= 1e-3
    for each in stats.values():
        assert each["calls"] >= 1, each["fallbacks"]
        assert not each["fallbacks"]
        assert each["block_calls"] >= len(each["by_blocks"])
