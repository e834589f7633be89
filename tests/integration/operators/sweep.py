"""PyTorch's own operator database through the backend: every operator in f32 with the sample inputs it ships.

    python -m tests.integration.operators.sweep [--samples N] [--only NAME ...] [--json FILE] [--precision auto]

Each sample is traced, converted and run in OpenVINO, and compared with eager. In precision auto every float comes out of a
product first, and the answer may be twice as far from eager's as autocast's is. An ATen operator is *claimed* when the
partitioner gives it to OpenVINO; where such an operator disagrees, it belongs into ``known_wrong.py`` of the partitioner.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from ov_backend.core.errors import ConversionError, NothingToCompute, OVBackendError
from ov_backend.core.fx_utils import operators
from ov_backend.core.settings import Settings, operator_name
from ov_backend.model import compiler
from ov_backend.trace.capture import trace as capture
from ov_backend.trace.capture.trace import Captured
from ov_backend.trace.partitioning import known_wrong
from tests.soundness import autocast

SETTINGS = Settings(precision="f32", fallback="raise", model_caching=False, device="CPU")
#: Relative to the largest value of a result.
TOLERANCE = 1e-3


@dataclass
class Outcome:
    """One sample: ``status`` is agreed, disagreed, failed (OpenVINO raised), pytorch (nothing of it is claimed),
    random or untraceable; ``claimed`` are the ATen operators that ran in OpenVINO."""

    name: str
    sample: int
    status: str
    claimed: list[str] = field(default_factory=list)
    message: str = ""


def names() -> list[str]:
    """Every entry of the database that has f32 and is no random or uninitialised function."""
    return [f"{op.name}|{op.variant_test_name}" for op in op_db if torch.float32 in op.dtypes]


def outcomes(name: str, limit: int, seed: int = 0, precision: str = "f32") -> Iterator[Outcome]:
    """Run up to ``limit`` samples of one entry, chosen evenly over all of them."""
    (op,) = [op for op in op_db if f"{op.name}|{op.variant_test_name}" == name]
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), 400))
        chosen = samples if len(samples) <= limit else [samples[i * len(samples) // limit] for i in range(limit)]
        for i, sample in enumerate(chosen):
            yield _try(op, name, i, sample, precision)


def _try(op: Any, name: str, number: int, sample: Any, precision: str) -> Outcome:
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i].detach() for i in places]

    def run(slots: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = list(leaves)
        for i, tensor in zip(places, inputs):
            given[i] = _product(tensor) if precision == "auto" else tensor
        value, args, kwargs = pytree.tree_unflatten(given, spec)
        flat, _ = pytree.tree_flatten(op(value, *args, **kwargs))
        return [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]

    torch.manual_seed(1)
    try:
        with torch.no_grad():
            expected = run([], [tensor.clone() for tensor in tensors])
        gm = capture.trace(run, [], tensors)
        if any(torch.Tag.nondeterministic_seeded in node.target.tags for node in operators(gm)):
            return Outcome(name, number, "random")
    except Exception as error:  # an operator that fails by itself, or cannot be traced, says nothing of the backend
        return Outcome(name, number, "untraceable", message=_line(error))

    def judged(results: Sequence[torch.Tensor]) -> str | None:
        if precision == "f32":
            return "; ".join(message for got, want in zip(results, expected) if (message := difference(got, want)))
        return autocast.difference(results, lambda: run([], [tensor.clone() for tensor in tensors]))

    return _compare(name, number, gm, tensors, SETTINGS.replace(precision=precision), judged)


def _product(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, as the result of a product of matrices."""
    if tensor.dtype != torch.float32 or not tensor.numel():
        return tensor
    return (tensor.reshape(-1, 1) @ torch.ones(1, 1)).reshape(tensor.shape)


def _compare(
    name: str,
    number: int,
    gm: Any,
    tensors: list[torch.Tensor],
    settings: Settings,
    judged: Callable[[Sequence[torch.Tensor]], str | None],
) -> Outcome:
    last: list[Any] = []

    def claimed() -> list[str]:
        return sorted({operator_name(node.target) for part in last for node in operators(part)})

    original = compiler.convert

    def noting(part: Any, *args: Any, **kwargs: Any) -> Any:
        graph = original(part, *args, **kwargs)
        last.append(part)
        return graph

    compiler.convert = noting
    try:
        captured = Captured(gm, (), tuple(f"t{i}" for i in range(len(tensors))), {})
        program = compiler.Compiler(captured, settings).compile().program
        torch.manual_seed(1)
        results = program.compile({}, settings)(tensors)
    except NothingToCompute:
        return Outcome(name, number, "pytorch", message="nothing to compute")
    except ConversionError as error:
        whole = str(error).startswith(("none of its", "OpenVINO has no conversion"))
        return Outcome(name, number, "pytorch" if whole else "failed", claimed(), _line(error))
    except (OVBackendError, RuntimeError) as error:
        return Outcome(name, number, "failed", claimed() or _all(gm), _line(error))
    finally:
        compiler.convert = original
    wrong = judged(results)
    return Outcome(name, number, "disagreed" if wrong else "agreed" if wrong == "" else "not judged", claimed(), wrong or "")


def _all(gm: Any) -> list[str]:
    return sorted({operator_name(node.target) for node in operators(gm)})


def difference(got: torch.Tensor, want: torch.Tensor) -> str:
    """How a result differs from eager's, or ""."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if not want.numel():
        return ""
    if not want.dtype.is_floating_point:
        return "" if torch.equal(got, want) else f"{int((got != want).sum())} of {want.numel()} values differ"
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite) or not torch.equal(got[~finite].nan_to_num(), want[~finite].nan_to_num()):
        return "differs in what is not finite"
    error = float((got[finite] - want[finite]).abs().max()) if bool(finite.any()) else 0.0
    scale = max(1.0, float(want[finite].abs().max()) if bool(finite.any()) else 0.0)
    return "" if error <= TOLERANCE * scale else f"off by {error:.3g} of {scale:.3g}"


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:200]


def _work(tasks: Sequence[str], limit: int, precision: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    for name in tasks:
        pipe.send(("begin", name))
        try:
            found = [asdict(outcome) for outcome in outcomes(name, limit, precision=precision)]
        except Exception as error:  # a sample generator that needs what is not installed
            found = [asdict(Outcome(name, 0, "untraceable", message=_line(error)))]
        pipe.send(("end", found))
    pipe.send(("done", None))


def sweep(tasks: Iterable[str], limit: int, precision: str = "f32") -> Iterator[Outcome]:
    """Run entries in a process of their own; one that crashes it is reported as failed and the rest goes on."""
    waiting = list(tasks)
    context = multiprocessing.get_context("spawn")
    while waiting:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(waiting, limit, precision, theirs))
        process.start()
        theirs.close()
        current = waiting[0]
        try:
            while True:
                if not ours.poll(240):
                    process.kill()
                    raise EOFError
                kind, value = ours.recv()
                if kind == "done":
                    return
                if kind == "begin":
                    current = value
                else:
                    yield from (Outcome(**one) for one in value)
        except EOFError:
            yield Outcome(current, 0, "failed", message="the process crashed or hung")
        finally:
            process.join()
        waiting = waiting[waiting.index(current) + 1 :]


def summary(found: Sequence[Outcome]) -> dict[str, Any]:
    """Claimed, tried, agreed and disagreeing ATen operators, and samples by status."""
    good, bad = set[str](), dict[str, list[str]]()
    for one in found:
        if one.status == "agreed":
            good.update(one.claimed)
        elif one.status in ("disagreed", "failed"):
            for op in one.claimed or ["?"]:
                bad.setdefault(op, []).append(f"{one.name} #{one.sample}: {one.message}")
    status: dict[str, int] = {}
    for one in found:
        status[one.status] = status.get(one.status, 0) + 1
    return {
        "torch": str(torch.__version__),
        "entries": len({one.name for one in found}),
        "samples": status,
        "claimed": len(good | set(bad)),
        "agreed": len(good - set(bad)),
        "withdrawn": len({name for fault in known_wrong.FAULTS for name in fault.operators}),
        "disagreeing": {op: messages[:4] for op, messages in sorted(bad.items())},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--precision", choices=["f32", "auto"], default="f32")
    given = parser.parse_args()
    chosen = [n for n in names() if not given.only or n.partition("|")[0] in given.only]
    found = list(sweep(chosen, given.samples, given.precision))
    text = json.dumps(summary(found), indent=2)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
