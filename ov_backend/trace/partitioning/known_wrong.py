"""Operators that the converter accepts and gets wrong.

They were found with PyTorch's own operator database (``tests/integration/operators``). ``FAULTS`` names the operators, and the
arguments with which they are wrong. Such an operator stays in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import Node

from ov_backend.core.fx_utils import is_getitem, values_read
from ov_backend.core.settings import operator_name
from ov_backend.trace.partitioning.cancelling_constants import takes_back
from ov_backend.trace.partitioning.packets import argument, aten_packets, packet_of

Test = Callable[[Node], bool]

#: Of PT2E quantization; OpenVINO turns each pair, and the operators between the pairs, into int8 arithmetic. They are named by
#: strings because torch.ao registers them when it is imported, which may be after this module.
QUANTIZERS = frozenset(
    f"quantized_decomposed.{verb}_per_{scope}.default" for verb in ("quantize", "dequantize") for scope in ("tensor", "channel")
)


@dataclass(frozen=True)
class Fault:
    """What OpenVINO computes wrongly: overloads of operators of these names (without names of all), where the condition is
    true.
    """

    operators: tuple[str, ...]
    condition: Test
    reason: str


def reason(node: Node) -> str:
    """Why this operator stays in PyTorch although OpenVINO has a conversion, or ""."""
    return next((fault.reason for fault in _BY_PACKET.get(packet_of(node), _OF_ALL) if fault.condition(node)), "")


def _with_any_arguments(node: Node) -> bool:
    return True


def _ceil_mode(node: Node) -> bool:
    return bool(argument(node, "ceil_mode", False))


def _inexact_scale(node: Node) -> bool:
    """The output size is not the input size times the scale. PyTorch computes with the scale then, and it is not passed on."""
    source = node.all_input_nodes[0].meta["val"].shape[2:]
    result = node.meta["val"].shape[2:]
    scales = [argument(node, name) for name in ("scales", "scales_d", "scales_h", "scales_w")]
    scales = [scale for scale in scales if scale is not None] or list(argument(node, "scale_factors") or [])
    return any(abs(before * scale - after) > 1e-6 for before, scale, after in zip(source, scales, result))


def _of_infinite_order(node: Node) -> bool:
    """A norm that is the largest absolute value, or the smallest; or one whose shape PyTorch 2.11 traces wrongly."""
    source, dims = node.all_input_nodes[0].meta["val"], argument(node, "dim", None)
    kept = argument(node, "keepdim", False) or (dims is not None and not dims and not source.dim())
    rank = source.dim() if kept else source.dim() - (len(dims) if dims else source.dim())
    return math.isinf(float(argument(node, "ord", 2))) or node.meta["val"].dim() != rank


def _scalar_result(node: Node) -> bool:
    return bool(node.meta["val"].dim() == 0)


def _floating_point(node: Node) -> bool:
    value = node.all_input_nodes[0].meta["val"]
    return bool(value.dtype.is_floating_point)


def _floating_result(node: Node) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


def _unpaired(node: Node) -> bool:
    """A quantization whose result is not dequantized at once, or a dequantization of stored integers."""
    if operator_name(node.target) not in QUANTIZERS and packet_of(node) not in _QUANTIZERS_OF_ATEN:
        return False
    dequantizes = "dequantize" in str(node.target)
    neighbours = node.all_input_nodes[:1] if dequantizes else list(node.users)
    return any("quantize_per" not in str(n.target) or ("dequantize" in str(n.target)) is dequantizes for n in neighbours)


def _beyond_float16(node: Node) -> bool:
    """A number among the arguments is no float16, in an operator on float16; PyTorch computes it in float32."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float16:
        return False
    numbers = [abs(argument) for argument in node.args if isinstance(argument, (int, float))]
    return any(torch.finfo(torch.float16).max < number < _OPEN_END for number in numbers)


def _infinite_in_bfloat16(node: Node) -> bool:
    """A number among the arguments is infinite, in an operator on bfloat16."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.bfloat16:
        return False
    return any(isinstance(argument, float) and math.isinf(argument) for argument in node.args)


def _integers_beyond_float16(node: Node) -> bool:
    """A mixture of integers of 32 or 64 bits with float16; a mere conversion is decomposed instead."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.float16 or packet_of(node) in _READS_POSITIONS:
        return False
    tensors = [tensor for source in node.all_input_nodes for tensor in values_read(source)]
    return any(tensor.dtype in (torch.int32, torch.int64) for tensor in tensors)


def _attends_past_the_keys(node: Node) -> bool:
    """There are more values than keys, or fewer; PyTorch's kernels read what they find there."""
    key, value = (node.args[i].meta["val"] for i in (1, 2))
    return bool(key.shape[-2] != value.shape[-2])


def _after_rounding(node: Node) -> bool:
    """A number in a half precision is compared with one in another: only its rounding may tell the two apart."""
    operands = [each for each in node.args[:2] if isinstance(each, Node) and each.meta["val"].is_floating_point()]
    dtypes = [each.meta["val"].dtype for each in operands]
    copied = [each.args[0] for each in operands if packet_of(each) in _TO_COPY]
    sources = [source.meta["val"].dtype for source in copied if isinstance(source, Node)]
    widened = [dtype for dtype in sources if dtype in (torch.float16, torch.bfloat16)]
    return len(operands) == 2 and len({*dtypes, *widened}) > 1


def _whole_of_half(node: Node) -> bool:
    """A number in a half precision becomes an integer: only its rounding may decide which."""
    source = node.all_input_nodes[0].meta.get("val") if node.all_input_nodes else None
    result = node.meta["val"].dtype
    is_integer = not result.is_floating_point and not result.is_complex and result is not torch.bool
    return is_integer and isinstance(source, torch.Tensor) and source.dtype in (torch.float16, torch.bfloat16)


def _numbers_in_bool(node: Node) -> bool:
    """It takes booleans for numbers, where PyTorch refuses them; a mere choice or a logical operator does not."""
    packet, value = packet_of(node), node.meta.get("val")
    if packet in _REFUSES_ANY_BOOL:
        return any(each.dtype is torch.bool for source in node.all_input_nodes for each in values_read(source))
    first = node.all_input_nodes[0] if node.all_input_nodes else None
    if packet not in _REFUSES_BOOL or first is None or isinstance(value, (int, float)):
        return False
    return any(each.dtype is torch.bool for each in values_read(first))


def _boolean(node: Node) -> bool:
    return bool(node.meta["val"].dtype is torch.bool)


def _rounded_quotient(node: Node) -> bool:
    return argument(node, "rounding_mode") is not None


def _positions_read(node: Node) -> bool:
    """The second result, the positions of the values, is used."""
    return any(is_getitem(user) and user.args[1] == 1 for user in node.users)


def _may_divide_by_zero(node: Node) -> bool:
    """Integers are divided by a tensor, whose values are not known, or by a zero."""
    divisor = argument(node, "other")
    is_tensor = isinstance(divisor, Node) and isinstance(divisor.meta.get("val"), torch.Tensor)
    return not _floating_result(node) and (is_tensor or divisor == 0)


def _integers_to_float(node: Node) -> bool:
    """The arguments of a limit are integers, and its result is not."""
    return not _floating_point(node) and bool(node.meta["val"].dtype.is_floating_point)


def _nearest(node: Node) -> bool:
    return argument(node, "interpolation_mode") == 1


def _far(node: Node) -> bool:
    """Elements are moved by more places than an int32 holds."""
    shifts = argument(node, "shifts")
    return any(isinstance(shift, int) and abs(shift) >= 1 << 31 for shift in ([shifts] if isinstance(shifts, int) else shifts))


def _adds_where_true(node: Node) -> bool:
    """Values are added at the places that a mask marks."""
    indices = [each for each in argument(node, "indices") if isinstance(each, Node)]
    return bool(argument(node, "accumulate", False)) and any(_is_mask(each) for each in indices)


def _is_mask(node: Node) -> bool:
    return node.meta["val"].dtype in (torch.bool, torch.uint8)


def _decimals(node: Node) -> bool:
    return bool(argument(node, "decimals", 0))


#: Slices to the end have a larger one.
_OPEN_END = 1 << 62
#: Operators that read integers as positions in a tensor of floats.
_READS_POSITIONS = frozenset(
    aten_packets(
        *("embedding", "gather", "index", "index_select", "index_put", "scatter", "scatter_add", "scatter_reduce", "index_add"),
        *("index_copy", "index_fill", "_unsafe_index", "take", "_to_copy"),
    )
)
#: Operators that PyTorch refuses for booleans: if any argument is one, or if the first is.
_REFUSES_ANY_BOOL = frozenset(aten_packets("sub", "rsub"))
_REFUSES_BOOL = frozenset(
    aten_packets(
        *("_softmax", "_log_softmax", "softmax", "log_softmax", "gelu", "silu", "relu", "hardswish", "softplus", "mish", "glu"),
        *("mm", "bmm", "addmm", "baddbmm", "round", "argmax", "argmin", "topk", "leaky_relu", "elu", "hardtanh", "hardsigmoid"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"),
        *("upsample_bicubic2d", "upsample_trilinear3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d", "convolution"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d"),
        *("replication_pad3d", "neg", "floor", "ceil", "trunc", "frac", "cross"),
    )
)
_TO_COPY = frozenset(aten_packets("_to_copy"))
_QUANTIZERS_OF_ATEN = frozenset(aten_packets("quantize_per_tensor", "quantize_per_channel"))
_ALWAYS = _with_any_arguments
#: Where several are true of a node, the first is told.
FAULTS: tuple[Fault, ...] = (
    Fault((), _numbers_in_bool, "PyTorch does not compute it with booleans, and OpenVINO does"),
    Fault((), _integers_beyond_float16, "turns integers into float16, and OpenVINO keeps those that are too large for it"),
    Fault((), _unpaired, "OpenVINO converts pairs of quantize and dequantize only, and stored integers wrongly"),
    Fault(
        ("remainder", "fmod"),
        _may_divide_by_zero,
        "PyTorch raises where integers are divided by zero, and OpenVINO does not",
    ),
    Fault(
        ("add", "sub", "rsub", "mul", "div"),
        _infinite_in_bfloat16,
        "computes with an infinite number in bfloat16, of which OpenVINO makes the largest finite one",
    ),
    Fault(("amax", "amin"), _ALWAYS, "OpenVINO answers with a number where a value is NaN"),
    Fault(
        ("linalg_vector_norm",),
        _of_infinite_order,
        "its order is infinite, where OpenVINO overlooks NaN, or PyTorch traced it in a wrong shape",
    ),
    Fault(("logsumexp", "logaddexp"), _ALWAYS, "OpenVINO answers with NaN where all values are minus infinity"),
    Fault(("argmax", "argmin"), _floating_point, "among equal values OpenVINO does not choose the first"),
    Fault(("max", "min", "sort", "topk"), _positions_read, "among equal values OpenVINO chooses others than PyTorch"),
    Fault(
        ("avg_pool1d", "avg_pool2d", "avg_pool3d"),
        _ceil_mode,
        "OpenVINO weighs the last window of ceil_mode differently",
    ),
    Fault(
        (
            *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
            *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
        ),
        _inexact_scale,
        "the scale differs from the ratio of the sizes, which is what OpenVINO uses",
    ),
    Fault(("_embedding_bag", "_embedding_bag_forward_only"), _ALWAYS, "OpenVINO sums the bags differently"),
    Fault(("_cdist_forward",), _ALWAYS, "OpenVINO computes it by a difference of squares, which overflows"),
    Fault(("as_strided",), _ALWAYS, "OpenVINO does not know a tensor's strides"),
    Fault(("erfinv",), _ALWAYS, "OpenVINO's approximation is coarser"),
    Fault(("erfc",), _ALWAYS, "OpenVINO subtracts an erf from 1, which leaves no digits of a small result"),
    Fault(
        ("add", "sub", "rsub"),
        takes_back,
        "it takes back a number that was added, and OpenVINO leaves out the rounding of the sum",
    ),
    Fault(("binary_cross_entropy",), _ALWAYS, "PyTorch refuses numbers beyond 0 and 1"),
    Fault(("clamp", "clamp_min", "clamp_max"), _integers_to_float, "OpenVINO rounds the limits to whole numbers"),
    Fault(("gcd",), _ALWAYS, "OpenVINO's conversion of it fails"),
    Fault(("floor_divide",), _ALWAYS, "OpenVINO rounds quotients of infinite or negative numbers otherwise"),
    Fault(("div",), _rounded_quotient, "OpenVINO rounds quotients in 32 bits"),
    Fault(("remainder", "fmod"), _floating_result, "OpenVINO subtracts a multiple that is rounded where it is large"),
    Fault(
        ("eq", "ne", "lt", "le", "gt", "ge"),
        _after_rounding,
        "it compares numbers of two precisions, and OpenVINO leaves out the rounding to the lower one",
    ),
    Fault(
        ("_to_copy",),
        _whole_of_half,
        "it makes integers of a half precision, and OpenVINO leaves out the rounding to that before",
    ),
    Fault(("masked_fill",), _boolean, "OpenVINO's conversion of it fails for bool"),
    Fault(("atan2",), _ALWAYS, "OpenVINO has no angle of two infinite numbers"),
    Fault(("kthvalue",), _ALWAYS, "OpenVINO keeps the dimension"),
    Fault(
        ("scaled_dot_product_attention",),
        _attends_past_the_keys,
        "it has another number of values than of keys, which PyTorch answers in its own way",
    ),
    Fault(
        ("linalg_ldl_solve", "linalg_lu_solve", "lu_unpack"),
        _ALWAYS,
        "a trace of it would run on made-up pivots, which ends the process",
    ),
    Fault(("linspace",), _ALWAYS, "OpenVINO counts from the start only"),
    Fault(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _ALWAYS, "OpenVINO smooths differently"),
    Fault(("round",), _decimals, "OpenVINO rounds to whole numbers only"),
    Fault(("repeat",), _scalar_result, "OpenVINO does not write the result of a scalar"),
    Fault(("expand", "expand_copy"), _scalar_result, "OpenVINO's compiler crashes where it is alone"),
    Fault(("grid_sampler_2d", "grid_sampler"), _nearest, "OpenVINO rounds positions between two pixels otherwise"),
    Fault(("roll",), _far, "OpenVINO cuts the number of places off"),
    Fault(("rot90",), _ALWAYS, "OpenVINO does not write the whole result"),
    Fault(("index_put", "_unsafe_index_put"), _adds_where_true, "OpenVINO writes what is to be added where a mask is true"),
    Fault((), _beyond_float16, "computes with a number that float16 does not hold"),
)
_OF_ALL = tuple(fault for fault in FAULTS if not fault.operators)
#: The faults of every operator that a table names, those of all operators among them.
_BY_PACKET = {
    packet: tuple(fault for fault in FAULTS if not fault.operators or packet in aten_packets(*fault.operators))
    for packet in aten_packets(*(name for fault in FAULTS for name in fault.operators))
}
