"""Encodes prompts that are longer than CLIP reads at once: in chunks of 75 tokens whose embeddings are concatenated.

The WebUI encodes them so too, but for one thing: it moves what follows the last comma of a chunk into the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Tokens of a prompt that CLIP reads at once, between the one of the beginning and the one of the end.
CHUNK = 75


def is_short(text: str) -> bool:
    """Whether a prompt is so short that it surely fits into one chunk: a token stands for a character of ASCII or more."""
    return len(text) <= CHUNK and text.isascii()


def chunk_count(tokenizer: Any, text: str) -> int:
    """The number of chunks that a prompt needs, at least 1."""
    return 1 if is_short(text) else max(-(-len(_tokens(tokenizer, text)) // CHUNK), 1)


def long_embeddings(pipe: Any, prompt: str, negative: str, guided: bool) -> dict[str, Any]:
    """The embeddings of two prompts of which one is longer than a chunk; nothing if both fit, which the pipeline itself encodes.

    Args:
        pipe: a pipeline of Stable Diffusion 1, 2 or XL.
        prompt: of any length.
        negative: negative prompt, of any length; it is read only with guidance.
        guided: whether there is guidance.

    Returns:
        arguments of the pipeline: embeddings [1, 77 * chunks, width], with as many chunks of both, and of XL also those of the
        whole prompts [1, width], which are the first chunk's.
    """
    texts = {"": prompt, "negative_": negative} if guided else {"": prompt}
    count = max(chunk_count(pipe.tokenizer, text) for text in texts.values())
    if count == 1:
        return {}
    embeddings = {}
    for prefix, text in texts.items():
        embeds, pooled = encoded(pipe, text, count)
        if prefix and not text and pipe.config.get("force_zeros_for_empty_prompt"):  # as the pipeline itself does
            embeds, pooled = embeds.new_zeros(embeds.shape), pooled.new_zeros(pooled.shape)
        embeddings[f"{prefix}prompt_embeds"] = embeds
        if pooled is not None:
            embeddings[f"{prefix}pooled_prompt_embeds"] = pooled
    return embeddings


def encoded(pipe: Any, text: str, count: int) -> tuple[Any, Any]:
    """The embeddings of a prompt in so many chunks, [1, 77 * count, width], and of XL the pooled ones, [1, width], else None."""
    import torch

    is_xl = getattr(pipe, "text_encoder_2", None) is not None
    pairs = [(pipe.tokenizer, pipe.text_encoder), *([(pipe.tokenizer_2, pipe.text_encoder_2)] if is_xl else [])]
    parts, pooled = [], None
    with torch.no_grad():
        for tokenizer, encoder in pairs:
            rows = [torch.tensor([ids]) for ids in _chunk_ids(tokenizer, text, count)]
            if is_xl:
                results = [encoder(row, output_hidden_states=True) for row in rows]
                pooled = results[0][0] if results[0][0].ndim == 2 else pooled
                states = [result.hidden_states[-2] for result in results]
            else:
                states = [encoder(row, attention_mask=None)[0] for row in rows]  # called as the pipeline calls it
            parts.append(torch.cat(states, dim=1))
    return torch.cat(parts, dim=-1), pooled


def _chunk_ids(tokenizer: Any, text: str, count: int) -> list[list[int]]:
    """The token ids of so many chunks, 77 each: the beginning, the chunk, the end, and padding."""
    tokens = _tokens(tokenizer, text)
    parts: list[Sequence[int]] = [tokens[i * CHUNK : (i + 1) * CHUNK] for i in range(count)]
    pad = tokenizer.pad_token_id
    return [[tokenizer.bos_token_id, *part, tokenizer.eos_token_id, *[pad] * (CHUNK - len(part))] for part in parts]


def _tokens(tokenizer: Any, text: str) -> Sequence[int]:
    tokens: Sequence[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids  # verbose: a warning of the length
    return tokens
