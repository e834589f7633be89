"""Decompositions of operators: for the user's choice, and for what the converter refuses or gets wrong."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from ov_backend.core.errors import SettingsError, short_repr

_aten = torch.ops.aten
#: By operator, the function that computes it with smaller operators.
Table = Mapping[Any, Callable[..., Any]]
#: Operators that PyTorch decomposes into ``as_strided``; what OpenVINO computes has other strides than in eager.
_BY_STRIDES = frozenset({_aten.diagonal.default, _aten.unfold.default})
#: Operators whose decomposition asks for a sign bit, which has the dtype of its input in a trace, and is a boolean when it runs.
_BOOLEAN = frozenset({_aten.signbit.default, _aten.copysign.Tensor, _aten.copysign.Scalar})
#: Operators whose decomposition by PyTorch is wrong: this one's reads labels behind the first negative one, which ends them.
_WRONG = frozenset({_aten.multilabel_margin_loss_forward.default})
#: Numbers from here on are rounded to infinity.
_INFINITE_IN_FLOAT16 = 65520.0
_FLOAT16 = torch.finfo(torch.float16)


def var_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance with any correction, and the mean, over ``dim`` (over all dimensions if it is None or empty)."""
    dims = [d % x.dim() for d in dim] if dim and x.dim() else list(range(x.dim()))
    count = math.prod(x.shape[d] for d in dims)
    mean = x.mean(dims, True)
    deviations = x - mean
    deviations = deviations - deviations.mean(dims, True)  # float32 rounds the mean of large values that differ little
    squares = deviations.square().sum(dims, keepdim)
    divisor = count - (1 if correction is None else correction)
    return squares * (1 / divisor if divisor > 0 else math.inf), mean if keepdim else mean.squeeze(dims)


def _var(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> torch.Tensor:
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> torch.Tensor:
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0].sqrt()


def argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The first position of the largest integer; OpenVINO's own operator takes any of several equal ones."""
    if x.is_floating_point() or x.dtype is torch.bool or not x.dim():
        return NotImplemented
    flat, axis = (x.reshape(-1), 0) if dim is None else (x, dim % x.dim())
    size = flat.shape[axis]
    from_end = torch.arange(size, 0, -1, dtype=torch.int32).reshape([-1 if d == axis else 1 for d in range(flat.dim())])
    is_largest = flat == flat.max(axis, keepdim=True)[0]
    first = size - (is_largest * from_end).max(axis, keepdim=keepdim)[0].to(torch.int64)
    return first.reshape([1] * x.dim()) if dim is None and keepdim else first


def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Running sums of integers in the dtype of the result; OpenVINO sums in that of ``x``, which may be too narrow."""
    result = dtype or torch.int64
    if x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is result:
        return NotImplemented
    return torch.cumsum(x.to(result), dim, dtype=result)


def gather(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> torch.Tensor:
    """Positions for a part of ``x`` only, along the other dimensions; OpenVINO asks for some for the whole of it."""
    smaller = [d for d in range(x.dim()) if d != dim % x.dim() and index.shape[d] != x.shape[d]]
    if not smaller:
        return NotImplemented
    for d in smaller:
        x = x.narrow(d, 0, index.shape[d])
    return torch.gather(x, dim, index)


def to_copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **rest: Any) -> torch.Tensor:
    """Integers as float16: those beyond its range become infinite; OpenVINO computes in more bits and would keep them.

    Integers as booleans: of int32, OpenVINO takes the smallest for 0.
    """
    if dtype is torch.bool and x.dtype is torch.int32:
        return x.to(torch.float32) != 0
    if dtype is not torch.float16 or x.dtype not in (torch.int32, torch.int64):
        return NotImplemented
    wide = x.to(torch.float32)
    return torch.where(wide.abs() >= _INFINITE_IN_FLOAT16, wide.sign() * math.inf, wide).to(torch.float16)


def mul(x: Any, y: Any) -> torch.Tensor:
    """A product of float16 with a number that float16 cannot hold, in float32 as PyTorch's kernel computes it.

    The converter would make 0 of a small number and infinity of a large one.
    """
    return _in_float32(_aten.mul.Tensor, x, y) if _is_beyond_float16(y) else NotImplemented


def div(x: Any, y: Any) -> torch.Tensor:
    """As :func:`mul`; in PyTorch, too, only the second number is not rounded."""
    return _in_float32(_aten.div.Tensor, x, y) if _is_beyond_float16(y) else NotImplemented


def _in_float32(operator: Callable[..., torch.Tensor], x: Any, y: Any) -> torch.Tensor:
    if torch.result_type(x, y) is not torch.float16:
        return NotImplemented
    wide = (each.to(torch.float32) if isinstance(each, torch.Tensor) else each for each in (x, y))
    return operator(*wide).to(torch.float16)


def _is_beyond_float16(value: Any) -> bool:
    """Whether float16 cannot hold a number; of a tensor without dimensions, whether it may be so."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype in (torch.float32, torch.float64)
    return isinstance(value, float) and value != 0 and not _FLOAT16.tiny <= abs(value) <= _FLOAT16.max


def where(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A choice between booleans, or a boolean and a number, which OpenVINO cannot convert or compile.

    It takes booleans and bytes for the same, so that the types of a choice between the two are not what they should be.
    """
    if x.dtype is y.dtype is torch.bool:
        return (condition & x) | (~condition & y)
    if torch.bool in (x.dtype, y.dtype):
        dtype = torch.result_type(x, y)
        wide = torch.int32 if dtype is torch.uint8 else dtype
        return torch.where(condition, x.to(wide), y.to(wide)).to(dtype)
    return NotImplemented


def addmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """A sum with a product where one part has the factor 0: PyTorch does not read it, so NaN and infinity in it are no matter."""
    if alpha:
        return _product(torch.mm, a, b, beta, alpha)
    return (x * beta if beta else torch.zeros((), dtype=x.dtype)).expand(a.shape[0], b.shape[1]).clone()


def baddbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """As :func:`addmm`, of batches; there PyTorch reads a product with the factor 0."""
    return _product(torch.bmm, a, b, beta, alpha)


def addcmul(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1) -> torch.Tensor:
    """x + value a b, multiplied from the left as PyTorch does it; OpenVINO multiplies a and b first, which may overflow."""
    return NotImplemented if value == 1 or not x.is_floating_point() else x + a * value * b


def addcdiv(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: float = 1) -> torch.Tensor:
    """x + value a / b, as :func:`addcmul`."""
    return NotImplemented if value == 1 or not x.is_floating_point() else x + a * value / b


def _product(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], a: torch.Tensor, b: torch.Tensor, beta: float, alpha: float
) -> torch.Tensor:
    if beta:
        return NotImplemented
    return multiply(a, b) if alpha == 1 else multiply(a, b) * alpha


#: Below this, five terms of the series of :func:`log1p` and :func:`expm1` are as exact as float32.
_SMALL = 0.05
#: Beyond this log(1 + exp(x)) is x, to 5e-6; and float16 holds the exponential of this.
_LARGE = 10.0


def log1p(x: torch.Tensor) -> torch.Tensor:
    """The logarithm of 1 + x; OpenVINO adds the 1, and so loses the digits of a small x."""
    series = x * (1 - x * (1 / 2 - x * (1 / 3 - x * (1 / 4 - x / 5))))
    return torch.where(x * x < _SMALL**2, series, torch.log(1 + x))


def expm1(x: torch.Tensor) -> torch.Tensor:
    """exp(x) - 1; OpenVINO subtracts the 1, and so loses the digits of a small x."""
    series = x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5))))
    return torch.where(x * x < _SMALL**2, series, torch.exp(x) - 1)


def elu(x: torch.Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> torch.Tensor:
    """ELU, CELU and SELU by :func:`expm1`; OpenVINO's own loses the digits of a small x."""
    is_itself = torch.logical_or(x > 0, x.isnan())
    return torch.where(is_itself, x * scale, expm1(x * input_scale) * (alpha * scale))


def mish(x: torch.Tensor) -> torch.Tensor:
    """x tanh(log(1 + exp(x))) by :func:`log1p`; OpenVINO's own loses the digits of exp(x) beside 1."""
    return x * torch.tanh(torch.where(x > _LARGE, x, log1p(torch.exp(x))))


def log_sigmoid_forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of a sigmoid, and a buffer for the gradient; OpenVINO's own is minus infinity where the sigmoid is 0."""
    exponential = torch.exp(-x.abs())
    result = torch.clamp(x, max=0) - log1p(exponential)  # as PyTorch: a loss may leave the logarithm of a negative x alone
    return torch.where(x.isnan(), x, result), exponential  # OpenVINO's exponential of NaN is infinite


def binary_cross_entropy_with_logits(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """The loss by :func:`log_sigmoid_forward`; ``reduction`` is 0 for none, 1 for the mean, 2 for the sum."""
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x - factor * log_sigmoid_forward(x)[0]
    loss = loss if weight is None else loss * weight
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax that is 0 where all values are minus infinity."""
    empty = (x == -math.inf).all(dim, keepdim=True)
    return torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, x), dim, dtype=dtype))


#: Operators that OpenVINO gets wrong as one operator, and right when they are decomposed.
OPENVINO_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _aten.var.correction: _var,
    _aten.std.correction: _std,
    _aten.var_mean.correction: var_mean,
    _aten.argmax.default: argmax,
    _aten.cumsum.default: cumsum,
    _aten.gather.default: gather,
    _aten.mul.Tensor: mul,
    _aten.div.Tensor: div,
    _aten.where.self: where,
    _aten.log1p.default: log1p,
    _aten.expm1.default: expm1,
    _aten.elu.default: elu,
    _aten.celu.default: lambda x, alpha=1.0: elu(x, alpha, 1, 1 / alpha),
    _aten.mish.default: mish,
    _aten.log_sigmoid_forward.default: log_sigmoid_forward,
    _aten.binary_cross_entropy_with_logits.default: binary_cross_entropy_with_logits,
    _aten.addcmul.default: addcmul,
    _aten.addcdiv.default: addcdiv,
    _aten.addmm.default: addmm,
    _aten.baddbmm.default: baddbmm,
    _aten._to_copy.default: to_copy,
    _aten.expand_copy.default: lambda x, size, *, implicit=False: x.expand(size).clone(),  # the converter crashes on it
}
if hasattr(_aten, "_safe_softmax"):  # since torch 2.5
    OPENVINO_DECOMPOSITIONS[_aten._safe_softmax.default] = safe_softmax


@functools.lru_cache(maxsize=256)
def selected(names: tuple[str, ...]) -> Mapping[Any, Callable[..., Any]]:
    """PyTorch's decompositions of operators named as ``aten.silu.default``, or ``aten.silu`` for all its overloads.

    Raises:
        SettingsError: PyTorch has no decomposition for one of them.
    """
    table: dict[Any, Callable[..., Any]] = {}
    for name in names:
        rules = {op: rule for op, rule in decomposition_table.items() if name in (str(op), str(op).rpartition(".")[0])}
        if not rules:
            raise SettingsError(f"decompositions holds {short_repr(name)}, which PyTorch cannot decompose; leave it out.")
        table.update(rules)
    return table


def available(operators: Iterable[Any]) -> Table:
    """PyTorch's decompositions of operators, without those that read strides, have another dtype or are wrong."""
    left_out = _BY_STRIDES | _BOOLEAN | _WRONG
    return {op: decomposition_table[op] for op in operators if op in decomposition_table and op not in left_out}


def decompositions(names: tuple[str, ...], refused: Iterable[Any] = ()) -> Table:
    """The decompositions of a graph: the user's choice takes precedence over ours, and ours over PyTorch's of what was
    refused.
    """
    return {**available(refused), **OPENVINO_DECOMPOSITIONS, **selected(names)}
