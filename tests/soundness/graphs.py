"""Random graphs of operators with random dtypes, shapes, layouts and special values.

A graph is a list of Python expressions, so that a wrong one can be read and run by hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.soundness.operators import DTYPES, FLOATS, OPERATORS, is_defined

_NAMES = {"torch": torch, "F": F}
_MAX_ELEMENTS = 4000


@dataclass
class Program:
    """A graph: its inputs, and an expression for every further value.

    Attributes:
        inputs: the tensors ``v0``, ``v1``, ...
        steps: the expressions of the values after them.
        sums: whether each step adds up values.
        outputs: numbers of the values that are returned.
        recipes: how the inputs were made, for a reader.
    """

    inputs: list[torch.Tensor]
    steps: list[str] = field(default_factory=list)
    sums: list[bool] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    recipes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        first = len(self.inputs)
        lines = [f"v{i} = {recipe}" for i, recipe in enumerate(self.recipes)]
        lines += [f"v{first + i} = {step}" for i, step in enumerate(self.steps)]
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.outputs)}"])

    __repr__ = __str__

    def function(self) -> Callable[..., list[torch.Tensor]]:
        """The program as a function of its inputs."""
        code = [(f"v{len(self.inputs) + i}", compile(step, "<graph>", "eval")) for i, step in enumerate(self.steps)]

        def run(slots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            values: dict[str, Any] = {f"v{i}": tensor for i, tensor in enumerate(inputs)}
            for name, expression in code:
                values[name] = eval(expression, _NAMES, values)
            return [values[f"v{i}"] for i in self.outputs]

        return run

    def until(self, value: int) -> Program:
        """The part of the program that ends with one value."""
        count = value - len(self.inputs) + 1
        return Program(self.inputs, self.steps[:count], self.sums[:count], [value], self.recipes)


def evaluate(expression: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One step in eager PyTorch."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = eval(expression, _NAMES, {f"v{i}": value for i, value in enumerate(values)})
    assert isinstance(result, torch.Tensor)
    return result


@st.composite
def programs(draw: Any, largest: int = 7) -> Program:
    """Programs of up to ``largest`` steps; a step that eager PyTorch refuses is left out."""
    base = draw(st.lists(st.sampled_from([0, 1, 2, 2, 3, 3, 4, 5]), max_size=3))
    inputs = [draw(_tensors(base)) for _ in range(draw(st.integers(1, 3)))]
    program = Program([tensor for tensor, _ in inputs], recipes=[recipe for _, recipe in inputs])
    values = list(program.inputs)
    for _ in range(draw(st.integers(1, largest))):
        step = draw(_steps(values))
        if step is not None:
            expression, sums, result = step
            program.steps.append(expression)
            program.sums.append(sums)
            values.append(result)
    used = {i for i in range(len(values)) if any(f"v{i}" in words(step) for step in program.steps)}
    program.outputs = [i for i in range(len(inputs), len(values)) if i not in used][-3:]
    return program


def words(expression: str) -> set[str]:
    """The names in an expression."""
    return set("".join(c if c.isalnum() else " " for c in expression).split())


@st.composite
def _steps(draw: Any, values: list[torch.Tensor]) -> tuple[str, bool, torch.Tensor] | None:
    for _ in range(4):
        operator = draw(st.sampled_from(OPERATORS))
        recent = st.integers(0, len(values) - 1).map(lambda i: len(values) - 1 - i)
        places = [draw(recent) for _ in range(operator.arity)]
        arguments = [values[i] for i in places]
        if not operator.fits(arguments) or not is_defined(operator.name, arguments):
            continue
        expression = operator.write(draw, arguments).format(*(f"v{i}" for i in places))
        try:
            result = evaluate(expression, values)
        except Exception:  # whatever PyTorch raises for arguments that do not go together
            continue
        if result.numel() <= _MAX_ELEMENTS and result.dtype in DTYPES:
            return expression, operator.sums, result
    return None


@st.composite
def _tensors(draw: Any, base: list[int]) -> tuple[torch.Tensor, str]:
    """A tensor whose shape goes with ``base``, and the expression that makes it."""
    dtype = draw(st.sampled_from((torch.float32, torch.float32, *DTYPES)))
    shape = [size if draw(st.integers(0, 4)) else 1 for size in base]
    shape = shape[draw(st.integers(0, len(shape))) :] if not draw(st.integers(0, 3)) else shape
    layout = draw(st.sampled_from(["", "", "", ".mT", "[..., ::2]", "expanded"]))
    kind = draw(st.sampled_from(["small", "small", "normal", "special"]))
    seed = draw(st.integers(0, 10_000))
    tensor = made(dtype, tuple(shape), kind, seed, layout)
    return tensor, f"made({dtype}, {tuple(shape)}, {kind!r}, {seed}, {layout!r})"


def made(dtype: torch.dtype, shape: tuple[int, ...], kind: str, seed: int, layout: str = "") -> torch.Tensor:
    """A tensor of seeded values.

    ``kind`` is "small" for numbers that floats hold exactly, "normal", or "special": also extremes, infinities, NaN. ``layout``
    is "", ".mT" (transposed), "[..., ::2]" (every second of a longer one) or "expanded".
    """
    generator = torch.Generator().manual_seed(seed)
    if layout == ".mT" and len(shape) >= 2:
        return _filled(dtype, (*shape[:-2], shape[-1], shape[-2]), kind, generator).mT
    if layout == "[..., ::2]" and shape:
        return _filled(dtype, (*shape[:-1], shape[-1] * 2), kind, generator)[..., ::2]
    if layout == "expanded" and shape:
        return _filled(dtype, (1, *shape[1:]), kind, generator).expand(shape)
    return _filled(dtype, shape, kind, generator)


def _filled(dtype: torch.dtype, shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype in FLOATS:
        values = (
            torch.randn(shape, generator=generator)
            if kind == "normal"
            else torch.randint(-20, 21, shape, generator=generator) / 4
        )
        return _with_special(values.to(dtype), _specials(dtype), generator) if kind == "special" else values.to(dtype)
    limits = torch.iinfo(dtype)
    low, high = (max(limits.min, -6), 7) if kind == "small" else (limits.min // 2, limits.max // 2)
    values = torch.randint(low, high, shape, generator=generator).to(dtype)
    return _with_special(values, _extremes(dtype), generator) if kind == "special" else values


def _specials(dtype: torch.dtype) -> list[float]:
    tiny = torch.finfo(dtype).smallest_normal / 4
    return [float("inf"), -float("inf"), float("nan"), -0.0, 0.0, tiny, -tiny, torch.finfo(dtype).max, torch.finfo(dtype).eps]


def _extremes(dtype: torch.dtype) -> list[int]:
    limits = torch.iinfo(dtype)
    near = [value for value in (2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**53 + 1) if value <= limits.max]
    return [limits.min, limits.max, limits.max - 1, 0, 1, *near, *(-value for value in near if -value >= limits.min)]


def _with_special(values: torch.Tensor, special: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    flat = values.reshape(-1).clone()
    chosen = torch.randint(0, 2, flat.shape, generator=generator)
    which = torch.randint(0, len(special), flat.shape, generator=generator)
    for i in range(flat.numel()):
        if chosen[i]:
            flat[i] = special[int(which[i])]
    return flat.reshape(values.shape)
