"""Every network of Stable Diffusion, as the original ldm and transformers classes, against eager PyTorch in f32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from tests.helpers import networks
from tests.helpers.diffusers_pipelines import SHALLOW
from tests.helpers.extent import some
from tests.helpers.walks import no_walks

TOLERANCE = 1e-3
Strict = Callable[..., Settings]


def _unet() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    return networks.unet(), (networks.latents(3), torch.tensor([900.0, 500.0, 20.0])), {"context": networks.context(3)}


def _class_unet() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    module = networks.unet(num_classes=10, channel_mult=[1], attention_resolutions=[1])
    extra = {"context": networks.context(), "y": torch.tensor([2, 7])}
    return module, (networks.latents(), torch.tensor([3.0, 7.0])), extra


def _decoder() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    return networks.vae_decoder(), (networks.latents(1),), {}


def _encoder() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    return networks.vae_encoder(), (networks.latents(1, 32, 48, channels=3),), {}


def _text() -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    ids = torch.randint(0, 990, (2, 77), generator=torch.Generator().manual_seed(0))
    ids[:, -1] = 999
    return networks.text_encoder(), (), {"input_ids": ids, "output_hidden_states": True}


CASES = {"unet": _unet, "unet with y": _class_unet, "vae decoder": _decoder, "vae encoder": _encoder, "text encoder": _text}


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a result, in order."""
    from ov_backend.guards.pytree import flatten

    return [tensor for _, tensor in flatten(value)[0]]


@pytest.mark.parametrize("case", some(set(CASES) - {"unet with y"}, CASES))
def test_results_agree_with_eager_in_f32_and_in_the_default_precision(case: str, strict: Strict, record_property: Any) -> None:
    module, args, kwargs = CASES[case]()
    expected = module(*args, **kwargs)
    with ov_backend.accelerate({case: module}, strict()) as accelerated:
        result = module(*args, **kwargs)
        stats = accelerated.stats()[case]
    assert type(result) is type(expected)
    record_property("relative_error", error(result, expected))
    assert error(result, expected) < TOLERANCE
    if case == "unet":  # the rows are different prompts: each is in its own place
        assert networks.relative_error(result, expected.flip(0)) > 0.1
    assert [t.dtype for t in tensors(result)] == [t.dtype for t in tensors(expected)]
    assert (stats["captures"], stats["compiles"], stats["calls"], stats["fallbacks"]) == (1, 1, 1, {})
    assert stats["in_pytorch"] == {}
    # bf16 where the CPU has it: 8 bits of mantissa through tens of layers; the graph is the one on disk
    with ov_backend.accelerate({case: module}, strict(precision="auto")) as accelerated:
        assert error(module(*args, **kwargs), expected) < 5e-2
        assert accelerated.stats()[case]["graph_hits"] == 1
        with no_walks():
            module(*args, **kwargs)


def error(actual: Any, expected: Any) -> float:
    """The largest relative error of any tensor of a result."""
    pairs = list(zip(tensors(actual), tensors(expected)))
    assert len(pairs) == len(tensors(actual)) == len(tensors(expected))
    return max(networks.relative_error(one, other) for one, other in pairs)


def test_half_precision_weights_are_bound_as_they_are(strict: Strict) -> None:
    """A host that keeps fp16 weights in memory: the graph is traced in fp16 and computed in f32 on the CPU.

    PyTorch 2.1 cannot run this on a CPU at all; the reference is the same network in f32.
    """
    from diffusers import UNet2DConditionModel

    config = {"layers_per_block": 1, "cross_attention_dim": 32, "norm_num_groups": 8, "attention_head_dim": 4, **SHALLOW}
    module = networks.seeded(UNet2DConditionModel(**config))
    x, t, c = networks.latents(), torch.tensor(500), networks.context()
    half = networks.seeded(UNet2DConditionModel(**config)).half()
    expected = module(x, t, c).sample
    with ov_backend.accelerate({"unet": half}, strict()) as accelerated:
        got = half(x.half(), t, c.half()).sample
        assert accelerated.stats()["unet"]["in_pytorch"] == {}
    assert got.dtype is torch.float16
    assert networks.relative_error(got, expected) < 2e-2
