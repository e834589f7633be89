"""Decompositions of the backward pass, and of forward operators that save values for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

_aten = torch.ops.aten


def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of a convolution, as convolutions (Dumoulin and Visin, "A guide to convolution arithmetic").

    Args:
        grad: ``[N, K, *out]``.
        x: ``[N, C, *in]``.
        weight: ``[K, C / groups, *kernel]``.
        output_mask: which gradients are computed: of x, of weight, of bias.
    """
    if transposed:
        return NotImplemented
    spatial = tuple(range(2, x.dim()))
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        uncovered = [  # by the windows of the convolution, at the end of each dimension
            x.shape[d] - ((grad.shape[d] - 1) * s - 2 * p + w * (weight.shape[d] - 1) + 1)
            for d, s, p, w in zip(spatial, stride, padding, dilation)
        ]
        grad_x = _aten.convolution(grad, weight, None, stride, padding, dilation, True, uncovered, groups)
    if output_mask[1]:
        grad_weight = _weight_gradient(grad, x, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        grad_bias = grad.sum((0, *spatial))
    return grad_x, grad_weight, grad_bias


def _weight_gradient(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Correlate each input channel with each output channel: a convolution in which batch and channels change places."""
    n, outputs, inputs = x.shape[0], grad.shape[1], x.shape[1]
    # [N, G*c, *in] -> [c, G*N, *in]; [N, G*k, *out] -> [G*k, N, *out]
    swapped = (
        x.reshape(n, groups, inputs // groups, *x.shape[2:]).transpose(0, 2).reshape(inputs // groups, groups * n, *x.shape[2:])
    )
    kernel = grad.transpose(0, 1)
    zeros = [0] * len(stride)
    full = _aten.convolution(swapped, kernel, None, dilation, padding, stride, False, zeros, groups)  # [c, G*k, *kernel or more]
    for d in range(2, weight.dim()):
        full = full.narrow(d, 0, weight.shape[d])
    return full.transpose(0, 1).reshape(outputs, *weight.shape[1:])


def max_pool2d_with_indices_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> torch.Tensor:
    """Each output's gradient goes to the input that it is the maximum of; an input with several outputs gets their sum."""
    lead = x.shape[:-2]
    zeros = torch.zeros((*lead, x.shape[-2] * x.shape[-1]), dtype=grad.dtype)
    flat = zeros.scatter_add(-1, indices.reshape(*lead, -1), grad.reshape(*lead, -1))
    return flat.reshape(x.shape)


@functools.lru_cache(maxsize=1)
def training_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The decompositions for AOTAutograd: of the backward pass, and of forward operators that save values for it.

    Operators that OpenVINO has as one are not decomposed.
    """
    table: dict[Any, Callable[..., Any]] = {op: rule for op, rule in decomposition_table.items() if _is_for_training(op)}
    table[_aten.convolution_backward.default] = convolution_backward
    table[_aten.max_pool2d_with_indices_backward.default] = max_pool2d_with_indices_backward
    return table


def _is_for_training(op: Any) -> bool:
    name = str(op).removeprefix("aten.").partition(".")[0]
    return "backward" in name or name in _FORWARD


#: Operators outside the backward pass that are decomposed in AOTAutograd's graphs.
_FORWARD = frozenset(
    {
        "_unsafe_view",
        "_reshape_alias",
        "native_batch_norm",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "native_layer_norm",
        "native_group_norm",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "mse_loss",
        "threshold",
        "embedding_dense_backward",
        "select_scatter",
        "slice_scatter",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "zeros_like",
        "ones_like",
        "empty_like",
        "rsub",
        "addcmul",
        "addcdiv",
        "masked_fill",
        "sgn",
        "unsafe_split",
        "detach",
    }
)
