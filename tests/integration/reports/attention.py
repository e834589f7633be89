"""Reports of masks, caches and language models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.integration.reports.report import Report, Ways, compiles


def encoder_with_all_masked(ways: Ways) -> None:
    """An encoder of PyTorch's own layers answers as in eager where some, and where all, of a row's positions are masked."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True).train()
    x = torch.randn(2, 5, 16)
    some = torch.tensor([[False, False, True, True, True], [False, False, False, False, True]])
    for mask in (some, torch.stack([some[0], torch.ones(5, dtype=torch.bool)])):
        ways.agree(layer, x, src_key_padding_mask=mask)
        ways.agree(layer, x, src_key_padding_mask=mask, src_mask=torch.ones(5, 5).triu(1).bool())


def causal_attention_with_a_large_number(ways: Ways) -> None:
    """Scores masked by -1e20, and by the smallest float, before a softmax give PyTorch's weights; a row may be masked whole."""
    mask = torch.tril(torch.ones(6, 6)).bool()
    mask[2] = False

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k)
        for low in (-1e20, torch.finfo(torch.float32).min):
            scores = scores.masked_fill(mask == 0, low)
        return torch.einsum("nhqk,nkhd->nqhd", torch.softmax(scores / 4**0.5, dim=3), v)

    ways.agree(f, *torch.randn(3, 2, 6, 2, 4))


def last_token_of_a_padded_batch(ways: Ways) -> None:
    """A pooled last token of a left-padded batch is finite: rows of the mask that hide everything are not NaN."""

    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        causal = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        seen = causal[None, None] & mask[:, None, None, :].bool()
        h = x.unflatten(-1, (2, 8)).transpose(1, 2)
        h = F.scaled_dot_product_attention(h, h, h, attn_mask=seen).transpose(1, 2).flatten(2)
        return F.normalize(h[:, -1], dim=-1)

    mask = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]])
    ways.agree(f, torch.randn(2, 5, 16), mask)


def cache_of_fixed_size(ways: Ways) -> None:
    """Keys written into a cache by ``index_copy_`` at positions given as a tensor are read in the same call and in the next."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = torch.nn.Linear(8, 8)
            self.kv = torch.nn.Linear(8, 16)
            self.register_buffer("keys", torch.zeros(1, 2, 6, 4))
            self.register_buffer("values", torch.zeros(1, 2, 6, 4))

        def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            k, v = self.kv(x).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, 1)
            self.keys.index_copy_(2, position, k)
            self.values.index_copy_(2, position, v)
            q = self.q(x).unflatten(-1, (2, 4)).transpose(1, 2)
            seen = (torch.arange(6) <= position[:, None])[None, None]
            return F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen).transpose(1, 2).flatten(2)

    torch.manual_seed(3)
    x = torch.randn(1, 5, 8)

    def decode(layer: Any, model: Any) -> list[torch.Tensor]:
        layer.keys.zero_()
        layer.values.zero_()
        found = [model(x[:, :3], torch.arange(3))]
        return found + [model(x[:, i : i + 1], torch.tensor([i])) for i in (3, 4)]

    layer = Layer().eval()
    expected = decode(layer, layer)
    compiled = ways.compiled(layer)
    for _ in range(2):
        torch.testing.assert_close(decode(layer, compiled), expected, rtol=1e-3, atol=1e-4)
    assert compiles() == 2, "one for the prompt, one for all tokens"
    with ways.accelerated(layer, fallback="pytorch"):
        torch.testing.assert_close(decode(layer, layer), expected, rtol=1e-3, atol=1e-4)


def second_generation_with_a_static_cache(ways: Ways) -> None:
    """GPT-2 generates the same tokens twice with a static cache, compiled, as eagerly."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=63)).eval()
    prompt = torch.tensor([[3, 9, 4]])
    given: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    given["attention_mask"] = torch.ones_like(prompt)
    expected = model.generate(prompt, **given)
    forward = model.forward
    model.forward = ways.compiled(forward, dynamic=None, fallback="pytorch")
    for _ in range(2):
        assert torch.equal(model.generate(prompt, **given, cache_implementation="static", disable_compile=True), expected)
    assert compiles() > 0


REPORTS = [
    Report("pytorch/pytorch#178677", encoder_with_all_masked),
    Report("pytorch/pytorch#158226", causal_attention_with_a_large_number),
    Report("huggingface/sentence-transformers#3515", last_token_of_a_padded_batch),
    Report("pytorch/TensorRT#4142", cache_of_fixed_size),
    Report("huggingface/transformers#46858", second_generation_with_a_static_cache, (2, 6), full=True),
]
