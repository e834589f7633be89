"""Random networks of layers: pictures, rows of tokens and flat tables that are made of each other, each with several readers.

Single operators are tested elsewhere. Here the device lays the same values out in several ways, fuses and reuses memory, and may
mistake one reader's memory for another's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from ov_backend import Settings
from ov_backend.engine.engine import Engine

_MAX_ELEMENTS = 20_000
#: The largest relative error of an output, in the norm.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Step:
    """One layer: its text for a reader, the numbers of the values that it reads, and what computes it."""

    text: str
    sources: tuple[int, ...]
    compute: Callable[..., torch.Tensor]


class RandomNetwork(torch.nn.Module):
    """A network of so many layers that a seed determines."""

    def __init__(self, seed: int, layers: int = 9) -> None:
        super().__init__()
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        batch, channels, size = self._random.choice([1, 2]), self._random.choice([4, 8, 12, 16]), self._random.choice([4, 6, 8])
        self.input = torch.randn(batch, channels, size, size)
        self.steps: list[Step] = []
        self.layers = torch.nn.ModuleList()
        values = [self.input]
        while len(self.steps) < layers:
            step = self._draw(values)
            value = _computed(step, values)
            if step is not None and value is not None and 0 < value.numel() <= _MAX_ELEMENTS and bool(value.isfinite().all()):
                self.steps.append(step)
                values.append(value)
        used = {source for step in self.steps for source in step.sources}
        ends = [i for i in range(1, len(values)) if i not in used]
        self.outputs = sorted({*ends, self._random.randrange(1, len(values))})
        del self._random  # a forward that can reach it stays in PyTorch
        self.eval()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All values that no other layer reads, and one that may be read."""
        values = [x]
        for step in self.steps:
            values.append(step.compute(*(values[i] for i in step.sources)))
        return tuple(values[i] for i in self.outputs)

    def __str__(self) -> str:
        lines = [f"v{i} = {step.text.format(*(f'v{s}' for s in step.sources))}" for i, step in enumerate(self.steps, 1)]
        return "\n".join([f"v0 = randn{tuple(self.input.shape)}", *lines, f"return {', '.join(f'v{i}' for i in self.outputs)}"])

    def _draw(self, values: list[torch.Tensor]) -> Step | None:
        place = self._random.choice(range(max(0, len(values) - 4), len(values)))
        value = values[place]
        kinds = {4: _PICTURE, 3: _ROWS, 2: _FLAT}.get(value.dim())
        if kinds is None:
            return None
        kind = self._random.choice(kinds)
        same = [i for i, other in enumerate(values) if other.shape == value.shape]
        drawn = kind(self, value)
        if drawn is None:
            return None
        text, compute, arity = drawn
        sources = (place, self._random.choice(same)) if arity == 2 else (place,)
        return Step(text, sources, compute)

    def add_layer(self, layer: torch.nn.Module) -> torch.nn.Module:
        """Register a layer with weights."""
        self.layers.append(layer)
        return layer

    def choose(self, *choices: Any) -> Any:
        """One of these."""
        return self._random.choice(choices)


@torch.no_grad()
def _computed(step: Step | None, values: list[torch.Tensor]) -> torch.Tensor | None:
    """The value of a layer; None where its sizes do not go together."""
    try:
        return step.compute(*(values[i] for i in step.sources)) if step is not None else None
    except RuntimeError:
        return None


Drawn = tuple[str, Callable[..., torch.Tensor], int] | None


def _activation(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    name = net.choose("relu", "silu", "gelu", "sigmoid", "tanh")
    return f"{name}({{}})", getattr(F, name), 1


def _binary(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    name = net.choose("add", "mul", "sub", "maximum")
    return f"{name}({{}}, {{}})", getattr(torch, name), 2


def _scalar(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    number = net.choose(0.5, 1.0, 2.0, -1.0)
    return net.choose(
        (f"{{}} * {number}", lambda x: x * number, 1), (f"{{}} + {number}", lambda x: x + number, 1), ("-{}", torch.neg, 1)
    )


def _cat(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    dim = net.choose(0, 1, -1)
    return f"cat([{{}}, {{}}], {dim})", lambda a, b: torch.cat([a, b], dim), 2


def _part(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    dim = net.choose(0, 1, -1)
    if x.shape[dim] % 2:
        return None
    which = net.choose(0, 1)
    return f"{{}}.chunk(2, {dim})[{which}]", lambda x: x.chunk(2, dim)[which], 1


def _scaled(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    shape = net.choose((1,), (x.shape[-1],), (x.shape[1], *[1] * (x.dim() - 2)), x.shape[1:])
    layer, weight = net.add_layer(torch.nn.ParameterList([torch.randn(shape)])), f"weight{tuple(shape)}"
    return net.choose(
        (f"{{}} * {weight}", lambda x: x * layer[0], 1),
        (f"{{}} + {weight}", lambda x: x + layer[0], 1),
        (f"{{}} / ({weight}.abs() + 0.5)", lambda x: x / (layer[0].abs() + 0.5), 1),
        (f"{weight} / ({{}}.abs() + 1)", lambda x: layer[0] / (x.abs() + 1), 1),
    )


def _reduced(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    dim, keep, number = net.choose(*range(x.dim())), net.choose(True, False), net.choose(1, 7, 1.7)
    name = net.choose("mean", "sum", "amax")
    reduce = getattr(torch, name)
    return f"{name}({{}}, {dim}, {keep}) / {number}", lambda x: reduce(x, dim, keepdim=keep) / number, 1


def _conv(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    channels, kernel, stride = x.shape[1], net.choose(1, 3), net.choose(1, 1, 2)
    groups = net.choose(1, 1, channels)
    out = channels if groups > 1 else net.choose(channels, 8, 16)
    layer = net.add_layer(torch.nn.Conv2d(channels, out, kernel, stride, net.choose(kernel // 2, 1), groups=groups))
    return f"{layer}({{}})", layer, 1


def _deconv(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    layer = net.add_layer(torch.nn.ConvTranspose2d(x.shape[1], net.choose(4, 8), 2, 2))
    return f"{layer}({{}})", layer, 1


def _group_norm(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    groups = net.choose(1, 2, 4)
    if x.shape[1] % groups or x.numel() == groups:  # PyTorch refuses groups of a single value
        return None
    layer = net.add_layer(torch.nn.GroupNorm(groups, x.shape[1]))
    return f"{layer}({{}})", layer, 1


def _resize(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    return net.choose(
        ("interpolate({}, 2)", lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"), 1),
        ("max_pool2d({}, 2)", lambda x: F.max_pool2d(x, 2), 1),
        ("avg_pool2d({}, 2)", lambda x: F.avg_pool2d(x, 2), 1),
        ("pad({}, (0, 1, 1, 0))", lambda x: F.pad(x, (0, 1, 1, 0)), 1),
    )


def _picture_to_rows(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    return net.choose(
        ("{}.flatten(2).transpose(1, 2)", lambda x: x.flatten(2).transpose(1, 2), 1),
        ("{}.permute(0, 2, 3, 1).flatten(1, 2)", lambda x: x.permute(0, 2, 3, 1).flatten(1, 2), 1),
        ("{}.flatten(2)", lambda x: x.flatten(2), 1),
        ("{}.permute(0, 2, 3, 1)", lambda x: x.permute(0, 2, 3, 1), 1),
        ("{}.mean((2, 3))", lambda x: x.mean((2, 3)), 1),
    )


def _linear(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    layer = net.add_layer(torch.nn.Linear(x.shape[-1], net.choose(x.shape[-1], 8, 19), bias=net.choose(True, False)))
    return f"{layer}({{}})", layer, 1


def _layer_norm(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    layer = net.add_layer(torch.nn.LayerNorm(x.shape[-1]))
    return f"{layer}({{}})", layer, 1


def _attention(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    return net.choose(
        ("softmax({}, -1)", lambda x: x.softmax(-1), 1),
        ("attention({0}, {0}, {0})", lambda x: F.scaled_dot_product_attention(x, x, x), 1),
        ("{0} @ {0}.mT @ {1}", lambda a, b: a @ a.mT @ b / a.shape[-1], 2),
        ("softmax({0} @ {0}.mT, -1) @ {1}", lambda a, b: (a @ a.mT).softmax(-1) @ b, 2),
    )


def _rows_to_others(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    side = round(x.shape[1] ** 0.5)
    choices: list[Drawn] = [
        ("{}.flatten(0, 1)", lambda x: x.flatten(0, 1), 1),
        ("{}.transpose(1, 2)", lambda x: x.transpose(1, 2), 1),
        ("{}[None]", lambda x: x[None], 1),
        ("{}.mean(1)", lambda x: x.mean(1), 1),
    ]
    if side * side == x.shape[1]:
        choices += [
            (f"{{}}.mT.unflatten(2, ({side}, {side}))", lambda x: x.mT.unflatten(2, (side, side)), 1),
            (f"{{}}.unflatten(1, ({side}, {side})).permute(0, 3, 1, 2)", lambda x: _picture(x, side), 1),
        ]
    return net.choose(*choices)


def _picture(x: torch.Tensor, side: int) -> torch.Tensor:
    return x.unflatten(1, (side, side)).permute(0, 3, 1, 2)


def _conv1d(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    layer = net.add_layer(torch.nn.Conv1d(x.shape[2], net.choose(8, 12), 3, padding=1))
    return f"{layer}({{}}.transpose(1, 2))", lambda x: layer(x.transpose(1, 2)), 1


def _flat_to_rows(net: RandomNetwork, x: torch.Tensor) -> Drawn:
    return net.choose(
        ("{}[None]", lambda x: x[None], 1),
        ("{}.t()", lambda x: x.t(), 1),
        ("{}[:, :, None, None]", lambda x: x[:, :, None, None], 1),
    )


_ANY = [_activation, _binary, _binary, _scalar, _cat, _part, _scaled, _reduced, _linear, _layer_norm]
_PICTURE = [*_ANY, _conv, _conv, _conv, _deconv, _group_norm, _resize, _picture_to_rows, _picture_to_rows]
_ROWS = [*_ANY, _linear, _attention, _rows_to_others, _rows_to_others, _conv1d]
_FLAT = [*_ANY, _linear, _group_norm, _flat_to_rows]


def judge(seed: int) -> str:
    """What is wrong with the answer of the network of one seed; "" if it is right.

    An output may be as far from eager PyTorch's as thirty times what that is from the one in float64, for a mean after a
    normalisation, say, is nothing but rounding errors.
    """
    network = RandomNetwork(seed)
    engine = Engine(Settings(precision="f32", model_caching=False, fallback="raise"))
    with torch.no_grad():
        expected = network(network.input)
        answers = engine.network("network", network)(network.input)
        exact = network.double()(network.input.double())
    wrong = []
    for place, got, want, true in zip(network.outputs, answers, expected, exact, strict=True):
        limit = TOLERANCE * float(want.norm()) + 30 * float((want - true).norm()) + 1e-4 * want.numel() ** 0.5
        if not float((got - want).norm()) <= limit:
            wrong.append(f"v{place}: off by {float((got - want).norm() / want.norm()):.1e}")
    return f"seed {seed}: {', '.join(wrong)}\n{network}" if wrong else ""
