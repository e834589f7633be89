"""Networks that were loaded from files, as users load them, have attributes that those made from a configuration have not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import CLIPTextConfig, CLIPTextModel

from ov_backend import Settings, accelerate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = CLIPTextConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    CLIPTextModel(config).save_pretrained(tmp_path / "text_encoder")
    return tmp_path / "text_encoder"


def test_a_text_encoder_from_files_is_stored(folder: Path, strict: Callable[..., Settings]) -> None:
    tokens, settings = torch.arange(77)[None], strict()
    for hits in (0, 1):
        encoder = CLIPTextModel.from_pretrained(folder).eval()
        with torch.no_grad():
            expected = encoder(tokens).last_hidden_state
            with accelerate({"text_encoder": encoder}, settings) as accelerated:
                answer = encoder(tokens).last_hidden_state
        assert accelerated.stats()["text_encoder"]["graph_hits"] == hits
        assert float((answer - expected).norm() / expected.norm()) < 1e-3
