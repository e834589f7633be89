"""Judges a random graph: OpenVINO's results beside eager PyTorch's.

How exact the results can be is found by computing the graph again with noise of the size of a rounding error after every operator
that rounds: an integer that the noise changes is not compared, and a float may differ by a few times what the noise changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ov_backend.core.errors import ConversionError, NothingToCompute, OVBackendError
from ov_backend.core.settings import Settings
from ov_backend.model import compiler
from ov_backend.trace.capture import trace as capture
from ov_backend.trace.capture.trace import Captured
from ov_backend.trace.partitioning.int64_range import fits
from tests.soundness import autocast
from tests.soundness.graphs import Program, evaluate, words

SETTINGS = Settings(precision="f32", fallback="raise", model_caching=False, device="CPU")
_RELATIVE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 5e-3, torch.bfloat16: 2e-2}
#: Seeds of noise in the last place, in one direction and in the other.
_LAST_PLACE = (4, -4)
_ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass
class Verdict:
    """What became of a program: ``status`` is right, wrong, pytorch (nothing of it ran in OpenVINO) or failed (PyTorch would
    answer); ``where`` is the first expression that is wrong by itself."""

    status: str
    message: str = ""
    where: str = ""
    program: str = ""


def judge(program: Program, precision: str = "f32") -> Verdict:
    """Run a program in OpenVINO and compare; find the first wrong step of a wrong one.

    In another precision than f32 the answers are compared with autocast's, and where that has none, the program is "not judged".
    """
    verdict = _judge(program, precision)
    if verdict.status != "wrong":
        return verdict
    first = len(program.inputs)
    for number in range(first, first + len(program.steps)):
        part = program.until(number)
        if (smaller := _judge(part, precision)).status == "wrong":
            return Verdict("wrong", smaller.message, part.steps[-1], str(part))
    return Verdict("wrong", verdict.message, "together only", str(program))


def _judge(program: Program, precision: str) -> Verdict:
    run, tensors = program.function(), program.inputs

    def in_its_types() -> list[torch.Tensor]:
        return list(run([], [tensor.clone() for tensor in tensors]))

    settings = SETTINGS.replace(precision=precision, wide_integers=not all(fits(tensor) for tensor in tensors))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run([], [tensor.clone() for tensor in tensors])
        try:
            captured = Captured(capture.trace(run, [], tensors), (), tuple(f"t{i}" for i in range(len(tensors))), {})
            results = compiler.Compiler(captured, settings).compile().program.compile({}, settings)(tensors)
        except NothingToCompute:
            return Verdict("pytorch")
        except ConversionError as error:
            return Verdict("pytorch" if str(error).startswith("none of its") else "failed", str(error), program=str(program))
        except (OVBackendError, RuntimeError) as error:
            return Verdict("failed", str(error), program=str(program))
    if precision != "f32":
        differs = autocast.difference(results, in_its_types)
        if differs:  # what is nearer to float32 than a half precision of the program's own is right, too
            differs = autocast.difference(results, lambda: run([], [_widened(tensor) for tensor in tensors]), in_its_types)
        return Verdict("not judged" if differs is None else "wrong" if differs else "right", differs or "", program=str(program))
    noisy = [_noisy(program, seed) for seed in (1, 2, 3, *_LAST_PLACE)]
    wide = _in_float32(program)
    for number, (place, got, want) in enumerate(zip(program.outputs, results, expected)):
        others = [values[place] for values in noisy]
        message = _difference(got, want, [*others, wide[number].to(want.dtype)] if wide else others)
        if message:
            return Verdict("wrong", message, program=str(program))
    return Verdict("right")


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.clone()


def _in_float32(program: Program) -> list[torch.Tensor]:
    """The results of a program of a half precision in float32, as OpenVINO's chains of operators may compute; [] for others."""
    if not any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in program.inputs):
        return []
    try:
        with torch.no_grad():
            return program.function()([], [_widened(tensor) for tensor in program.inputs])
    except Exception:  # the types that stand in the program do not go together with float32
        return []


def _noisy(program: Program, seed: int) -> list[torch.Tensor]:
    """All values of a program, with noise after every step that rounds.

    The second time, numbers too small to be normal become 0 besides, and so do sums that may be nothing but rounding errors; what
    is 0 stays so, as in OpenVINO's arithmetic. What has left the range of float16 stays within it, as in OpenVINO's chains of
    operators in float32, and so does what is infinite only because PyTorch computes it in several steps. The third time, the
    inputs keep small numbers, for moving values is no arithmetic, and small results are some other small numbers, for not every
    operator makes them 0. With the seeds of :data:`_LAST_PLACE` the noise is one unit in the last place, up where it was down the
    other time: so two numbers that one rounding has made different are equal once.
    """
    values, generator = (
        [_flushed(tensor) if seed == 2 else tensor for tensor in program.inputs],
        torch.Generator().manual_seed(abs(seed)),
    )
    for expression, sums in zip(program.steps, program.sums):
        try:
            result = evaluate(expression, values)
        except Exception:  # noise may lead to a division of integers by zero
            return [*values, *(torch.full((), float("nan")) for _ in program.steps)]
        if result.is_floating_point() and result.numel() and not _is_exact(expression, values, result):
            result = _unbounded(expression, values, result) if seed == 2 else result
            size = result.abs()
            if sums:
                size = size + max((_largest(v) for i, v in enumerate(values) if f"v{i}" in words(expression)), default=0.0)
            if "erf" in words(expression):  # OpenVINO's is right to 1e-6, of small values too
                size = size + 1
            sign = (torch.randint(0, 2, result.shape, generator=generator) * 2 - 1) * (1 if seed > 0 else -1)
            largest = _last_place(result) if seed in _LAST_PLACE else _ROUNDING[result.dtype] * size.double()
            result = result.masked_fill(result.abs() <= largest, 0) if seed == 2 else result
            noise = sign * (largest.masked_fill(result == 0, 0) if seed == 2 else largest)
            result = (result.double() + noise).to(result.dtype)
        result = _flushed(result) if seed == 2 else result
        values.append(_perturbed(result, generator) if seed == 3 else result)
    return values


def _last_place(value: torch.Tensor) -> torch.Tensor:
    """One unit in the last place of each number, in float64."""
    exponent = torch.frexp(value.double()).exponent - 1
    return torch.ldexp(torch.full(value.shape, torch.finfo(value.dtype).eps, dtype=torch.float64), exponent)


def _unbounded(expression: str, values: Sequence[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
    """A step's result, finite where it is not because of its type alone, and in float16 not 0 where it is only too small."""
    wider = {torch.float16: torch.float32, torch.float32: torch.float64}.get(result.dtype)
    if wider is None or not bool((result.isinf() | (result == 0)).any()):
        return result
    try:
        wide = evaluate(expression, [value.to(wider) if value.dtype == result.dtype else value for value in values])
    except Exception:  # the step makes tensors of its own, in the type from before
        return result
    if wide.shape != result.shape:
        return result
    limits = torch.finfo(result.dtype)
    fits = wide.isfinite() & ((wide.abs() <= limits.max) | (result.dtype == torch.float16))
    result = torch.where(result.isinf() & fits, result.clamp(-limits.max / 2, limits.max / 2), result)  # noise is added to it
    if result.dtype == torch.float16:
        tiny = torch.full_like(result, limits.tiny).copysign(wide.to(result.dtype))
        result = torch.where((result == 0) & (wide.abs() > torch.finfo(torch.float32).tiny), tiny, result)
    return result


def _flushed(value: torch.Tensor) -> torch.Tensor:
    return torch.where(_is_small(value), 0, value) if value.is_floating_point() else value


def _perturbed(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    factor = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 0.6 + 0.2
    return torch.where(_is_small(value), (value.double() * factor).to(value.dtype), value)


def _is_small(value: torch.Tensor) -> torch.Tensor:
    return value.abs() < torch.finfo(torch.float32).smallest_normal


def _largest(value: torch.Tensor) -> float:
    finite = value[value.isfinite()].double()
    return float(finite.abs().max()) if finite.numel() else 0.0


def _is_exact(expression: str, values: Sequence[torch.Tensor], result: torch.Tensor) -> bool:
    """Whether a step rounds nothing: in float64 it gives the same numbers."""
    wide = [value.double() if value.is_floating_point() else value for value in values]
    try:
        exact = evaluate(expression, wide)
    except Exception:  # the step has no float64 form, or mixes it with a type that is named in it
        return False
    return exact.shape == result.shape and torch.equal(exact.double().nan_to_num(7, 8, 9), result.double().nan_to_num(7, 8, 9))


def _difference(got: torch.Tensor, want: torch.Tensor, noisy: Sequence[torch.Tensor]) -> str:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if any(other.shape != want.shape or other.dtype != want.dtype for other in noisy) or not want.numel():
        return ""
    if not want.is_floating_point():
        stable = torch.stack([other == want for other in noisy]).all(0)
        wrong = (got != want) & stable
    else:
        special = torch.stack([_pattern(other) == _pattern(want) for other in noisy]).all(0)
        spread = torch.stack([(other.double() - want.double()).abs().nan_to_num(0, 0, 0) for other in noisy]).amax(0)
        limit = (
            _RELATIVE[want.dtype] * want.double().abs()
            + 4 * spread
            + 1e-6 * max(float(_largest(want)), 1.0)
            + torch.finfo(want.dtype).smallest_normal
        )
        far = (got.double() - want.double()).abs() > limit
        wrong = special & torch.where(want.isfinite() & got.isfinite(), far, _pattern(got) != _pattern(want))
    if not bool(wrong.any()):
        return ""
    first, right = (value[wrong].reshape(-1)[:3].tolist() for value in (got, want))
    return f"{int(wrong.sum())} of {want.numel()} differ: {first} instead of {right}"


def _pattern(value: torch.Tensor) -> torch.Tensor:
    """0 for finite values, and a number each for the others."""
    return value.isnan() * 1 + value.isposinf() * 2 + value.isneginf() * 3
