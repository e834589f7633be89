"""What one call of a small network costs beside its arithmetic: microseconds in one thread, by who answers it.

    python -m benchmarks.bench_call [--calls 50] [--rounds 60] [--json]

The network is a Linear of 8 by 8. Every answer is compared with eager PyTorch's before it is timed. The ways take turns, so that
other work on the machine affects all; the best and the median round are given.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable

import openvino as ov
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.torch_compile.fallback import compiler_found

SIZE = 8
Call = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=50, help="calls in a round")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        result = measure(options.calls, options.rounds)
    sys.stdout.write(json.dumps(result, indent=1) + "\n" if options.json else table(result))


def ways(module: torch.nn.Module) -> dict[str, Call]:
    """Who answers a call, by name; each has a copy of the module."""
    accelerated = copy.deepcopy(module)
    ov_backend.accelerate({"net": accelerated}, Settings(model_caching=False))
    options = {"model_caching": False}
    return {
        "eager": module,
        "Dynamo alone": torch.compile(copy.deepcopy(module), backend="eager"),
        **({"inductor": torch.compile(copy.deepcopy(module), backend="inductor")} if compiler_found() else {}),
        "openvino_fx": torch.compile(copy.deepcopy(module), backend="openvino_fx", options=options),
        "accelerate": accelerated,
        "OpenVINO's request": request(module),
    }


def request(module: torch.nn.Module) -> Call:
    """OpenVINO's own start and wait, on tensors that are set once."""
    x = torch.empty(SIZE, SIZE)
    inference = ov.compile_model(ov.convert_model(module, example_input=x, input=[SIZE, SIZE]), "CPU").create_infer_request()
    result = torch.empty(SIZE, SIZE)
    inference.set_input_tensor(ov.Tensor(x.numpy(), shared_memory=True))
    inference.set_output_tensor(ov.Tensor(result.numpy(), shared_memory=True))

    def call(values: torch.Tensor) -> torch.Tensor:
        if values is not x:
            x.copy_(values)
        inference.start_async()
        inference.wait()
        return result

    call.own = x  # type: ignore[attr-defined]
    return call


def measure(calls: int, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of a call by name: the best round's and the median."""
    module, x = torch.nn.Linear(SIZE, SIZE).eval(), torch.randn(SIZE, SIZE)
    times: dict[str, list[float]] = {}
    functions = ways(module)
    for name, call in functions.items():
        torch.testing.assert_close(call(x), module(x), rtol=0, atol=3e-2, msg=f"{name} is wrong")  # half a precision, maybe
        for _ in range(4 * calls):
            call(x)
    for _ in range(rounds):
        for name, call in functions.items():
            given = getattr(call, "own", x)
            began = time.perf_counter()
            for _ in range(calls):
                call(given)
            times.setdefault(name, []).append((time.perf_counter() - began) / calls * 1e6)
    return {name: {"best": min(each), "median": statistics.median(each)} for name, each in times.items()}


def table(result: dict[str, dict[str, float]]) -> str:
    """The figures as a Markdown table."""
    rows = [f"| {name} | {each['best']:.0f} | {each['median']:.0f} |" for name, each in result.items()]
    return "\n".join(["| microseconds a call | best | median |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    main()
