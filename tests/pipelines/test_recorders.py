"""A text encoder of transformers is traced at its first call too, when it installs its recorders of hidden states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ov_backend
from ov_backend import Settings

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("name", ["CLIPTextModel", "CLIPTextModelWithProjection"])
def test_the_first_call_with_hidden_states_runs_in_openvino(strict: Callable[..., Settings], name: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 1000}
    torch.manual_seed(0)
    module = getattr(transformers, name)(transformers.CLIPTextConfig(**sizes)).eval().requires_grad_(False)
    tokens = torch.arange(77)[None]
    with torch.no_grad():
        with ov_backend.accelerate({"text_encoder": module}, strict(precision="f32")) as accelerated:
            result = module(tokens, output_hidden_states=True)
            assert accelerated.stats()["text_encoder"]["calls"] == 1
        expected = module(tokens, output_hidden_states=True)
    assert len(result.hidden_states) == len(expected.hidden_states) == 3
    torch.testing.assert_close(result.hidden_states[-2], expected.hidden_states[-2], rtol=1e-3, atol=1e-4)
