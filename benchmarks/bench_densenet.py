"""DenseNet-121 at its true size through ``torch.compile``, as in PyTorch's tutorial: eager f32 against ``openvino_fx``.

    python -m benchmarks.bench_densenet [--batch 4] [--size 224] [--repeats 5] [--precision f32]

Results are compared before a time is believed; the two are timed in turn, and the speed-up is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import ov_backend
from tests.helpers.densenet import DenseNet

#: Relative error allowed, by precision.
TOLERANCE = {"f32": 1e-3, "auto": 6e-2, "bf16": 6e-2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="f32", choices=list(TOLERANCE))
    given = parser.parse_args()
    torch.manual_seed(0)
    model = DenseNet().eval()
    assert sum(p.numel() for p in model.parameters()) == 7_978_856, "DenseNet-121 has that many"
    options = {"precision": given.precision, "fallback": "raise"}
    compiled = torch.compile(model, backend="openvino_fx", fullgraph=True, dynamic=False, options=options)
    x = torch.randn(given.batch, 3, given.size, given.size)
    with torch.no_grad():
        start = time.perf_counter()
        result = compiled(x)
        first = time.perf_counter() - start
        expected = model(x)
        error = float((result - expected).abs().max() / expected.abs().max())
        assert error <= TOLERANCE[given.precision], error
        pairs = [(seconds(model, x), seconds(compiled, x)) for _ in range(given.repeats)]
    (network,) = ov_backend.stats().values()
    assert (network["compiles"], network["fallbacks"]) == (1, {})
    eager, ours = (statistics.median(times) for times in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"DenseNet-121, {given.batch} x 3 x {given.size} x {given.size}, {given.precision}, {torch.get_num_threads()} threads")
    print(f"relative error {error:.2g}; first call {first:.1f} s")
    print(f"eager {eager:.3f} s, openvino_fx {ours:.3f} s, {ratio:.2f} times as fast")


def seconds(call: object, x: torch.Tensor) -> float:
    start = time.perf_counter()
    call(x)  # type: ignore[operator]
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
