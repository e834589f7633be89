"""What is compiled again, and what it costs: changing sizes, changed weights, the wrapper's overhead, memory over many sizes.

    python -m benchmarks.bench_lifetimes [--size 512] [--parts PART ...] [--out FOLDER] [--json] [--tiny]

The network is SD1.5's UNet (batch 2) with random weights. Every part runs in a separate process and checks counts and results
before its times are printed. Ratios are taken within one process, so that other work on the machine affects both sides.

- returning: sizes A, B, A, B (A is square, B is 1.5 times as wide), a change of weights like that of a LoRA, and its removal; a
  hook put on a module inside and taken off; all weights changed, as another checkpoint does. Beside it PyTorch's bare trace of B.
- overhead: the time of a call outside of OpenVINO's inference, which includes the checks for changed weights and code.
- peak: the increase of resident memory while the network is compiled; with an empty store, then with a stored graph.
- bounded: a hundred calls over 12 sizes, with a memory budget for three; every result is compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module

import ov_backend
from benchmarks.command import parser_of, run_child, show, write_line, write_result
from benchmarks.memory import Peak, resident
from benchmarks.networks import STAGES, TOLERANCE, seconds_of, unet
from ov_backend import Settings

#: Latent sizes of the part "bounded"; calls are quick, and compiled graphs take as much memory as for large sizes.
SIZES = [(height, width) for height in (16, 24, 32) for width in (16, 24, 32, 40)]
#: Number of compiled graphs that the memory budget of the part "bounded" allows.
CAPACITY = 3


class Bench:
    """The network, accelerated, with its inputs for any size."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.case = unet(64, options.tiny)
        self.module = self.case.module
        self.weights = sum(tensor.nbytes for tensor in self.module.state_dict().values())
        self.tolerance = TOLERANCE[options.precision]
        self.settings = Settings(precision=options.precision, cache_dir=options.store, fallback="raise")
        self.accelerated = ov_backend.accelerate({"unet": self.module}, self.settings)
        self.network = self.accelerated.engine.networks["unet"]

    def inputs(self, height: int, width: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call for latents of this size."""
        generator = torch.Generator().manual_seed(height * 1000 + width)
        return (torch.randn(2, 4, height, width, generator=generator), *self.case.args[1:]), self.case.kwargs

    def call(self, height: int, width: int) -> torch.Tensor:
        """The result of OpenVINO."""
        args, kwargs = self.inputs(height, width)
        return self.module(*args, **kwargs)

    def eager(self, height: int, width: int) -> torch.Tensor:
        """The result of PyTorch."""
        args, kwargs = self.inputs(height, width)
        return self.network.forward(*args, **kwargs)

    def bare_trace(self, height: int, width: int) -> float:
        """The seconds of PyTorch's own trace of a call, which watches nothing."""
        (args, kwargs), mode = self.inputs(height, width), FakeTensorMode(allow_non_fake_inputs=True)
        weights = {name: mode.from_tensor(parameter) for name, parameter in self.module.named_parameters()}

        def run(weights: dict[str, torch.Tensor], args: tuple[Any, ...]) -> torch.Tensor:
            with _reparametrize_module(self.module, weights):
                return self.network.forward(*args, **kwargs)

        fakes = tuple(map(mode.from_tensor, args))
        with mode:
            return seconds_of(lambda: make_fx(run)(weights, fakes))

    def error(self, actual: torch.Tensor, expected: torch.Tensor, slack: float = 1.0) -> float:
        """The relative error, which is checked; ``slack`` raises the tolerance for small pictures, which average less."""
        error = float((actual - expected).norm() / expected.norm())
        assert error < slack * self.tolerance, f"relative error {error}"
        return error

    def timed(self, height: int, width: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """A call's result, its seconds by stage, and its captures and compiles."""
        before, start = self.network.stats(), time.perf_counter()
        output = self.call(height, width)
        seconds = time.perf_counter() - start
        after = self.network.stats()
        spent = {s: round(after["seconds"].get(s, 0.0) - before["seconds"].get(s, 0.0), 4) for s in (*STAGES, "infer")}
        counts = {f"{name}_count": after[name] - before[name] for name in ("captures", "compiles")}
        return output, {"call_s": seconds, "outside_s": seconds - spent["infer"], **counts, "stages_s": spent}


@torch.no_grad()
def returning(options: argparse.Namespace) -> dict[str, Any]:
    """Sizes A, B, A, B; other weights; the first weights again. Nothing is compiled twice, and no result is stale."""
    bench = Bench(options)
    side = options.size // 8
    a, b = (side, side), (side, side * 3 // 2)
    outputs, calls, traces = {}, {}, []
    for name, size in (("A first", a), ("B first", b), ("A again", a), ("B again", b)):
        traces += [bench.bare_trace(*size)] if size == b else []
        outputs[name], calls[name] = bench.timed(*size)
    errors = {"A": bench.error(outputs["A first"], bench.eager(*a))}
    assert torch.equal(outputs["A first"], outputs["A again"])
    assert torch.equal(outputs["B first"], outputs["B again"])
    counts = [(call["captures_count"], call["compiles_count"]) for call in calls.values()]
    assert counts == [(1, 1), (1, 1), (0, 0), (0, 0)], counts

    changed = [parameter for name, parameter in bench.module.named_parameters() if ".to_" in name and name.endswith("weight")]
    backup = [parameter.clone() for parameter in changed]
    generator = torch.Generator().manual_seed(7)
    for parameter in changed:
        rows, columns = (torch.randn(n, 4, generator=generator) for n in parameter.shape)
        parameter.add_(rows @ columns.T, alpha=0.5 * float(parameter.std()))
    outputs["LoRA"], calls["LoRA put in"] = bench.timed(*a)
    errors["LoRA"] = bench.error(outputs["LoRA"], bench.eager(*a))
    difference = float((outputs["LoRA"] - outputs["A first"]).norm() / outputs["A first"].norm())
    assert difference > 2 * bench.tolerance, f"the LoRA changes the result too little ({difference}) to be meaningful"
    for parameter, before in zip(changed, backup):
        parameter.copy_(before)
    outputs["back"], calls["LoRA taken out"] = bench.timed(*a)
    assert torch.equal(outputs["back"], outputs["A first"]), "a stale result"
    hook = next(bench.module.children()).register_forward_pre_hook(lambda module, args: None)
    outputs["hook"], calls["hook put on"] = bench.timed(*a)
    hook.remove()
    outputs["no hook"], calls["hook taken off"] = bench.timed(*a)
    assert torch.equal(outputs["hook"], outputs["A first"])
    assert torch.equal(outputs["no hook"], outputs["A first"])
    for parameter in bench.module.parameters():
        parameter.mul_(1 + 0.05 * torch.rand(parameter.shape, generator=generator))
    outputs["other"], calls["another checkpoint"] = bench.timed(*a)
    errors["other"] = bench.error(outputs["other"], bench.eager(*a))
    assert not torch.equal(outputs["other"], outputs["A first"]), "a stale result"
    compiles = {"LoRA put in": 1, "LoRA taken out": 0, "hook put on": 0, "hook taken off": 0, "another checkpoint": 1}
    for name, expected in compiles.items():
        assert calls[name]["compiles_count"] == expected, (name, calls[name])
    changed_mib = sum(tensor.nbytes for tensor in changed) / 2**20
    return {"calls": calls, "bare_trace_s": min(traces), "relative_error": errors, "changed_mib": changed_mib}


class TimedRequest:
    """An inference request that adds up the seconds spent in it."""

    def __init__(self, request: Any) -> None:
        self._request, self.seconds = request, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def start_async(self) -> None:
        """Start the inference and the clock."""
        self._start = time.perf_counter()
        self._request.start_async()

    def wait(self) -> None:
        """Wait for the end of the inference, and add its seconds."""
        self._request.wait()
        self.seconds += time.perf_counter() - self._start


@torch.no_grad()
def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """The share of a call outside of the inference, and the ratio of its wall-clock time to that of a bare inference."""
    bench = Bench(options)
    size = (options.size // 8, options.size // 8)
    args, kwargs = bench.inputs(*size)
    error = bench.error(bench.module(*args, **kwargs), bench.eager(*size))
    compiled = bench.accelerated.engine.compiled
    entry = compiled.peek(next(iter(compiled)))
    assert entry is not None
    graph = entry.value.program.parts[""]
    request = graph._request
    graph._request = timed = TimedRequest(request)
    shares, checks, pairs = [], [], []
    for _ in range(options.repeats):
        timed.seconds, before = 0.0, bench.network.stats()["seconds"].get("check", 0.0)  # none so far
        start = time.perf_counter()
        expected = bench.module(*args, **kwargs)
        whole = time.perf_counter() - start
        shares.append((whole - timed.seconds) / whole)
        checks.append((bench.network.stats()["seconds"].get("check", 0.0) - before) / whole)
        start = time.perf_counter()
        request.infer()  # with the tensors of the previous call
        pairs.append(whole / (time.perf_counter() - start))
        assert torch.equal(expected, bench.module(*args, **kwargs) if options.tiny else expected)
    return {
        "step_s": whole,
        "relative_error": error,
        "wrapper_percent": 100 * statistics.median(shares),
        "check_percent": 100 * statistics.median(checks),
        "wrapper_ms": 1000 * statistics.median(shares) * whole,
        "to_bare_inference_ratio": statistics.median(pairs),
    }


@torch.no_grad()
def peak(options: argparse.Namespace) -> dict[str, Any]:
    """Memory while the network is compiled, with an empty store or (in the second run) with a stored graph."""
    bench = Bench(options)
    size = (options.size // 8, options.size // 8)
    args, kwargs = bench.inputs(*size)
    weights = bench.weights >> 20
    bench.eager(8, 8)  # memory of PyTorch's libraries must not count as that of the compile
    with Peak() as memory:
        bench.network.prepare(*args, **kwargs)
    compiled = resident()
    error = bench.error(bench.module(*args, **kwargs), bench.eager(*size)) if options.store_was_empty else None
    stats = bench.network.stats()
    assert stats["compiles"] == 1
    return {
        "weights_mib": weights,
        "before_mib": memory.before,
        "peak_extra_mib": memory.peak - memory.before,
        "kept_extra_mib": compiled - memory.before,
        "peak_extra_of_weights_ratio": (memory.peak - memory.before) / weights,
        "measured_entry_mib": stats["bytes"] >> 20,
        "captures_count": stats["captures"],
        "stored_count": stats["graph_hits"],
        "relative_error": error,
    }


@torch.no_grad()
def bounded(options: argparse.Namespace) -> dict[str, Any]:
    """Resident memory after every call, over twelve sizes in turn, with a memory budget for three."""
    bench = Bench(options)
    engine = bench.accelerated.engine
    expected = {size: bench.eager(*size) for size in SIZES}
    before, held, errors, series = resident(), [], [], []
    for number in range(options.generations):
        size = SIZES[number % len(SIZES)]
        errors.append(bench.error(bench.call(*size), expected[size], 2.0))
        if number == 0:
            budget_mb = int(engine.compiled.bytes * (CAPACITY + 0.4)) >> 20
            engine.configure(bench.settings.replace(memory_mb=max(1, budget_mb)))
        held.append(len(engine.compiled))
        series.append(resident())
    stats = bench.network.stats()
    assert stats["captures"] == min(len(SIZES), options.generations), stats["captures"]
    assert max(held) <= CAPACITY + 1, held
    rest = series[CAPACITY + 1 :]
    steps = torch.arange(len(rest), dtype=torch.float64)
    line = torch.linalg.lstsq(torch.stack([steps, torch.ones_like(steps)], 1), torch.tensor(rest, dtype=torch.float64)[:, None])
    return {
        "weights_mib": bench.weights >> 20,
        "before_mib": before,
        "series_mib": series,
        "held_count": held,
        "slope_per_call_mib": float(line.solution[0, 0]),
        "spread_mib": max(rest) - min(rest),
        "relative_error": max(errors),
        "compiles_count": stats["compiles"],
        "evictions_count": engine.compiled.evictions,
    }


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "returning": returning,
    "overhead": overhead,
    "peak": peak,
    "bounded": bounded,
}


def main() -> None:
    """Run the parts and print their figures."""
    options = parse()
    if options.child:
        logging.basicConfig(level=logging.WARNING)
        options.store_was_empty = not any(Path(options.store).glob("*")) if Path(options.store).is_dir() else True
        write_result(PARTS[options.child](options))
        return
    results: dict[str, Any] = {}
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            results[part] = in_child(part, options, folder)
            if part == "peak":
                results["peak, stored"] = in_child(part, options, folder)
                assert results["peak, stored"]["captures_count"] == results["peak, stored"]["stored_count"] == 1
    show(results, options, lambda results, _: write_line(table(results)))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "a small network")
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture")
    parser.add_argument("--precision", default="auto", choices=list(TOLERANCE))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5, help="calls of the part overhead")
    parser.add_argument("--generations", type=int, default=100, help="calls of the part bounded")
    parser.add_argument("--child", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_child(part: str, options: argparse.Namespace, store: str) -> Any:
    """The figures of one part, from a new process."""
    arguments = ["--child", part, "--store", store, "--size", options.size, "--precision", options.precision]
    arguments += ["--repeats", options.repeats, "--generations", options.generations]
    return run_child("benchmarks.bench_lifetimes", options, *arguments)


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    lines = []
    for part, figures in results.items():
        lines += ["", part]
        for name, call in figures.get("calls", {}).items():
            stages = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in call["stages_s"].items() if seconds >= 5e-4)
            counts = f"captures {call['captures_count']}, compiles {call['compiles_count']}"
            seconds = f"{call['call_s']:8.3f} s, {call['outside_s']:7.3f} s of it outside of inference"
            lines.append(f"  {name:15}{seconds}; {counts} ({stages})")
        for name, value in figures.items():
            if name != "calls":
                lines.append(f"  {name:26}{value:.4g}" if isinstance(value, float) else f"  {name:26}{value}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
