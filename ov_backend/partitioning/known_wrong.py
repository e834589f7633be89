"""Operators that the converter accepts and gets wrong, as PyTorch's own operator database showed (``tests/integration/operators``).

Each is told by its name, or by its name and arguments, and stays in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node

from ov_backend.settings import operator_name

Test = Callable[[Node], bool]


def reason(node: Node) -> str:
    """Why this operator stays in PyTorch although OpenVINO has a conversion, or "".

    Args:
        node: of an ATen graph, with ``meta["val"]``.
    """
    namespace, _, rest = operator_name(node.target).partition(".")
    if namespace not in ("aten", "quantized_decomposed"):
        return ""
    applies, why = _WRONG.get(rest.partition(".")[0], (_never, ""))
    return why if applies(node) else ""


def _never(node: Node) -> bool:
    return False


def _always(node: Node) -> bool:
    return True


def argument(node: Node, name: str, default: Any = None) -> Any:
    """An operator's argument, whether it was given by place or by name."""
    arguments = node.target._schema.arguments
    names = [one.name for one in arguments]
    if name not in names:
        return default
    place = names.index(name)
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, arguments[place].default_value)


def _rounds_up(node: Node) -> bool:
    return bool(argument(node, "ceil_mode", False))


def _odd_scale(node: Node) -> bool:
    """An output size that is not the input's times the scale: the scale is what counts then, and is not passed on."""
    source = node.all_input_nodes[0].meta["val"].shape[2:]
    result = node.meta["val"].shape[2:]
    scales = [argument(node, name) for name in ("scales", "scales_d", "scales_h", "scales_w")]
    scales = [scale for scale in scales if scale is not None] or list(argument(node, "scale_factors") or [])
    return any(abs(before * scale - after) > 1e-6 for before, scale, after in zip(source, scales, result))


def _scalar(node: Node) -> bool:
    return bool(node.meta["val"].dim() == 0)


def _fractional(node: Node) -> bool:
    value = node.all_input_nodes[0].meta["val"]
    return bool(value.dtype.is_floating_point)


def _unpaired(node: Node) -> bool:
    """A quantization that is not undone at once, or an undoing of what is stored in integers."""
    undoes = "dequantize" in str(node.target)
    others = node.all_input_nodes[:1] if undoes else list(node.users)
    return any("quantize_per" not in str(other.target) or ("dequantize" in str(other.target)) is undoes for other in others)


def _decimal(node: Node) -> bool:
    return bool(argument(node, "decimals", 0))


_INFINITE = "OpenVINO answers with the largest number where all values are infinite"
_TIES = "among equal values OpenVINO does not choose the first"

_WRONG: dict[str, tuple[Test, str]] = {
    **dict.fromkeys(["amax", "amin", "logsumexp", "logaddexp", "linalg_vector_norm"], (_always, _INFINITE)),
    **dict.fromkeys(["argmax", "argmin"], (_fractional, _TIES)),
    **dict.fromkeys(
        ["avg_pool1d", "avg_pool2d", "avg_pool3d"], (_rounds_up, "OpenVINO weighs the last window of ceil_mode differently")
    ),
    **dict.fromkeys(
        ["upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d"],
        (_odd_scale, "the scale differs from the ratio of the sizes, which is what OpenVINO uses"),
    ),
    "upsample_bicubic2d": (_odd_scale, "the scale differs from the ratio of the sizes, which is what OpenVINO uses"),
    "_embedding_bag": (_always, "OpenVINO sums the bags differently"),
    "_embedding_bag_forward_only": (_always, "OpenVINO sums the bags differently"),
    "_cdist_forward": (_always, "OpenVINO computes it by a difference of squares, which overflows"),
    "as_strided": (_always, "OpenVINO does not know a tensor's strides"),
    "erfinv": (_always, "OpenVINO's approximation is coarser"),
    "kthvalue": (_always, "OpenVINO keeps the dimension"),
    **dict.fromkeys(
        ["linalg_ldl_solve", "linalg_lu_solve", "lu_unpack"],
        (_always, "a trace of it would run on made-up pivots, which ends the process"),
    ),
    "linspace": (_always, "OpenVINO counts from the start only"),
    **dict.fromkeys(
        [f"{what}quantize_per_{each}" for what in ("", "de") for each in ("tensor", "channel")],
        (_unpaired, "OpenVINO converts pairs of quantize and dequantize only, and stored integers wrongly"),
    ),
    **dict.fromkeys(["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"], (_always, "OpenVINO smooths differently")),
    "round": (_decimal, "OpenVINO rounds to whole numbers only"),
    "repeat": (_scalar, "OpenVINO does not write the result of a scalar"),
    "rot90": (_always, "OpenVINO does not write the whole result"),
}
