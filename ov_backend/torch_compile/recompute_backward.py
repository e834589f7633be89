"""Gradients without a backward graph: OpenVINO computes the results, PyTorch computes the gradients when they are needed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

log = logging.getLogger(__name__)


class RecomputeBackward(torch.autograd.Function):
    """Runs a graph in OpenVINO; its backward runs the graph once more in PyTorch and differentiates it."""

    @staticmethod
    def run(
        graph: Callable[..., Any], infer: Callable[[Sequence[Any]], Any], differentiable: Sequence[bool], full: Sequence[Any]
    ) -> Any:
        """Answer one call: ``infer(full)`` computes what the graph does with all inputs, in OpenVINO, without gradients.

        ``differentiable`` says for every tensor that the graph returns whether gradients flow through it.
        """
        _warn_once()
        results = infer(full)
        flat = list(results) if isinstance(results, (tuple, list)) else [results]
        tensors = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
        indices = [i for i, flows in zip(tensors, differentiable) if flows]
        attached = RecomputeBackward.apply(graph, indices, [flat[i] for i in indices], *full)
        for i, tensor in zip(indices, attached):
            flat[i] = tensor
        return type(results)(flat) if isinstance(results, (tuple, list)) else flat[0]

    @staticmethod
    def forward(ctx: Any, graph: Any, indices: list[int], results: list[torch.Tensor], *full: Any) -> Any:
        """Attach the differentiable results, at these indices, to the autograd graph."""
        ctx.graph, ctx.indices = graph, indices
        ctx.autocast = torch.get_autocast_cpu_dtype(), torch.is_autocast_cpu_enabled()
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in full]
        ctx.tensors = [i for i, value in enumerate(full) if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*(full[i] for i in ctx.tensors))
        return tuple(results)

    @staticmethod
    @torch.compiler.disable  # where a compiled function calls ``backward`` itself, Dynamo would compile what follows
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run the graph in PyTorch and compute its gradients, which have gradients themselves under ``create_graph``."""
        again = torch.is_grad_enabled()
        full = list(ctx.others)
        dtype, casts = ctx.autocast
        with torch.enable_grad(), torch.autocast("cpu", dtype=dtype, enabled=casts):  # as around the call
            for i, tensor in zip(ctx.tensors, ctx.saved_tensors):
                # a view of its own of each: one input may have been computed from another
                attached = again and tensor.requires_grad
                full[i] = tensor.view_as(tensor) if attached else tensor.detach().requires_grad_(tensor.requires_grad)
            results = ctx.graph(*full)
        flat = results if isinstance(results, (tuple, list)) else [results]
        pairs = [(flat[i], gradient) for i, gradient in zip(ctx.indices, gradients) if gradient is not None]
        inputs = [i for i in ctx.tensors if full[i].requires_grad]
        outputs, grads = zip(*pairs)
        input_gradients = torch.autograd.grad(outputs, [full[i] for i in inputs], grads, create_graph=again, allow_unused=True)
        by_input = dict(zip(inputs, input_gradients))
        return (None, None, None, *(by_input.get(i) for i in range(len(full))))


@functools.lru_cache(maxsize=1)
def _warn_once() -> None:
    log.warning(
        "Gradients are enabled: openvino_fx computes results in OpenVINO and gradients in PyTorch, which then runs the graph"
        ' a second time. Call the model under torch.no_grad(), or train with options={"aot_autograd": True}.'
    )
