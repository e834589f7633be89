"""Random networks of what bfloat16 cannot carry: positions, features, sums, powers and offsets, before and behind products."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable

import torch
from torch.nn import functional as F

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from tests.soundness import autocast

_ROWS, _WIDTH = 12, 16
Compute = Callable[["PositionNetwork", torch.Tensor], torch.Tensor]

#: Rows of float32 made of positions (int64, one a row) and times (float32, one a batch).
FROM_POSITIONS: dict[str, Compute] = {
    "sin(p * f)": lambda net, p: (p.float()[:, None] * net.frequencies).sin(),
    "cos(p / scale * f)": lambda net, p: (p.float()[:, None] / net.scale * net.frequencies).cos(),
    "sin(outer(p, f))": lambda net, p: torch.outer(p.float(), net.frequencies).sin(),
    "sin(einsum(p, f))": lambda net, p: torch.einsum("i,j->ij", p.float() / net.scale, net.frequencies).sin(),
    "sin, cos in pairs": lambda net, p: _pairs(p.float()[:, None] * net.frequencies[: _WIDTH // 2]),
    "sin(cumsum(p) * f)": lambda net, p: (p.cumsum(0).float()[:, None] * net.frequencies).sin(),
    "2 ** -p": lambda net, p: torch.exp2(-(p % 13).float())[:, None] * net.weight + (p % 13).float()[:, None],
    "p % 64 / 64": lambda net, p: ((p.float()[:, None] * 1.0009 + net.weight) % 64) / 64,
    "floor(p * 0.37)": lambda net, p: (p.float()[:, None] * 0.37 * net.weight).floor() % 7,
    "p > threshold": lambda net, p: (p.float()[:, None] > net.scale * 100 + torch.arange(_WIDTH)).float() + net.weight,
    "exp(p - max)": lambda net, p: (p.float()[:, None] * 0.1 - p.float().max() * 0.1 + net.weight).exp(),
    "p.float().mean()": lambda net, p: (p.float()[:, None] - p.float().mean()) * net.weight,
    "sin(p @ f), autocast off": lambda net, p: _without_autocast(lambda: (p.float()[:, None] @ net.frequencies[None]).sin()),
    "sin(linear(p)), autocast off": lambda net, p: _without_autocast(
        lambda: F.linear(p.float()[:, None], net.frequencies[:, None], net.weight).sin()
    ),
    "sin(dot(p, p))": lambda net, p: torch.dot(p.float(), p.float() / 1e4).sin() + net.table[p % 50],
    "sin(cdist(p, t))": lambda net, p: torch.cdist(p.float()[:, None] * net.scale.float(), net.table[:_WIDTH, :1].float()).sin(),
    "gather of a table": lambda net, p: net.table[p % 50] + net.weight,
    "relative positions": lambda net, p: ((p[:, None] - p[None, :]).float() * net.frequencies[0]).cos() @ net.table[:_ROWS],
}
#: Rows of rows, which may come from inputs or from products.
BY_ROW: dict[str, Compute] = {
    "sin(x * f)": lambda net, x: (x * net.frequencies * 20).sin(),
    "sin(2 pi k x)": lambda net, x: (x[..., :4, None] * (2 ** torch.arange(4)) * math.pi).sin().flatten(-2),
    "cumsum(x)": lambda net, x: x.cumsum(-2),
    "cumsum of repeated x": lambda net, x: x.repeat(40, *[1] * (x.dim() - 1)).cumsum(0)[-x.shape[0] :] / 40,
    "scatter_add of repeated x": lambda net, x: torch.zeros_like(x).scatter_add(0, *_repeated(x)),
    "cumsum(x.abs()) sin": lambda net, x: x.abs().cumsum(-1).sin(),
    "cumprod": lambda net, x: (1 - x.sigmoid() * 0.1).cumprod(-1),
    "x + 1000 - 1000": lambda net, x: (x + net.offset) - net.offset,
    "exp(x + c - max)": lambda net, x: ((x + net.offset) - (x + net.offset).amax(-1, keepdim=True)).exp(),
    "logsumexp": lambda net, x: x - x.logsumexp(-1, keepdim=True),
    "x - mean": lambda net, x: (x + net.offset) - (x + net.offset).mean(-1, keepdim=True),
    "var": lambda net, x: x * x.var(-1, keepdim=True).add(1e-5).rsqrt(),
    "rms": lambda net, x: x * x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * net.weight,
    "floor(x * 4)": lambda net, x: (x * 4).floor() / 4,
    "x % 1": lambda net, x: x % 1,
    "x > c": lambda net, x: torch.where(x > net.weight, x, x * 0.1),
    "x ** 3": lambda net, x: x**3 * 0.1,
    "log(|x| + 1)": lambda net, x: x.abs().log1p(),
    "expm1": lambda net, x: (x * 1e-3).expm1() * 1e3,
    "sort": lambda net, x: x.sort(-1).values,
    "topk": lambda net, x: torch.cat([x.topk(_WIDTH // 2, -1).values, x[..., : _WIDTH // 2]], -1),
    "round": lambda net, x: (x * 2).round(),
    "sum of squares": lambda net, x: x / (x * x).sum(-1, keepdim=True).sqrt().clamp(min=1e-6),
    "softmax": lambda net, x: (x * 3).softmax(-1),
    "layer_norm": lambda net, x: F.layer_norm(x + net.offset / 10, (_WIDTH,), net.weight, net.weight),
    "gelu": lambda net, x: F.gelu(x),
    "silu": lambda net, x: F.silu(x),
    "x * weight": lambda net, x: x * net.weight,
    "x + weight": lambda net, x: x + net.weight,
    "flip": lambda net, x: x.flip(-1),
    "rotate": lambda net, x: torch.cat([-x[..., _WIDTH // 2 :], x[..., : _WIDTH // 2]], -1),
    "pad": lambda net, x: F.pad(x, (1, 0))[..., :-1],
}
PRODUCTS: dict[str, Compute] = {
    "linear": lambda net, x: F.linear(x, net.matrix, net.weight),
    "attention": lambda net, x: F.scaled_dot_product_attention(x[None], x[None], x[None])[0],
    "x @ table": lambda net, x: x @ net.table[:_WIDTH],
    "conv1d": lambda net, x: F.conv1d(x.mT[None], net.kernel, padding=1)[0].mT,
    "scores": lambda net, x: (x @ x.mT / 4).softmax(-1) @ x,
}
JOINED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "{} + {}": torch.add,
    "{} * {}": torch.mul,
    "{} - {}": torch.sub,
    "maximum({}, {})": torch.maximum,
    "halves of {} and {}": lambda a, b: torch.cat([a[..., : _WIDTH // 2], b[..., : _WIDTH // 2]], -1),
}


def _without_autocast(compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return compute()


def _pairs(angles: torch.Tensor) -> torch.Tensor:
    return torch.cat([angles.sin(), angles.cos()], -1)


def _repeated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    many = x.repeat(60, *[1] * (x.dim() - 1))
    return torch.zeros(many.shape, dtype=torch.int64), many


class PositionNetwork(torch.nn.Module):
    """A network of so many steps that a seed determines."""

    def __init__(self, seed: int, steps: int = 8) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        first = draw.choice([0, 50, 700, 4000, 30_000])
        self.inputs = (torch.randn(_ROWS, _WIDTH) * draw.choice([0.5, 1, 4]), torch.arange(first, first + _ROWS))
        self.register_buffer("frequencies", draw.choice([1e4, 100.0]) ** (-torch.arange(_WIDTH) / _WIDTH))
        self.register_buffer("offset", torch.randn(_WIDTH) + draw.choice([10.0, 100.0, 1000.0]))
        self.register_buffer("scale", torch.tensor(draw.choice([1.0, 8.0, 30.0])))
        self.weight = torch.nn.Parameter(torch.rand(_WIDTH) + 0.5)
        self.table = torch.nn.Parameter(torch.randn(50, _WIDTH) / 4)
        self.kernel = torch.nn.Parameter(torch.randn(_WIDTH, _WIDTH, 3) / 7)
        self.matrix = torch.nn.Parameter(torch.randn(_WIDTH, _WIDTH) / 4)
        self.steps: list[tuple[str, str, tuple[int, ...]]] = []
        for number in range(steps):
            self.steps.append(self._draw(draw, number))
        self.eval()

    def _draw(self, draw: random.Random, number: int) -> tuple[str, str, tuple[int, ...]]:
        """A table's name, the name of what it has, and the values that are read; value 0 is the input."""
        kind = draw.choice(["position", "row", "row", "product", "joined"] if number else ["position", "product", "row"])
        values = (draw.randrange(max(0, number - 3), number + 1), draw.randrange(number + 1))
        table = {"position": FROM_POSITIONS, "row": BY_ROW, "product": PRODUCTS, "joined": JOINED}[kind]
        return kind, draw.choice([*table]), {"position": (), "joined": values}.get(kind, values[:1])

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The last values, and those that no other step reads."""
        values = [x]
        for kind, name, sources in self.steps:
            read = [values[i] for i in sources]
            if kind == "position":
                values.append(FROM_POSITIONS[name](self, positions))
            elif kind == "joined":
                values.append(JOINED[name](read[0], read[1]))
            else:
                values.append((BY_ROW if kind == "row" else PRODUCTS)[name](self, read[0]))
        used = {source for _, _, sources in self.steps for source in sources}
        return tuple(value for i, value in enumerate(values) if i and (i not in used or i == len(values) - 1))

    def __str__(self) -> str:
        lines = [f"v{i} = {name}  # {kind} of {sources}" for i, (kind, name, sources) in enumerate(self.steps, 1)]
        return "\n".join(lines)


#: What a network computes in: float32 weights, weights in bfloat16, or float32 under the caller's own autocast.
FORMS = ("float32", "bfloat16", "autocast")


def judge(seed: int, precision: str = "auto", form: str = "float32") -> str | None:
    """What is wrong with the answer of the network of one seed; "" if nothing; None where there is nothing to compare."""
    network, bfloat16 = PositionNetwork(seed), form == "bfloat16"
    x, positions = (tensor.clone() for tensor in network.inputs)  # a network's own tensors are weights
    if bfloat16:
        network, x = network.bfloat16(), x.bfloat16()
    wide, own = copy.deepcopy(network).float(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=form == "autocast")

    def low() -> tuple[torch.Tensor, ...]:
        with own:
            return network(x, positions)

    def under_autocast() -> list[torch.Tensor]:
        """What a program keeps in float32 beside weights in bfloat16, autocast computes in bfloat16 too."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [value.to(own.dtype) for value, own in zip(network(x, positions), low())]

    with torch.no_grad():
        try:
            low()
        except RuntimeError:  # an operator that takes no two dtypes
            return None
        if not all(bool(value.isfinite().all()) for value in wide(x.float(), positions)):
            return None
        engine = Engine(Settings(precision=precision, model_caching=False, fallback="raise"))
        with own:
            got = engine.network("network", network)(x, positions)
    words = autocast.difference(got, lambda: wide(x.float(), positions), None if form == "float32" else low)
    if words and bfloat16:
        words = autocast.difference(got, lambda: wide(x.float(), positions), under_autocast)
    return f"seed {seed} ({form}): {words}\n{network}" if words else words
