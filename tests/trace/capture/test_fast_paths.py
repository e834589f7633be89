"""The transformers of ``torch.nn``: outside of a trace, PyTorch has a fast path for them, which sees padding otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ov_backend import Settings, accelerate
from ov_backend.engine.engine import Network
from tests.helpers.small import engine_for

Strict = Callable[..., Settings]

X = torch.linspace(-2, 2, 80).sin().reshape(2, 5, 8)
#: The second row's last positions are padding; ALL hides a whole row; the last one begins with what is hidden.
PADDING = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 1, 1, 1]]).bool()
SHORT = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]).bool()
ALL = torch.tensor([[0, 0, 0, 0, 1], [1, 1, 1, 1, 1]]).bool()
UNALIGNED = torch.tensor([[1, 0, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
#: Hides a whole row; hides other positions for every head.
A_ROW = torch.zeros(5, 5).bool().index_fill(0, torch.tensor([2]), True)
OF_HEADS = (torch.arange(100).reshape(4, 5, 5) * 7 % 5 > 2).index_fill(2, torch.tensor([0]), False)
BIAS = torch.linspace(-1, 1, 25).reshape(5, 5)


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, **{"nhead": 2, "dim_feedforward": 16, "batch_first": True, **options}).eval()


def encoder(nested: bool = True, **options: Any) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(layer(**options), 2, enable_nested_tensor=nested).eval()


def attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, **{"batch_first": True, **options}).eval()


class ToItself(nn.Module):
    """Attention of its input to itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = attention(**options)

    def forward(self, x: torch.Tensor, **masks: Any) -> torch.Tensor:
        result: torch.Tensor = self.attention(x, x, x, **masks)[0]
        return result


class Both(nn.Module):
    """Encodes and decodes its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.eval()

    def forward(self, x: torch.Tensor, **masks: Any) -> torch.Tensor:
        result: torch.Tensor = self.whole(x, x, **masks)
        return result


def assert_eager(network: Network, module: nn.Module, **masks: Any) -> None:
    with torch.no_grad():
        actual, expected = network(X, **masks), module(X, **masks)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=True)


def other_activation(made: nn.TransformerEncoderLayer) -> None:
    made.activation = nn.functional.gelu


def other_dropout(made: nn.TransformerEncoderLayer) -> None:
    made.dropout2 = nn.Softplus()  # type: ignore[assignment]


def other_linear(made: nn.TransformerEncoderLayer) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    made.linear1 = Doubled(8, 16)


def other_forward(made: nn.TransformerEncoderLayer) -> None:
    made.linear2.forward = lambda x: x.repeat(1, 1, 2)[..., :8]  # type: ignore[method-assign]


class OtherBlock(nn.TransformerEncoderLayer):
    """The fast path does not know this method."""

    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class OtherCall(nn.LayerNorm):
    """Nor this one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().__call__(x)


class WithoutMasks(nn.MultiheadAttention):
    """The fast path alone calls this method."""

    def merge_masks(self, *args: Any) -> tuple[None, None]:
        return None, None


def other_call(made: nn.TransformerEncoderLayer) -> None:
    made.norm1 = OtherCall(8)


def other_masks(made: nn.TransformerEncoderLayer) -> None:
    made.self_attn = WithoutMasks(8, 2, batch_first=True).eval()


def of_others_masks() -> nn.Module:
    module = ToItself()
    module.attention = WithoutMasks(8, 2, batch_first=True).eval()
    return module


def changed(change: Callable[[Any], None], **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        made = layer(**options)
        change(made)
        return made

    return make


IN_PYTORCH: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "encoder": (encoder, {"src_key_padding_mask": PADDING}),
    "encoder, all rows shorter": (encoder, {"src_key_padding_mask": SHORT}),
    "encoder, not aligned": (encoder, {"src_key_padding_mask": UNALIGNED}),
    "encoder without nested tensors": (lambda: encoder(nested=False), {"src_key_padding_mask": ALL}),
    "layer": (layer, {"src_key_padding_mask": ALL}),
    "attention": (ToItself, {"key_padding_mask": ALL, "need_weights": False}),
    "transformer": (Both, {"src_key_padding_mask": PADDING}),
    "another activation": (changed(other_activation), {}),
    "another kind of gelu": (lambda: layer(activation=nn.GELU(approximate="tanh")), {}),
    "another linear layer": (changed(other_linear), {}),
    "another forward": (changed(other_forward), {}),
    "another dropout": (changed(other_dropout), {}),
    "another call": (changed(other_call), {}),
    "other masks": (changed(other_masks), {"src_mask": CAUSAL}),
    "an attention's other masks": (of_others_masks, {"attn_mask": CAUSAL != 0, "need_weights": False}),
    "another method": (lambda: OtherBlock(8, 2, 16, batch_first=True).eval(), {}),
}


@pytest.mark.parametrize("name", IN_PYTORCH)
def test_what_the_fast_path_answers_otherwise_stays_in_pytorch(strict: Strict, name: str) -> None:
    make, masks = IN_PYTORCH[name]
    module = make()
    network = engine_for(strict(fallback="pytorch"), module)
    for _ in range(2):
        assert_eager(network, module, **masks)
    assert network.statistics.calls == 0
    assert "fast path" in network.statistics.last_reason


@pytest.mark.parametrize("kind, name", [(nn.Linear, "forward"), (nn.LayerNorm, "forward"), (nn.LayerNorm, "__call__")])
def test_a_replaced_method_of_a_class_stays_in_pytorch(
    strict: Strict, monkeypatch: pytest.MonkeyPatch, kind: type[nn.Module], name: str
) -> None:
    original = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda self, x: original(self, x) * 2)
    module = layer()
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    assert network.statistics.calls == 0
    assert "fast path" in network.statistics.last_reason


def test_a_patch_of_ours_on_a_part_changes_nothing(strict: Strict) -> None:
    module = layer()
    expected = module(X)
    with torch.no_grad(), accelerate({"whole": module, "part": module.linear1}, strict()) as accelerated:
        torch.testing.assert_close(module(X), expected, rtol=1e-4, atol=1e-5)
        assert accelerated.stats()["whole"]["calls"] == 1


IN_OPENVINO: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "encoder": (encoder, {}),
    "encoder with a causal mask": (encoder, {"mask": CAUSAL, "is_causal": True}),
    "layer": (layer, {}),
    "layer that normalizes first": (lambda: layer(norm_first=True, activation="gelu"), {}),
    "layer with modules as activations": (lambda: layer(activation=nn.GELU()), {}),
    "layer with a causal mask": (layer, {"src_mask": CAUSAL}),
    "layer with a bias": (layer, {"src_mask": BIAS}),
    "layer with masks of its heads": (layer, {"src_mask": OF_HEADS}),
    "sequence first": (lambda: layer(batch_first=False), {}),
    "odd number of heads": (lambda: layer(nhead=1), {"src_key_padding_mask": PADDING}),
    "attention": (ToItself, {}),
    "attention without weights": (ToItself, {"need_weights": False}),
    "attention with a causal mask": (ToItself, {"attn_mask": CAUSAL != 0, "need_weights": False}),
    "attention with a bias": (ToItself, {"attn_mask": BIAS, "need_weights": False}),
    "attention with masks of its heads": (ToItself, {"attn_mask": OF_HEADS}),
    "attention, sequence first": (lambda: ToItself(batch_first=False), {"key_padding_mask": torch.zeros(5, 2).bool()}),
    "transformer": (Both, {}),
}


@pytest.mark.parametrize("name", IN_OPENVINO)
def test_what_both_paths_answer_alike_is_answered_by_openvino(strict: Strict, name: str) -> None:
    make, masks = IN_OPENVINO[name]
    module = make()
    network = engine_for(strict(), module)
    for _ in range(2):
        assert_eager(network, module, **masks)
    assert network.statistics.calls == 2


@pytest.mark.parametrize("name", ["layer", "attention"])
def test_a_row_that_masks_everything(strict: Strict, name: str) -> None:
    module: nn.Module = layer() if name == "layer" else ToItself()
    named, others = ("src_mask", {}) if name == "layer" else ("attn_mask", {"need_weights": False})
    network = engine_for(strict(fallback="pytorch"), module)
    for mask in (torch.zeros_like(A_ROW), A_ROW):  # what the mask hides is seen at the call, not when it is traced
        assert_eager(network, module, **{named: mask}, **others)


def test_an_activation_that_is_exchanged_later(strict: Strict) -> None:
    module = layer()
    network = engine_for(strict(fallback="pytorch"), module)
    assert_eager(network, module)
    other_activation(module)
    assert_eager(network, module)
    assert network.statistics.calls == 1


@pytest.mark.skipif(not hasattr(torch.backends, "mha"), reason="PyTorch 2.1 cannot turn it off")
def test_the_fast_path_is_turned_off_and_on(strict: Strict, monkeypatch: pytest.MonkeyPatch) -> None:
    module = encoder()
    network = engine_for(strict(fallback="pytorch"), module)
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
    assert_eager(network, module, src_key_padding_mask=PADDING)
    assert network.statistics.calls == 1
    torch.backends.mha.set_fastpath_enabled(True)
    assert_eager(network, module, src_key_padding_mask=PADDING)
    assert network.statistics.calls == 1


def test_training_takes_no_fast_path(strict: Strict) -> None:
    module = layer(dropout=0.0).train()
    network = engine_for(strict(), module)
    assert_eager(network, module, src_key_padding_mask=PADDING)
    assert network.statistics.calls == 1
