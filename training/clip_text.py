"""CLIP's text transformer in PyTorch, with the key names of transformers' CLIPTextModel."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .paths import TOKENIZER_DIR


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] -> the same."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers with quick_gelu between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] -> the same."""
        h = self.fc1(x)
        return self.fc2(h * torch.sigmoid(1.702 * h))


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = MLP(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[n, length, width] -> the same."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Embeddings(nn.Module):
    """Token plus position."""

    def __init__(self, vocabulary: int, positions: int, width: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(positions, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [n, length] -> [n, length, width]."""
        return self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[1]]


class Encoder(nn.Module):
    """The stack of layers."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(layers))


class TextModel(nn.Module):
    """The inner model of CLIPTextModel."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.embeddings = Embeddings(config["vocab_size"], config["max_position_embeddings"], width)
        self.encoder = Encoder(config["num_hidden_layers"], width, config["num_attention_heads"], config["intermediate_size"])
        self.final_layer_norm = nn.LayerNorm(width)


class CLIPText(nn.Module):
    """Token ids [n, 77] to the last hidden state [n, 77, width] after the final norm."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.text_model = TextModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        """See the class."""
        return self.encode(self.text_model.embeddings(ids))

    def encode(self, x: Tensor) -> Tensor:
        """Embedded tokens [n, 77, width] to the last hidden state."""
        for layer in self.text_model.encoder.layers:
            x = layer(x)
        return self.text_model.final_layer_norm(x)


def build(seed: int, folder: Path = TOKENIZER_DIR) -> CLIPText:
    """A text encoder of the shipped configuration with seeded initial weights."""
    config = json.loads((folder / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    model = CLIPText(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                continue
            if parameter.ndim == 1:
                parameter.zero_()
            else:
                scale = 0.3 if "token_embedding" in name else 0.05 if "position" in name else parameter.shape[1] ** -0.5 * 0.7
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model
