"""Encodes prompts that weight words or have a BREAK, and those that are longer than CLIP reads at once: in chunks of 75 tokens.

The embeddings of the chunks are concatenated.

The WebUI encodes long ones so too, but for one thing: it moves what follows the last comma of a chunk into the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ov_backend.hosts.standalone.prompt_weights import between_breaks, has_break, has_emphasis

#: Tokens of a prompt that CLIP reads at once, between the one of the beginning and the one of the end.
CHUNK = 75


def is_short(text: str) -> bool:
    """Whether a prompt is so short that it surely fits into one chunk: a token stands for a character of ASCII or more."""
    return len(text) <= CHUNK and text.isascii() and not has_break(text)


def chunk_count(tokenizer: Any, text: str) -> int:
    """The number of chunks that a prompt needs, at least 1."""
    return 1 if is_short(text) else len(_token_chunks(tokenizer, text))


def long_embeddings(pipe: Any, prompt: str, negative: str, guided: bool) -> dict[str, Any]:
    """The embeddings of two prompts of which one weights words or is longer than a chunk.

    Otherwise nothing, as the pipeline itself encodes them.

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
    if count == 1 and not any(map(has_emphasis, texts.values())):
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
            chunks = list(_chunks(tokenizer, text, count))
            rows = [torch.tensor([ids]) for ids, _ in chunks]
            if is_xl:
                results = [encoder(row, output_hidden_states=True) for row in rows]
                pooled = results[0][0] if results[0][0].ndim == 2 else pooled
                states = [result.hidden_states[-2] for result in results]
            else:
                states = [encoder(row, attention_mask=None)[0] for row in rows]  # called as the pipeline calls it
            parts.append(torch.cat([_weigh(state, weights) for state, (_, weights) in zip(states, chunks)], dim=1))
    return torch.cat(parts, dim=-1), pooled


def _weigh(states: Any, weights: list[float]) -> Any:
    """Multiply the embeddings of a chunk [1, 77, width] by the weights of its tokens, and keep their mean."""
    if all(weight == 1.0 for weight in weights):
        return states
    changed = states * states.new_tensor(weights)[None, :, None]
    return changed * (states.mean() / changed.mean())


def _chunks(tokenizer: Any, text: str, count: int) -> Iterator[tuple[list[int], list[float]]]:
    """The token ids and weights of so many chunks, 77 each: the beginning, the chunk, the end, and padding."""
    chunks = _token_chunks(tokenizer, text)
    for part in [*chunks, *[[]] * (count - len(chunks))]:
        rest = CHUNK - len(part)
        ids = [tokenizer.bos_token_id, *(token for token, _ in part), tokenizer.eos_token_id, *[tokenizer.pad_token_id] * rest]
        yield ids, [1.0, *(weight for _, weight in part), *[1.0] * (rest + 1)]


def _token_chunks(tokenizer: Any, text: str) -> list[list[tuple[int, float]]]:
    """The tokens of a prompt in chunks, each token with the weight of its word; at least one chunk, which may be empty."""
    chunks: list[list[tuple[int, float]]] = []
    for pieces in between_breaks(text):
        tokens: list[tuple[int, float]] = []
        for piece, weight in pieces:
            ids = tokenizer(piece, add_special_tokens=False, verbose=False).input_ids  # verbose: a warning of the length
            tokens += [(token, weight) for token in ids]
        chunks += [tokens[i : i + CHUNK] for i in range(0, max(len(tokens), 1), CHUNK)]
    return chunks[:-1] if len(chunks) > 1 and not chunks[-1] else chunks  # a BREAK at the end begins no chunk
