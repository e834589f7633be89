"""Write complex arithmetic as real arithmetic on pairs: OpenVINO has no complex numbers, with which rotary embeddings compute.

A complex value becomes a pair of tensors, its real and its imaginary part. Where an operator has no rule here, the pair is made
a complex tensor again, and PyTorch computes it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten, tree_map

from ov_backend.core.autocast_regions import MarkingAgain, is_marked, keeping
from ov_backend.core.fx_utils import output_node, placeholders, storage_of
from ov_backend.trace.lowering.decompose import laid_out, retraced

_aten = torch.ops.aten


@dataclass(frozen=True)
class Pair:
    """A complex value: two real tensors of one shape, or two numbers."""

    re: Any
    im: Any


def _as_pair(value: Any) -> Pair:
    if isinstance(value, Pair):
        return value
    return Pair(value, torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0)


def _times(z: Any, w: Any, multiply: Callable[[Any, Any], Any]) -> Pair:
    if not isinstance(z, Pair):
        return Pair(multiply(z, w.re), multiply(z, w.im))
    if not isinstance(w, Pair):
        return Pair(multiply(z.re, w), multiply(z.im, w))
    return Pair(multiply(z.re, w.re) - multiply(z.im, w.im), multiply(z.re, w.im) + multiply(z.im, w.re))


def _plus(z: Any, w: Any, *, alpha: Any = 1) -> Pair:
    z, w = _as_pair(z), _as_pair(_times(w, alpha, torch.mul) if isinstance(w, Pair) and alpha != 1 else w)
    return Pair(z.re + w.re, z.im + w.im)


def _polar(absolute: torch.Tensor, angle: torch.Tensor) -> Pair:
    return Pair(absolute * torch.cos(angle), absolute * torch.sin(angle))


def _parts(x: torch.Tensor) -> Pair:
    """Of pairs in the last dimension; the CPU device picks every second element three times as slowly as it transposes."""
    parts = x.movedim(-1, 0)
    return Pair(parts[0], parts[1])


def _conjugate(z: Pair) -> Pair:
    return Pair(z.re, -z.im)


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.view_as_complex.default: _parts,
    _aten.view_as_real.default: lambda z: torch.stack((z.re, z.im)).movedim(0, -1).contiguous(),
    _aten.complex.default: Pair,
    _aten.polar.default: _polar,
    _aten.abs.default: lambda z: torch.sqrt(z.re * z.re + z.im * z.im),
    _aten._conj.default: _conjugate,
    _aten._conj_physical.default: _conjugate,
    _aten.mul.Tensor: lambda z, w: _times(z, w, torch.mul),
    _aten.mm.default: lambda z, w: _times(z, w, torch.mm),
    _aten.bmm.default: lambda z, w: _times(z, w, torch.bmm),
    _aten.add.Tensor: _plus,
    _aten.sub.Tensor: lambda z, w, *, alpha=1: _plus(z, _times(_as_pair(w), -alpha, torch.mul)),
    operator.getitem: operator.getitem,
    _aten.div.Tensor: lambda z, w: NotImplemented if isinstance(w, Pair) else Pair(z.re / w, z.im / w),
}
#: Operators of which each part of a result comes from that part of the values, beside those that make views.
_OF_EACH_PART = frozenset(
    {_aten.clone, _aten.cat, _aten.stack, _aten.index, _aten.gather, _aten.index_select, _aten.repeat, _aten.flip}
    | {_aten._unsafe_view, _aten.neg, _aten.sum, _aten.mean}
)


def complex_pairs(gm: GraphModule) -> GraphModule:
    """The graph with pairs in the place of complex tensors; the graph itself if it has none, or returns a view of one."""
    nodes = [node for node in gm.graph.nodes if _is_complex(node.meta.get("val"))]
    owners = Counter(map(storage_of, {*output_node(gm).all_input_nodes, *placeholders(gm)}))
    if all(node.op == "placeholder" for node in nodes) or any(owners[storage_of(node)] > 1 for node in nodes):
        return gm
    return retraced(gm, {}, _InPairs(gm))


def _is_complex(value: Any) -> bool:
    return isinstance(value, complex) or (isinstance(value, torch.Tensor) and value.is_complex())


class _InPairs(MarkingAgain):
    """Runs a graph with pairs in the place of complex tensors."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self._pairs: dict[int, Pair] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return tree_map(_whole, super().run(*args, **kwargs))

    def run_node(self, n: Node) -> Any:
        if rule := _rule_of(n.target):
            args, kwargs = tree_map(self._pair, self.fetch_args_kwargs_from_env(n))
            if _is_complex(n.meta.get("val")) or any(isinstance(each, Pair) for each in tree_flatten((args, kwargs))[0]):
                with keeping(is_marked(n)):
                    result = rule(*args, **kwargs)
                if result is not NotImplemented and _is_like(result, n.meta.get("val")):
                    return _as_node(result, n)
        return _as_node(super().run_node(n), n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_function(target, *tree_map(_whole, (args, kwargs)))

    def _pair(self, value: Any) -> Any:
        if isinstance(value, complex):
            return Pair(value.real, value.imag)
        if not _is_complex(value):
            return value
        if id(value) not in self._pairs:
            self._pairs[id(value)] = _parts(torch.view_as_real(value))
        return self._pairs[id(value)]


def _as_node(result: Any, node: Node) -> Any:
    """A real tensor with the strides that PyTorch gives it; anything else as it is."""
    is_real = isinstance(result, torch.Tensor) and not result.is_complex() and node.op == "call_function"
    return laid_out(result, node.meta["val"]) if is_real else result


def _rule_of(target: Any) -> Callable[..., Any] | None:
    if target in _RULES:
        return _RULES[target]
    if getattr(target, "overloadpacket", None) not in _OF_EACH_PART and not _is_view(target):
        return None

    # the parts have other strides: what can be viewed in a shape is what can be reshaped without a copy
    target = _aten.reshape.default if target is _aten.view.default else target

    def rule(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in tree_flatten(args)[0] if isinstance(each, torch.Tensor)]
        if "dtype" in kwargs or any(each.is_floating_point() for each in tensors):
            return NotImplemented
        re, im = (target(*tree_map(part, args), **kwargs) for part in (_re, _im))
        return list(map(Pair, re, im)) if isinstance(re, (list, tuple)) else Pair(re, im)

    return rule


def _is_view(target: Any) -> bool:
    """Whether an operator's result is made of elements of its argument."""
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    by_memory = target in (_aten.view.dtype, _aten.as_strided.default)
    return not by_memory and any(each.alias_info and not each.alias_info.is_write for each in returns)


def _re(value: Any) -> Any:
    return value.re if isinstance(value, Pair) else value


def _im(value: Any) -> Any:
    return value.im if isinstance(value, Pair) else value


def _whole(value: Any) -> Any:
    return torch.complex(value.re, value.im) if isinstance(value, Pair) else value


def _is_like(result: Any, value: Any) -> bool:
    """Whether a result has the shapes and dtypes that PyTorch gives it."""
    if isinstance(result, list):
        return len(result) == len(value) and all(map(_is_like, result, value))
    dtype = value.real.dtype if value.is_complex() else value.dtype
    return all((part.shape, part.dtype) == (value.shape, dtype) for part in {_re(result), _im(result)})
