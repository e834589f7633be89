"""DenseNet-121 at its full size through ``torch.compile``, as in PyTorch's tutorial: eager f32 against ``openvino_fx``.

    python -m benchmarks.bench_densenet [--batch 4] [--size 224] [--repeats 5] [--precision f32] [--out FOLDER] [--json]

Results are compared before times are reported. Both are timed alternately, and the speed-up is the median ratio of the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import ov_backend
from benchmarks.command import parser_of, show, write_line
from benchmarks.networks import TOLERANCE, seconds_of
from tests.helpers.densenet import DenseNet


def main() -> None:
    parser = parser_of(__doc__, "one picture of 64 pixels")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="f32", choices=["f32", "auto", "bf16"])
    options = parser.parse_args()
    if options.tiny:
        options.batch, options.size = 1, 64
    torch.manual_seed(0)
    model = DenseNet().eval()
    assert sum(p.numel() for p in model.parameters()) == 7_978_856, "not the number of parameters of DenseNet-121"
    compile_options = {"precision": options.precision, "fallback": "raise"}
    compiled = torch.compile(model, backend="openvino_fx", fullgraph=True, dynamic=False, options=compile_options)
    x = torch.randn(options.batch, 3, options.size, options.size)
    with torch.no_grad():
        start = time.perf_counter()
        result = compiled(x)
        first = time.perf_counter() - start
        expected = model(x)
        error = float((result - expected).abs().max() / expected.abs().max())
        assert error <= TOLERANCE[options.precision], error
        pairs = [(seconds_of(lambda: model(x)), seconds_of(lambda: compiled(x))) for _ in range(options.repeats)]
    (network,) = ov_backend.stats().values()
    assert (network["compiles"], network["fallbacks"]) == (1, {})
    eager, ours = (statistics.median(times) for times in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    results = {"first_call_s": first, "eager_s": eager, "ours_s": ours, "speed_ratio": ratio, "relative_error": error}
    show(results, options, report)


def report(results: dict[str, float], options: argparse.Namespace) -> None:
    """Print the figures."""
    shape = f"{options.batch} x 3 x {options.size} x {options.size}"
    write_line(f"DenseNet-121, {shape}, {options.precision}, {torch.get_num_threads()} threads")
    for name, figure in results.items():
        write_line(f"{name:16}{figure:.3g}")


if __name__ == "__main__":
    main()
