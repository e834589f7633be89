"""The operators that random graphs are made of, as Python expressions over the values before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)

#: Words in expressions that OpenVINO answers in its own way where an argument is NaN; the documentation lists them.
OWN_NAN = (
    *("relu", "clamp", "max", "min", "sort", "topk", "sign", "==", "!=", "<", ">", "hard", "elu", "arg", "pool", "where"),
    *("logical", "bool", "any", "all", "count", "exp", "normalize", "softplus", "embedding"),
)
#: The same where an argument is not finite.
OWN_INFINITE = (
    "softmax",
    "gelu",
    "attention",
    "conv",
    "norm",
    "glu",
    "std",
    "var",
    "logsumexp",
    "@",
    "linear",
    "einsum",
    "interpolate",
)

Draw = Callable[[Any], Any]
Values = list[torch.Tensor]


class Operator(NamedTuple):
    """One kind of operator.

    Attributes:
        name: for statistics.
        arity: how many values it takes.
        fits: whether it can be applied to these values.
        write: the expression, with ``{0}`` for the first value.
        sums: whether it adds up many values, whose order may differ.
    """

    name: str
    arity: int
    fits: Callable[[Values], bool]
    write: Callable[[Draw, Values], str]
    sums: bool = False


OPERATORS: list[Operator] = []


def is_defined(name: str, values: Values) -> bool:
    """Whether OpenVINO claims to answer an operator as PyTorch does for these values."""
    floats = [value for value in values if value.is_floating_point()]
    if any(word in name for word in OWN_NAN) and any(bool(value.isnan().any()) for value in floats):
        return False
    return not any(word in name for word in OWN_INFINITE) or all(map(_has_finite_squares, floats))


def _has_finite_squares(values: torch.Tensor) -> bool:
    return bool(values.to(torch.float32).square().sum().isfinite())


def _any(values: Values) -> bool:
    return True


def _floating(values: Values) -> bool:
    return all(value.is_floating_point() for value in values)


def _numbers(values: Values) -> bool:
    return all(value.dtype != torch.bool for value in values)


def _integers(values: Values) -> bool:
    return all(value.dtype in INTEGERS for value in values)


def _whole(values: Values) -> bool:
    return all(not value.is_floating_point() for value in values)


def _single(values: Values) -> bool:
    return all(value.dtype == torch.float32 for value in values)


def _has_dims(least: int) -> Callable[[Values], bool]:
    return lambda values: all(value.dim() >= least for value in values)


def _both(*tests: Callable[[Values], bool]) -> Callable[[Values], bool]:
    return lambda values: all(test(values) for test in tests)


def _plain(template: str) -> Callable[[Draw, Values], str]:
    return lambda draw, values: template


def _add(fits: Callable[[Values], bool], *templates: str, sums: bool = False) -> None:
    for template in templates:
        arity = 3 if "{2}" in template else 2 if "{1}" in template else 1
        OPERATORS.append(Operator(template, arity, fits, _plain(template), sums))


def _drawn(
    name: str, arity: int, fits: Callable[[Values], bool], write: Callable[[Draw, Values], str], sums: bool = False
) -> None:
    OPERATORS.append(Operator(name, arity, fits, write, sums))


def _dim(draw: Draw, values: Values) -> int:
    return int(draw(st.integers(-values[0].dim(), values[0].dim() - 1))) if values[0].dim() else 0


def _with_dim(template: str) -> Callable[[Draw, Values], str]:
    return lambda draw, values: template.replace("DIM", str(_dim(draw, values)))


_add(
    _numbers,
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})",
    "-{0}",
    "{0}.abs()",
    "{0}.sign()",
    "torch.relu({0})",
    "{0} / {1}",
    "{0} // {1}",
    "{0} % {1}",
    "torch.fmod({0}, {1})",
    "{0} ** 2",
    "torch.where({0} > {1}, {0}, {1})",
    "torch.true_divide({0}, {1})",
    "torch.div({0}, {1}, rounding_mode='trunc')",
)
_add(
    _any,
    "{0} == {1}",
    "{0} != {1}",
    "{0} < {1}",
    "{0} >= {1}",
    "{0}.logical_not()",
    "torch.logical_and({0}, {1})",
    "torch.logical_xor({0}, {1})",
    "torch.where({0}.bool(), {1}, {2})",
    "{0}.masked_fill({1}.bool(), 1)",
    "{0}.clone()",
    "{0} + 0",
)
_add(
    _floating,
    "torch.sigmoid({0})",
    "torch.tanh({0})",
    "torch.exp({0})",
    "torch.log({0}.abs() + 0.5)",
    "{0}.abs().sqrt()",
    "torch.rsqrt({0}.abs() + 0.25)",
    "{0}.sin()",
    "{0}.cos()",
    "{0}.floor()",
    "{0}.ceil()",
    "{0}.round()",
    "{0}.trunc()",
    "F.gelu({0})",
    "F.silu({0})",
    "F.leaky_relu({0}, 0.1)",
    "F.elu({0})",
    "F.hardswish({0})",
    "F.softplus({0})",
    "torch.erf({0})",
    "1 / {0}",
    "{0}.isnan()",
    "{0}.isinf()",
    "{0}.isfinite()",
    "torch.atan2({0}, {1})",
    "{0}.frac()",
    "torch.expm1({0})",
    "torch.log1p({0}.abs()) + torch.expm1({0} / 1e6) * 1e6",
    "F.logsigmoid({0} * 50)",
    "F.binary_cross_entropy_with_logits({0} * 50, ({1} > 0).to({0}.dtype), reduction='none')",
    "({0} + 12582912.0) - 12582912.0",
    "{0}.nan_to_num(0.5, 2.0, -2.0)",
    "torch.lerp({0}, {1}, 0.25)",
    "torch.addcmul({0}, {1}, {2}, value=0.5)",
)
_add(_whole, "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}")
_add(_integers, "{0} << 1", "{0} >> 1", "torch.bitwise_left_shift({0}, 2)", "torch.gcd({0}, {1})")
for _scalar in ("1", "3", "-2", "0.5", "-1.5", "127", "16777217"):
    _add(_numbers, f"{{0}} + {_scalar}", f"{{0}} * {_scalar}", f"{{0}} // {_scalar}", f"{{0}} % {_scalar}", f"{_scalar} - {{0}}",
         f"{{0}} == {_scalar}", f"{{0}} < {_scalar}", f"{{0}}.clamp(max={_scalar})")  # fmt: skip
_add(_floating, "{0} * float('inf')", "{0} + float('inf')")
_add(_integers, "({0} % 10000).to(torch.float16).to(torch.int32)")
_add(_numbers, "{0}.clamp(-1, 2)", "{0}.clamp(min=0)")

for _name in ("sum", "prod", "any", "all", "amax", "amin", "mean", "logsumexp", "count_nonzero"):
    _fits = {"mean": _floating, "logsumexp": _floating, "amax": _numbers, "amin": _numbers}.get(_name, _any)
    _drawn(_name, 1, _both(_fits, _has_dims(1)), _with_dim(f"{{0}}.{_name}(DIM)"), sums=True)
_add(_any, "{0}.sum()", "{0}.any()", "{0}.all()", sums=True)
_add(_numbers, "{0}.max()", "{0}.min()", "{0}.argmax()", "{0}.sum(dtype=torch.float32)", sums=True)
for _template in ("{0}.max(DIM).values", "{0}.min(DIM).indices", "{0}.argmax(DIM)", "{0}.argmin(DIM, keepdim=True)",
                  "{0}.cumsum(DIM)",
                  "torch.sort({0}, dim=DIM, stable=True).values", "torch.sort({0}, dim=DIM, stable=True).indices",
                  "{0}.topk(1, DIM).values", "torch.cummax({0}, DIM).values",
                  "{0}.sort(DIM, descending=True).values"):  # fmt: skip
    _drawn(_template, 1, _both(_numbers, _has_dims(1)), _with_dim(_template), sums=True)
for _template in ("torch.softmax({0}, DIM)", "torch.log_softmax({0}, DIM)", "{0}.var(DIM)", "{0}.std(DIM, correction=0)",
                  "{0}.norm(dim=DIM)", "F.normalize({0}, dim=DIM)", "F.glu(torch.cat([{0}, {0}], DIM), DIM)"):  # fmt: skip
    _drawn(_template, 1, _both(_floating, _has_dims(1)), _with_dim(_template), sums=True)

_add(
    _has_dims(2), "{0}.mT", "{0}.transpose(0, 1)", "{0}[..., ::2]", "{0}[1:]", "{0}.diagonal()", "{0}.flatten(0, 1)", "{0}[:, -1]"
)
_add(_both(_has_dims(2), _numbers), "{0}.tril()", "{0}.triu(1)")
_add(
    _has_dims(1),
    "{0}[0]",
    "{0}[-1:]",
    "{0}.flip(0)",
    "{0}.roll(1, 0)",
    "{0}.repeat(2, *(1,) * ({0}.dim() - 1))",
    "{0}[..., None]",
    "torch.cat([{0}, {0}])",
    "{0}.unsqueeze(0).expand(2, *{0}.shape)",
    "F.pad({0}, (1, 0))",
    "{0}.split(1)[0]",
    "{0}.unbind(-1)[-1]",
)
_add(
    _any,
    "{0}.reshape(-1)",
    "{0}.unsqueeze(0)",
    "{0}.squeeze()",
    "{0}.contiguous()",
    "torch.stack([{0}, {0}], -1)",
    "torch.cat([{0}.reshape(-1), {1}.reshape(-1)])",
    "torch.broadcast_tensors({0}, {1})[0]",
    "torch.zeros_like({0})",
    "{0}.new_full((2,), 1)",
    "{0}.expand_as({0} + {1}) if {0}.dtype != torch.bool else {0}",
)

_add(
    _both(_floating, _has_dims(2)),
    "{0} @ {1}.mT",
    "{0} @ {0}.mT",
    "torch.einsum('...ij,...kj->...ik', {0}, {1})",
    "F.linear({0}, {1}.reshape(-1, {0}.shape[-1]))",
    sums=True,
)
_add(_both(_numbers, _has_dims(2)), "{0} @ {0}.mT", sums=True)
_add(
    _floating,
    "F.conv1d({0}.reshape(1, 1, -1), {1}.reshape(1, 1, -1)[..., :3], padding=1)",
    "F.conv2d({0}.reshape(1, -1, 1, 1), torch.ones(2, {0}.numel(), 1, 1, dtype={0}.dtype), {1}.reshape(-1)[:2])",
    "F.max_pool1d({0}.reshape(1, 1, -1), 2)",
    "F.avg_pool1d({0}.reshape(1, 1, -1), 2)",
    "F.interpolate({0}.reshape(1, 1, -1), scale_factor=2.0)",
    sums=True,
)
_add(
    _both(_floating, _has_dims(1)),
    "F.layer_norm({0}, {0}.shape[-1:])",
    "F.layer_norm({0}, {0}.shape[-1:], {1}.reshape(-1)[:{0}.shape[-1]])",
    "F.group_norm({0}.reshape(1, -1, 1), 1)",
    "F.rms_norm({0}, {0}.shape[-1:])",
    "F.batch_norm({0}.reshape(1, -1, 1), torch.zeros({0}.numel()), torch.ones({0}.numel()))",
    sums=True,
)
_add(
    _both(_floating, _has_dims(2)),
    "F.scaled_dot_product_attention({0}, {0}, {0}, attn_mask={0}.mT.isfinite().new_ones({0}.shape[-2], {0}.shape[-2]).tril(-1))",
    "F.scaled_dot_product_attention({0}, {0}, {0}, is_causal=True)",
    "F.scaled_dot_product_attention({0}, {0}, {0}, attn_mask=({0} @ {0}.mT) > 0)",
    "torch.softmax(({0} @ {0}.mT).masked_fill(({0} @ {0}.mT).isfinite().triu(1), float('-inf')), -1) @ {0}",
    sums=True,
)

_INDEX = "({1}.to(torch.int64).reshape(-1) % {0}.shape[0])"
_add(
    lambda v: v[0].dim() >= 1 and v[1].dtype in INTEGERS,
    f"{{0}}[{_INDEX}]",
    f"{{0}}.index_select(0, {_INDEX})",
    f"torch.gather({{0}}.reshape(-1), 0, {_INDEX})",
    f"F.one_hot({_INDEX}, {{0}}.shape[0])",
    f"torch.zeros_like({{0}}).index_add(0, {_INDEX}[:{{0}}.shape[0]], {{0}}[:{_INDEX}[:{{0}}.shape[0]].shape[0]])",
)
_add(
    lambda v: v[0].dim() >= 2 and v[1].dtype in INTEGERS,
    f"{{0}}[{_INDEX} - {{0}}.shape[0], {{1}}.to(torch.int64).reshape(-1) % {{0}}.shape[1] - {{0}}.shape[1]]",
)
_add(lambda v: v[0].dim() == 2 and v[1].dtype in (torch.int32, torch.int64), f"F.embedding({_INDEX}, {{0}})")


def _convert(draw: Draw, values: Values) -> str:
    (value,) = values
    targets = [dtype for dtype in DTYPES if not value.is_floating_point() or dtype in FLOATS or _fits_in(value, dtype)]
    return f"{{0}}.to({draw(st.sampled_from(targets))})"


def _fits_in(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the conversion of a float to an integer is defined."""
    wide = value.double()
    if dtype == torch.bool:
        return not bool(wide.isnan().any())
    limits = torch.iinfo(dtype)
    low, high = float(limits.min) - 1, min(float(limits.max), 2.0**62)
    return bool(wide.isfinite().all() and (wide > low).all() and (wide < high).all())


for _ in range(6):  # as often as six others together
    _drawn("to", 1, _any, _convert)
