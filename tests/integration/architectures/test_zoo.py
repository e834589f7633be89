"""Real architectures through torch.compile, in f32 against eager and in the default precision against autocast.

CI runs a representative part; ZOO=all runs all.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.core import devices
from tests.helpers.extent import some
from tests.helpers.torch_compile import calls, fallbacks
from tests.integration.architectures.zoo_diffusers import ZOO  # with what zoo.py put in
from tests.soundness import autocast

PART = (
    "torchvision/resnet18",
    "torchvision/mobilenet_v3_small",
    "transformers/bert",
    "transformers/llama",
    "transformers/t5_encoder",
    "diffusers/unet_sd15",
    "diffusers/autoencoder_tiny",
)
CHOSEN = some(PART, ZOO)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if hasattr(value, "to_tuple"):
        value = value.to_tuple()
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (tuple, list)) else []


def error(actual: Any, expected: Any) -> float:
    """Largest difference, relative to the largest value of its tensor."""
    pairs = list(zip(tensors(actual), tensors(expected)))
    assert len(pairs) == len(tensors(expected)) > 0
    for got, want in pairs:
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
    return max(float((a.float() - b.float()).abs().max()) / max(1e-3, float(b.float().abs().max())) for a, b in pairs)


def enliven(module: torch.nn.Module, call: dict[str, Any]) -> None:
    """Weights with which the results depend on the inputs: of fresh ones, last layers are often zero, and signals fade."""
    for weight in module.parameters():
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        module(**call)
    module.eval()


def other(call: dict[str, Any]) -> dict[str, Any]:
    """The call with another first input."""
    (name, value), *rest = call.items()
    return {name: value + torch.randn_like(value) if value.is_floating_point() else value % 7 + 1, **dict(rest)}


def made(name: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """An architecture with weights that matter, and its call."""
    try:
        torch.manual_seed(zlib.crc32(name.encode()))
        module, call = ZOO[name]()
    except (ImportError, AttributeError, TypeError, RuntimeError) as missing:
        pytest.skip(f"not in the packages installed here: {missing}")
    module.eval()
    enliven(module, call)
    return module, call


@pytest.mark.skipif(devices.resolved_precision(Settings(device="CPU")) != "bf16", reason="this CPU computes in f32")
@pytest.mark.parametrize("name", CHOSEN)
def test_architecture_in_the_default_precision(name: str) -> None:
    module, call = made(name)
    with torch.no_grad():
        actual = torch.compile(module, backend="openvino_fx", dynamic=False, options={"fallback": "raise"})(**call)
    assert calls() >= 1
    assert not autocast.difference(tensors(actual), lambda: tensors(module(**call)))


@pytest.mark.parametrize("name", CHOSEN)
def test_architecture(name: str, record_property: Any) -> None:
    module, call = made(name)
    expected = module(**call)
    assert error(module(**other(call)), expected) > 1e-2, "the result depends on the input"
    options = {"precision": "f32", "fallback": "raise"}
    actual = torch.compile(module, backend="openvino_fx", dynamic=False, options=options)(**call)
    found = error(actual, expected)
    record_property("error", found)
    assert found <= 1e-3
    assert calls() >= 1
    assert not fallbacks()
