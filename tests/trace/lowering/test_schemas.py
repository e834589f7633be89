"""Every argument of every operator that is rewritten is carried over: it is varied here, or a reason says why it cannot be.

An argument that a later PyTorch adds to a schema, and an operator that is rewritten from now on, fail until someone looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import ov_backend
from ov_backend.core.fx_utils import is_random
from ov_backend.model.conversion import negative_indices, torchscript
from ov_backend.trace.lowering.decompose import decompose
from ov_backend.trace.lowering.decompositions import OPENVINO_DECOMPOSITIONS
from ov_backend.trace.lowering.passes import float_ranges, remove_identities, separate_softmaxes, squeeze_scalars, unify_attention
from ov_backend.trace.lowering.training_decompositions import training_decompositions
from tests.helpers.graphs import assert_close, flat, run_eagerly, traced

aten = torch.ops.aten
if not hasattr(aten, "_safe_softmax"):
    pytest.skip("the schemas are those of PyTorch since 2.5", allow_module_level=True)
Call = tuple[tuple[Any, ...], dict[str, Any]]

#: Decompositions that are used in training alone.
TRAINING = (aten.convolution_backward.default, aten.max_pool2d_with_indices_backward.default)
#: Operators whose other results are for the backward pass.
FIRST = frozenset({"native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training", "log_sigmoid_forward"})
X, PICTURE = torch.randn(3, 4), torch.randn(2, 4, 6, 6)
W, B = torch.randn(4), torch.randn(4)
HEADS, FEWER = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
KERNEL, WIDE = torch.randn(4, 4, 3, 3), torch.randn(2, 4, 4, 4)
WHOLE = torch.randint(0, 9, (3, 4))
FACTORY = {"layout": torch.strided, "device": torch.device("cpu"), "pin_memory": False}


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


VARIANCES = [call(X), call(X, [1]), call(X, [0, 1], correction=0), call(X, [-1], correction=2.0, keepdim=True), call(X, None)]
NORM = [call(X, [4], W, B, 1e-5), call(X, [3, 4], None, None, 0.1), call(X, [4], W, None, 1e-2)]
SOFTMAX = [call(X, 0, False), call(X, -1, False)]
PRODUCTS = [{}, {"beta": 0.5}, {"alpha": 2}, {"beta": 0, "alpha": 3}, {"alpha": 0}, {"beta": 2, "alpha": 0}]
ATTENTION = [
    *(call(HEADS, HEADS, HEADS, **keywords) for keywords in ({}, {"is_causal": True}, {"scale": 0.3})),
    call(HEADS, HEADS, HEADS, attn_mask=torch.randn(5, 5)),
]
RESHAPED = [call(X, [4, 3]), call(X, [12]), call(X[:1, :1], [])]
POOLS = [call(PICTURE, [2, 2]), call(PICTURE, [3, 2], [2, 1], [1, 0], [1, 2], True), call(PICTURE, [3], [2], 1, 1, False)]
INDICES = [
    call(X, [WHOLE[0].clamp(max=2)]),
    call(X, [None, -WHOLE[0].clamp(1, 3)]),
    call(X, [-WHOLE[0, :1] % 3 - 3, WHOLE[0, :1] % 4]),
]

#: By operator, calls of it in which each argument has different values.
CALLS: dict[str, list[Call]] = {
    "aten.var.correction": VARIANCES,
    "aten.std.correction": VARIANCES,
    "aten.var_mean.correction": VARIANCES,
    "aten.argmax.default": [call(WHOLE), call(WHOLE, 1), call(WHOLE, -2, True), call(WHOLE, None, True)],
    "aten.cumsum.default": [call(WHOLE, 0), call(WHOLE, -1, dtype=torch.int32), call(X, 1, dtype=torch.float32)],
    "aten.gather.default": [
        call(X, 0, WHOLE.clamp(max=2)),
        call(X, -1, WHOLE[:2].clamp(max=3)),
        call(X, 1, WHOLE.clamp(max=3), sparse_grad=True),
    ],
    "aten.mul.Tensor": [call(X, X), call(X.half(), 1e-9), call(X.half(), torch.tensor(1e-9))],
    "aten.div.Tensor": [call(X, X.exp()), call(X.half(), 1e9)],
    "aten.where.self": [call(X > 0, X, X * 2), call(X > 0, X > 1, X < 1), call(X > 0, X > 1, X)],
    "aten.log1p.default": [call(X.abs())],
    "aten.expm1.default": [call(X)],
    "aten.elu.default": [call(X), call(X, 0.5), call(X, 0.5, 2.0), call(X, 1, 3, 0.25)],
    "aten.celu.default": [call(X), call(X, 0.5)],
    "aten.mish.default": [call(X)],
    "aten.log_sigmoid_forward.default": [call(X)],
    "aten.binary_cross_entropy_with_logits.default": [
        call(X, X.sigmoid()),
        call(X, X.sigmoid(), W.abs(), None, 0),
        call(X, X.sigmoid(), None, B.abs(), 2),
        call(X, X.sigmoid(), W.abs(), B.abs()),
    ],
    "aten.addcmul.default": [call(X, X, X), call(X, X, X, value=0.5)],
    "aten.addcdiv.default": [call(X, X, X.exp()), call(X, X, X.exp(), value=0.5)],
    "aten.addmm.default": [call(B[:3], X, X.t(), **keywords) for keywords in PRODUCTS],
    "aten.baddbmm.default": [call(X[None, :, :3], X[None], X.t()[None], **keywords) for keywords in PRODUCTS],
    "aten._to_copy.default": [
        *(call(x, dtype=dtype) for x in (X, WHOLE, WHOLE.int()) for dtype in (torch.float16, torch.float32, torch.bool)),
        call(WHOLE, dtype=torch.float16, non_blocking=True, **FACTORY),
        *(call(PICTURE.long(), dtype=dtype, memory_format=torch.channels_last) for dtype in (torch.float16, torch.int64)),
    ],
    "aten.expand_copy.default": [call(X[:, :1], [3, 5]), call(X, [2, 3, 4], implicit=True)],
    "aten._safe_softmax.default": [call(X, 0), call(X, -1, torch.float32)],
    "aten.arange.default": [call(4), call(3.5, dtype=torch.float32, **FACTORY)],
    "aten.arange.start": [call(1, 4), call(2, 4.5, dtype=torch.float32, **FACTORY)],
    "aten.arange.start_step": [call(1, 7), call(1, 7, 2), call(2, 4.5, 0.5, dtype=torch.float32, **FACTORY)],
    **{f"aten.{name}.default": [call(X)] for name in ("alias", "lift_fresh", "detach", "lift_fresh_copy")},
    **{f"aten.{name}.default": RESHAPED for name in ("reshape", "_unsafe_view", "view")},
    "aten.copy.default": [call(X, X[:1]), call(WHOLE.int(), WHOLE * 2.5, non_blocking=True)],
    "aten._scaled_dot_product_flash_attention_for_cpu.default": ATTENTION,
    "aten.scaled_dot_product_attention.default": [*ATTENTION, call(HEADS, FEWER, FEWER, enable_gqa=True)],
    "aten._softmax.default": SOFTMAX,
    "aten._log_softmax.default": SOFTMAX,
    "aten.softmax.int": [call(X, 0), call(X, -1, torch.float32)],
    "aten.native_layer_norm.default": NORM,
    "aten.native_group_norm.default": [
        call(PICTURE, W, B, 2, 4, 36, 2, 1e-5),
        call(PICTURE, None, None, 2, 4, 36, 4, 0.1),
        call(PICTURE[:1, :, :3].bfloat16(), W.bfloat16(), None, 1, 4, 18, 1, 0.1),
        call(PICTURE.view(2, 2, 12, 6), None, None, 2, 2, 72, 2, 1e-2),
    ],
    "aten._native_batch_norm_legit_no_training.default": [
        call(PICTURE, W, B, B, W.abs(), 0.1, 1e-5),
        call(PICTURE, None, None, B, W.abs(), 0.9, 0.1),
    ],
    "aten.max_pool2d_with_indices.default": POOLS,
    **{f"aten.{name}.Tensor": INDICES for name in ("index", "_unsafe_index")},
    "aten.convolution_backward.default": [
        call(WIDE[:, :, :4, :4], PICTURE, KERNEL, [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True] * 3),
        call(WIDE[:, :, :2, :2], PICTURE, KERNEL[:, :2], None, [2, 2], [1, 1], [2, 2], False, [0, 0], 2, [True, True, False]),
    ],
    "aten.max_pool2d_with_indices_backward.default": [
        call(pooled, PICTURE, *arguments, indices)
        for arguments in ([[2, 2], [2, 2], [0, 0], [1, 1], False], [[3, 2], [2, 1], [1, 0], [1, 2], True])
        for pooled, indices in [aten.max_pool2d_with_indices(PICTURE, *arguments)]
    ],
}


def raises(function: Callable[..., Any], *args: Any) -> bool:
    with pytest.raises((RuntimeError, NotImplementedError)):
        function(*args)
    return True


def draws(op: Any) -> bool:
    return is_random(op, (HEADS, HEADS, HEADS), {"dropout_p": 0.5})


def is_left(*args: Any) -> bool:
    return training_decompositions()[TRAINING[0]](*args) is NotImplemented


_CPU, _DROPOUT = "the CPU refuses it", "it draws random numbers, so that the operator stays in PyTorch"
_SDPA, _OF_CUDA = aten.scaled_dot_product_attention.default, aten._scaled_dot_product_flash_attention
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
_GEOMETRY = ([1, 1], [0, 0], [1, 1])
#: By operator and argument ("" for all of them), why it is not varied, and the proof.
NOT_VARIED: dict[tuple[str, str], tuple[str, Callable[[], bool]]] = {
    ("aten._softmax.default", "half_to_float"): (_CPU, lambda: raises(aten._softmax, X.half(), 0, True)),
    ("aten._log_softmax.default", "half_to_float"): (_CPU, lambda: raises(aten._log_softmax, X.half(), 0, True)),
    (str(_FLASH), "dropout_p"): (_DROPOUT, lambda: draws(_FLASH)),
    (str(_SDPA), "dropout_p"): (_DROPOUT, lambda: draws(_FLASH)),
    (str(_OF_CUDA.default), ""): ("the CPU does not have it", lambda: raises(_OF_CUDA, HEADS, HEADS, HEADS)),
    (str(TRAINING[0]), "output_padding"): (
        "PyTorch refuses it for what is not transposed",
        lambda: raises(TRAINING[0], PICTURE, PICTURE, KERNEL, None, *_GEOMETRY, False, [1, 1], 1, [True] * 3),
    ),
    (str(TRAINING[0]), "transposed"): (
        "it is not decomposed",
        lambda: is_left(PICTURE, PICTURE, KERNEL, None, *_GEOMETRY, True, [0, 0], 1, [True] * 3),
    ),
}


def rewritten() -> list[Any]:
    """The operators that decompositions and passes replace, or change the arguments of."""
    softmaxes = [op for name in separate_softmaxes._SOFTMAXES for op in [getattr(aten, name.removeprefix("aten."), None)] if op]
    groups: Sequence[Any] = (
        *(OPENVINO_DECOMPOSITIONS, float_ranges._RANGES, remove_identities._VIEWS, remove_identities._COPIES),
        *(squeeze_scalars._VIEWS, unify_attention._KERNELS, torchscript._RULES, negative_indices._INDEXERS, TRAINING),
        [aten.scaled_dot_product_attention.default, aten.native_group_norm.default],
        [getattr(op, "int" if "int" in op.overloads() else "default") for op in softmaxes],
    )
    return sorted({op for group in groups for op in group}, key=str)


def values_of(op: Any, calls: Sequence[Call], name: str) -> set[str]:
    """The different values of an argument in some calls; of a tensor whether there is one."""
    position = [argument.name for argument in op._schema.arguments].index(name)
    default = op._schema.arguments[position].default_value
    given = [args[position] if position < len(args) else kwargs.get(name, default) for args, kwargs in calls]
    return {"a tensor" if isinstance(value, torch.Tensor) else repr(value) for value in given}


@pytest.mark.parametrize("op", rewritten(), ids=str)
def test_every_argument_is_varied_or_a_reason_says_why_not(op: Any) -> None:
    reason, holds = NOT_VARIED.get((str(op), ""), ("", lambda: False))
    if reason:
        assert holds(), reason
        return
    for argument in op._schema.arguments:
        if (str(op), argument.name) in NOT_VARIED:
            reason, holds = NOT_VARIED[str(op), argument.name]
            assert holds(), reason
        elif str(argument.type) != "Tensor":
            assert len(values_of(op, CALLS[str(op)], argument.name)) > 1, f"{argument.name} is not varied"


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def function_of(op: Any) -> tuple[Callable[..., list[torch.Tensor]], list[torch.Tensor]]:
    """All calls of an operator as a function of their tensors."""
    leaves, spec = tree_flatten(CALLS[str(op)])
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        values = list(leaves)
        for i, tensor in zip(places, tensors):
            values[i] = tensor.clone()
        results = [flat(op(*args, **kwargs)) for args, kwargs in tree_unflatten(values, spec)]
        only = 1 if str(op).split(".")[1] in FIRST or "attention" in str(op) or "max_pool2d_with_indices." in str(op) else None
        return [result for each in results for result in each[:only] if isinstance(result, torch.Tensor)]

    return function, [leaves[i] for i in places]


COMPARED = [op for op in rewritten() if op not in TRAINING and (str(op), "") not in NOT_VARIED]


@pytest.mark.parametrize("op", COMPARED, ids=str)
def test_the_results_are_eager_s(op: Any) -> None:
    function, tensors = function_of(op)
    expected = function(*tensors)
    for converter in ("fx", "ts") if op in torchscript._RULES else ("fx",):
        torch._dynamo.reset()
        options = {"precision": "f32", "fallback": "raise", "converter": converter}
        actual = torch.compile(function, backend="openvino_fx", options=options)(*tensors)
        assert_close(actual, expected, 1e-2 if any(each.dtype is torch.bfloat16 for each in expected) else 1e-4)
        assert [each.stride() for each in actual] == [each.stride() for each in expected]
    assert sum(stats["calls"] for stats in ov_backend.stats().values()), "some of it runs in OpenVINO"


@pytest.mark.parametrize("op", TRAINING, ids=str)
def test_the_results_of_decompositions_for_training(op: Any) -> None:
    function, tensors = function_of(op)
    gm = decompose(traced(function, *tensors), training_decompositions())
    assert_close(run_eagerly(gm, *tensors), function(*tensors), 1e-4)
