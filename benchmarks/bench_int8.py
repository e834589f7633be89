"""int8 against the device's own precision: seconds of a step of SD1.5's UNet, and what the compiled forms take.

    python -m benchmarks.bench_int8 [--size 512] [--repeats 5] [--pytorch] [--profile] [--also Add Multiply] [--tiny] [--json]

With ``ONEDNN_MAX_CPU_ISA=AVX2_VNNI ATEN_CPU_CAPABILITY=avx2`` in the environment the own precision is f32, as on most
laptops. The networks are timed alternately, so that a change of the machine's speed affects all; a ratio is the median ratio of
the pairs. Before anything is printed, it is asserted that the layers compute in 8 bits, and that the result of a step with
random weights is within 12 percent. ``bench_int8_quality`` has the pictures. ``--profile`` also sums the time of
one step by kind and type of layer. ``--also`` has layers in 8 bits that are left out for the pictures' sake, by the operator that
they read; ``--finest`` leaves them out at the finest resolution only.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.command import parser_of, show, write_line
from benchmarks.networks import Case, seconds_of, unet
from ov_backend import Settings, devices
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.quantization.calibration import MIN_CALLS
from ov_backend.quantization.recipe import MAX_ERROR
from ov_backend.transformations import weighted_layers

#: Kinds of layers that int8 is about, in OpenVINO's runtime model.
_KINDS = ("Convolution", "FullyConnected")


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        results: dict[str, Any] = {"precision": devices.resolved_precision(Settings())}
        results["step"] = steps(options, folder)
    show(results, options, report)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "a narrow network")
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture whose step is timed")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of timed calls")
    parser.add_argument("--pytorch", action="store_true", help="time PyTorch in f32 as well")
    parser.add_argument("--profile", action="store_true", help="sum the time of a step by kind of layer")
    kinds = list(weighted_layers.LEFT_OUT_INPUTS)
    parser.add_argument("--also", nargs="+", default=[], choices=kinds, help="layers in 8 bits as well, by what they read")
    parser.add_argument("--finest", nargs="+", default=[], choices=kinds, help="left out at the finest resolution only")
    return parser.parse_args()


@torch.no_grad()
def steps(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Seconds of one step in int8 and in the device's own precision, and how many layers compute in 8 bits."""
    case = unet(options.size, options.tiny)
    config = {"PERF_COUNT": "YES"} if options.profile else {}
    have_more_in_8_bits(options.also, options.finest)
    own = _network(case, Settings(cache_dir=folder, fallback="raise", config=config))
    int8 = _network(case, Settings(cache_dir=folder, fallback="raise", precision="int8", config=config))
    latent, timestep = case.args
    for call in range(MIN_CALLS):  # as many as a short generation has
        int8(latent, timestep * (MIN_CALLS - call) / MIN_CALLS, **case.kwargs)
    observed = seconds_of(lambda: int8(*case.args, **case.kwargs))
    int8.begin_run()
    first = seconds_of(lambda: int8(*case.args, **case.kwargs))
    stated = int8.stats()["int8"]
    _use_although_refused(int8)
    int8(*case.args, **case.kwargs)
    types = runtime_types(int8)
    assert types["Convolution"]["u8"] + types["Convolution"]["i8"] > types["Convolution"].total() / 2, f"{stated} {types}"
    expected, actual = (network(*case.args, **case.kwargs) for network in (own, int8))
    error = float((actual - expected).norm() / expected.norm())
    assert error < 4 * MAX_ERROR, f"relative error {error}"
    rounds = [[seconds_of(lambda n=n: n(*case.args, **case.kwargs)) for n in (own, int8)] for _ in range(options.repeats)]
    result = {
        "own": min(own for own, _ in rounds),
        "int8": min(int8 for _, int8 in rounds),
        "ratio": statistics.median(int8 / own for own, int8 in rounds),
        "observed": observed,
        "first_int8": first,
        "relative_error": error,
        "types": {kind: dict(counts) for kind, counts in types.items()},
        "seconds": int8.stats()["seconds"],
        "megabytes": {"own": _megabytes(own), "int8": _megabytes(int8)},
    }
    if options.profile:
        result["profile"] = {name: profile(network) for name, network in (("own", own), ("int8", int8))}
    if options.pytorch:
        result["pytorch"] = min(seconds_of(case) for _ in range(2))
    return result


def have_more_in_8_bits(also: Sequence[str], finest: Sequence[str]) -> None:
    """Change which layers are left out in this process, by the operators that they read."""
    for operator in also:
        del weighted_layers.LEFT_OUT_INPUTS[operator]
    weighted_layers.EVERYWHERE -= {*also, *finest}


def _network(case: Case, settings: Settings) -> Network:
    return Engine(settings).network("unet", case.module, hooks=NetworkHooks(quantizable=True))


def _use_although_refused(network: Network) -> None:
    """Use a network's recipe for its steps' time: random weights say nothing of the pictures."""
    recipes = network.resources.recipes
    assert recipes.store is not None
    (entry,) = recipes.store.entries()
    architecture, checkpoint = entry.key[:32], entry.key[32:]
    recipe = recipes.get(architecture, checkpoint)
    assert recipe is not None
    recipes.put(architecture, dataclasses.replace(recipe, refused=""))


def runtime_types(network: Network) -> dict[str, Counter[str]]:
    """How many layers compute in which type, by kind, in what a network has compiled last."""
    compiled = network.resources.compiled
    types: dict[str, Counter[str]] = {kind: Counter() for kind in _KINDS}
    for part in compiled.peek(list(compiled)[-1]).value.program.parts.values():
        for node in part._request.get_compiled_model().get_runtime_model().get_ops():
            kind, element_type = (node.get_rt_info()[name].astype(str) for name in ("layerType", "runtimePrecision"))
            if kind in types:
                types[kind][element_type] += 1
    return types


def _megabytes(network: Network) -> dict[str, int]:
    """What each form of a network takes; one that is off too much is compiled in its own precision as well."""
    compiled = network.resources.compiled
    return {key.form.partition(" ")[0] or "own": compiled.peek(key).bytes >> 20 for key in compiled}


def profile(network: Network) -> dict[str, float]:
    """Milliseconds of the last step by kind of layer and the implementation, the longest first."""
    compiled = network.resources.compiled
    milliseconds: Counter[str] = Counter()
    for part in compiled.peek(list(compiled)[-1]).value.program.parts.values():
        for layer in part._request.profiling_info:
            milliseconds[f"{layer.node_type} {layer.exec_type}"] += layer.real_time.total_seconds() * 1e3
    return {kind: round(value, 1) for kind, value in milliseconds.most_common() if value >= 1}


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the figures."""
    own = results["precision"]
    write_line(f"torch {torch.__version__}, OpenVINO {devices.openvino_version()}, {torch.get_num_threads()} threads; own: {own}")
    step = results["step"]
    write_line(f"\nUNet of SD1.5, {options.size}x{options.size}, batch 2, random weights: seconds a step")
    if "pytorch" in step:
        write_line(f"  PyTorch f32     {step['pytorch']:8.3f}")
    write_line(f"  {own:4}            {step['own']:8.3f}")
    write_line(f"  int8            {step['int8']:8.3f}   {step['ratio']:.2f} of {own} (median of pairs)")
    write_line(f"  {own:4}, observed  {step['observed']:8.3f}   making the recipe and the first step {step['first_int8']:.1f} s")
    write_line(f"  relative error  {step['relative_error']:8.4f}   layers {step['types']}   MB {step['megabytes']}")
    for name, kinds in step.get("profile", {}).items():
        write_line(f"\nOne step in {name}, {sum(kinds.values()):.0f} ms")
        for kind, value in kinds.items():
            write_line(f"  {value:8.1f} ms  {kind}")


if __name__ == "__main__":
    main()
