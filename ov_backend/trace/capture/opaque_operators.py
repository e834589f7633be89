"""Keep recurrent layers and attention whole in a trace.

An LSTM, a GRU or an RNN over all time steps, in one direction, is one operator: PyTorch's own decompositions write every step
out, and OpenVINO has one operation for all of them. So is attention in a trace with symbolic sizes, where PyTorch would choose
its kernel by conditions on the sizes; afterwards it is written as ``scaled_dot_product_attention`` again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ov_backend.core.autocast_regions import is_float32_kept

_LIBRARY = torch.library.Library("ov_backend", "DEF")
#: PyTorch's functions of whole networks of layers, by the name of our operator for one layer in one direction.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}


def _define(name: str) -> None:
    """Define ``<name>_layer``: x [T, N, I], two weights, two biases, h and c [1, N, H]; its result joins y, h and c in time.

    Only an LSTM has a c; the others ignore what is given and do not return it. The last argument says whether it is computed in
    float32 in every precision.
    """
    function, states = FUNCTIONS[name], 2 if name == "lstm" else 1

    def layer(x: Any, w: Any, r: Any, b: Any, more_b: Any, h: Any, c: Any, reverse: bool, exact: bool) -> torch.Tensor:
        state = (h, c) if name == "lstm" else h
        y, *last = function(x.flip(0) if reverse else x, state, [w, r, b, more_b], True, 1, 0.0, False, False, False)
        return torch.cat([y.flip(0) if reverse else y, *last])

    def shape(x: Any, w: Any, r: Any, b: Any, more_b: Any, h: Any, c: Any, reverse: bool, exact: bool) -> torch.Tensor:
        return x.new_empty((x.shape[0] + states, *h.shape[1:]))

    tensors = ", ".join(f"Tensor {each}" for each in ("x", "w", "r", "b", "more_b", "h", "c"))
    _LIBRARY.define(f"{name}_layer({tensors}, bool reverse, bool exact) -> Tensor")
    _LIBRARY.impl(f"{name}_layer", layer, "CPU")
    _LIBRARY.impl(f"{name}_layer", shape, "Meta")


for _name in FUNCTIONS:
    _define(_name)


class WholeRecurrences(TorchFunctionMode):
    """While active, in this thread, each layer and direction of a recurrent network is one operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = next((name for name, function in FUNCTIONS.items() if func is function), "")
        if name and not kwargs and _is_plain(args):
            return _network(name, *args)
        return func(*args, **(kwargs or {}))


def _is_plain(args: Sequence[Any]) -> bool:
    """Whether a call has no packed sequences, draws no random numbers and has no projections."""
    if len(args) != 9 or not isinstance(args[0], torch.Tensor) or isinstance(args[3], (list, tuple)):
        return False
    _, _states, weights, has_biases, layers, dropout, train, bidirectional, _ = args
    draws = dropout and train and layers > 1
    projects = len(weights) != layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    return not draws and not projects and all(each.device.type == "cpu" for each in weights)


def _network(
    name: str,
    x: torch.Tensor,
    states: Any,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """What PyTorch's function of the same name computes, with the same arguments."""
    operator = getattr(torch.ops.ov_backend, f"{name}_layer")
    given = states if name == "lstm" else (states, states)
    x, steps = (x.transpose(0, 1), x.shape[1]) if batch_first else (x, x.shape[0])
    last: list[list[torch.Tensor]] = [[] for _ in (given if name == "lstm" else given[:1])]
    directions = 2 if bidirectional else 1
    every = _by_layer(weights, has_biases)
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            joined = operator(x, *next(every), *(state[i : i + 1] for state in given), direction == 1, is_float32_kept())
            outputs.append(joined[:steps])
            for k, states_so_far in enumerate(last):
                states_so_far.append(joined[steps + k : steps + k + 1])
        x = torch.cat(outputs, -1)
    return (x.transpose(0, 1) if batch_first else x, *map(torch.cat, last))


def _by_layer(weights: Sequence[torch.Tensor], has_biases: bool) -> Iterator[tuple[torch.Tensor, ...]]:
    """Two weights and two biases for each layer and direction."""
    count = 4 if has_biases else 2
    for start in range(0, len(weights), count):
        own = tuple(weights[start : start + count])
        yield own if has_biases else (*own, *(own[0].new_zeros(own[0].shape[0]) for _ in range(2)))


def _attention_result(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, is_fused: bool) -> torch.Tensor:
    """An empty result in the layout of PyTorch's kernel, which has the heads after the tokens, or of products and a softmax."""
    *batch, tokens, _ = q.shape
    if is_fused:
        return q.new_empty((batch[0], tokens, batch[1], v.shape[-1])).transpose(1, 2)
    return q.new_empty((*batch, tokens, v.shape[-1]))


_LIBRARY.define("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, bool is_fused) -> Tensor")
_LIBRARY.impl("attention", _attention_result, "Meta")

_FUNCTION = torch.nn.functional.scaled_dot_product_attention


class WholeAttention(TorchFunctionMode):
    """While active, in this thread, attention without dropout is one operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _FUNCTION:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **others: Any,
) -> torch.Tensor:
    ranks = {query.dim(), key.dim(), value.dim()}
    if dropout_p or any(others.values()) or len(ranks) > 1 or not _have_heads(query, key, value, enable_gqa):
        named = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, **others}
        return _FUNCTION(query, key, value, **named, **({"enable_gqa": True} if enable_gqa else {}))
    is_fused = _is_fused(is_causal, query, key, value, attn_mask)
    return torch.ops.ov_backend.attention(query, key, value, attn_mask, is_causal, scale, is_fused)


def _is_fused(is_causal: bool, *tensors: torch.Tensor | None) -> bool:
    """Whether PyTorch computes attention by its kernel for the CPU, for tensors of the traced call's sizes."""
    with _disable_current_modes():
        return torch._fused_sdp_choice(*map(_example, tensors), 0.0, is_causal) != 0


def _example(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return tensor if tensor is None else torch.empty_strided(_sizes(tensor.shape), _sizes(tensor.stride()), dtype=tensor.dtype)


def _sizes(sizes: Sequence[Any]) -> list[int]:
    return [size if isinstance(size, int) else size.node.hint for size in sizes]


def _have_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    """Whether key and value have as many heads as the query, or with ``enable_gqa`` a known part of them."""
    heads = [each.shape[-3] if each.dim() > 2 else 1 for each in (query, key, value)]
    if not enable_gqa or not all(isinstance(each, int) for each in heads):
        return query.shape[:-2] == key.shape[:-2]
    return query.shape[:-3] == key.shape[:-3] and all(heads[0] % each == 0 for each in heads[1:])


def write_attention(gm: GraphModule) -> GraphModule:
    """Spell attention as PyTorch does."""
    for node in gm.graph.nodes:
        if node.target is torch.ops.ov_backend.attention.default:
            *tensors, causal, scale, _ = node.args
            node.target = torch.ops.aten.scaled_dot_product_attention.default
            node.args = (*tensors, 0.0, causal)
            node.kwargs = {} if scale is None else {"scale": scale}
    gm.recompile()
    return gm
