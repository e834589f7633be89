"""int8 against the device's own precision: seconds of a step of SD1.5's UNet, and what the compiled forms take.

    python -m benchmarks int8 [--size 512] [--repeats 5] [--pictures 2] [--pytorch] [--profile] [--also Add Multiply]
        [--out FOLDER] [--tiny]

With ``ONEDNN_MAX_CPU_ISA=AVX2_VNNI ATEN_CPU_CAPABILITY=avx2`` in the environment the own precision is f32, as on most
laptops. The networks are timed alternately, so that a change of the machine's speed affects all; a ratio is the median ratio of
the pairs. Before anything is printed, it is asserted that the layers compute in 8 bits, and that the result of a step with
random weights is within 12 percent; the limit of 3 percent does not hold in this process. ``bench_int8_quality`` has pictures.

The wait that calibration adds is measured twice: where the next picture begins at once, and where the recipe was made in the
background before. ``--pictures`` draws whole pictures by turns: the UNet at the 20 noise levels of DPM++ 2M, the first four in
the device's own precision, and the VAE's decoder.

``--profile`` also sums the time of one step by kind and type of layer. ``--also`` has layers in 8 bits that are left out for the
pictures' sake, by the operator that they read; ``--everywhere`` leaves out at every resolution what is left out at the finest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.command import parser_of, show, write_line
from benchmarks.networks import Case, seconds_of, unet, vae_decoder
from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.int8 import recipe
from ov_backend.int8.calibration import MIN_CALLS
from ov_backend.model.transformations import layers_in_8_bits

#: Kinds of layers that int8 is about, in OpenVINO's runtime model.
_KINDS = ("Convolution", "FullyConnected")
#: The largest relative error of a step with random weights.
_MAX_ERROR = 0.12
#: The steps of a whole picture.
_TIMESTEPS = range(999, 0, -50)
#: The figures that a step and a picture have in both precisions.
_COMPARED = ("own_s", "int8_s", "int8_ratio")


def main() -> None:
    """Measure and print."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        results = {"own": devices.resolved_precision(Settings()), **steps(options, folder)}
    show(results, options, report)


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__, "a narrow network")
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture whose step is timed")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of timed calls")
    parser.add_argument("--pictures", type=int, default=0, help="pairs of whole pictures of 20 steps")
    parser.add_argument("--pytorch", action="store_true", help="time PyTorch in f32 as well")
    parser.add_argument("--profile", action="store_true", help="sum the time of a step by kind of layer")
    kinds = list(layers_in_8_bits.LEFT_OUT_INPUTS)
    parser.add_argument("--also", nargs="+", default=[], choices=kinds, help="layers in 8 bits as well, by what they read")
    kinds = sorted(layers_in_8_bits.ONLY_AT_FINEST)
    parser.add_argument("--everywhere", nargs="+", default=[], choices=kinds, help="left out everywhere, by what they read")
    return parser.parse_args()


@torch.no_grad()
def steps(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Seconds of one step in int8 and in the device's own precision, and how many layers compute in 8 bits."""
    case = unet(options.size, options.tiny)
    config = {"PERF_COUNT": "YES"} if options.profile else {}
    change_what_is_left_out(options.also, options.everywhere)
    settings = Settings(cache_dir=folder, fallback="raise", config=config)
    _, own = _network(case, settings)
    own(*case.args, **case.kwargs)
    _use_whatever_the_error()
    wait = {"waited for": waited_for(case, settings, own)}
    wait["in the background"], int8 = in_the_background(case, settings)
    stated, types = int8.stats()["int8"], runtime_types(int8)
    assert types["Convolution"]["u8"] + types["Convolution"]["i8"] > types["Convolution"].total() / 2, f"{stated} {types}"
    expected, actual = (network(*case.args, **case.kwargs) for network in (own, int8))
    error = float((actual - expected).norm() / expected.norm())
    assert error < _MAX_ERROR, f"relative error {error}"
    result = {
        **compared(options.repeats, [lambda n=n: n(*case.args, **case.kwargs) for n in (own, int8)]),
        "wait_s": wait,
        "relative_error": error,
        "layers_count": {kind: dict(counts) for kind, counts in types.items()},
        "stages_s": int8.stats()["seconds"],
        "compiled_mib": {"own": _megabytes(own), "int8": _megabytes(int8)},
    }
    if options.pictures:
        result["pictures"] = whole_pictures(case, own, int8, options)
    if options.profile:
        result["profile_ms"] = {name: profile(network) for name, network in (("own", own), ("int8", int8))}
    if options.pytorch:
        result["pytorch_s"] = min(seconds_of(case) for _ in range(2))
    return result


def compared(rounds: int, calls: Sequence[Callable[[], object]]) -> dict[str, float]:
    """The figures of :data:`_COMPARED` of two calls by turns: the first in the own precision, the second in int8."""
    pairs = [[seconds_of(call) for call in calls] for _ in range(rounds)]
    ratio = statistics.median(int8 / own for own, int8 in pairs)
    return dict(zip(_COMPARED, (*map(min, zip(*pairs)), ratio)))


def whole_pictures(case: Case, own: Network, int8: Network, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of pictures in both precisions; the decoder is the same for both."""
    decoded, (latent, timestep) = vae_decoder(options.size, options.tiny), case.args
    decoder = Engine(own.resources.settings).network("vae", decoded.module)

    def picture(network: Network, timesteps: Sequence[int]) -> None:
        network.begin_run()
        for step in timesteps:
            network(latent, torch.full_like(timestep, step), **case.kwargs)
        decoder(*decoded.args, **decoded.kwargs)

    picture(int8, _TIMESTEPS[::19])  # both forms are compiled before the first picture
    figures = compared(options.pictures, [lambda n=n: picture(n, _TIMESTEPS) for n in (own, int8)])
    return {**figures, "decode_s": seconds_of(lambda: decoder(*decoded.args, **decoded.kwargs))}


def change_what_is_left_out(also: Sequence[str], everywhere: Sequence[str]) -> None:
    """Change which layers are left out in this process, by the operators that they read; ``also`` goes before ``everywhere``."""
    for operator in also:
        layers_in_8_bits.LEFT_OUT_INPUTS.pop(operator, None)
    layers_in_8_bits.ONLY_AT_FINEST -= {*also, *everywhere}


def waited_for(case: Case, settings: Settings, own: Network) -> dict[str, float]:
    """Seconds that calibration adds where the next picture begins at once; the recipe is removed afterwards."""
    _, int8 = _network(case, settings.replace(precision="int8"))
    _picture(case, int8)
    pairs = [[seconds_of(lambda n=n: n(*case.args, **case.kwargs)) for n in (own, int8)] for _ in range(MIN_CALLS)]
    result = {"own": min(own for own, _ in pairs), "observed": min(observed for _, observed in pairs)}
    result["a step, more"] = statistics.median(observed - own for own, observed in pairs)
    result |= first_step(case, int8)
    store = int8.resources.recipes.store
    assert store is not None
    store.clear()
    int8.resources.clear()
    return result


def in_the_background(case: Case, settings: Settings) -> tuple[dict[str, float], Network]:
    """Seconds of the same where the first picture was over for long, and the network."""
    engine, int8 = _network(case, settings.replace(precision="int8"))
    _picture(case, int8)
    engine.end_run()
    background = seconds_of(engine.resources.ahead.wait)
    return {"background": background, **first_step(case, int8)}, int8


def first_step(case: Case, network: Network) -> dict[str, float]:
    """Seconds of the first step after a calibration, by what they are spent on."""
    before = network.stats()["seconds"]
    total = seconds_of(lambda: (network.begin_run(), network(*case.args, **case.kwargs)))
    spent = {stage: seconds - before[stage] for stage, seconds in network.stats()["seconds"].items()}
    parts = {"check of the weights": spent["check"], "weights in 8 bits": spent["bind"], "compile": spent["compile"]}
    tried = total - sum(parts.values()) - spent["infer"]
    return {"total": total, **parts, "trial, and all else": tried, "first step": spent["infer"]}


def _network(case: Case, settings: Settings) -> tuple[Engine, Network]:
    engine = Engine(settings)
    return engine, engine.network("unet", case.module, hooks=NetworkHooks(quantizable=True))


def _picture(case: Case, network: Network) -> None:
    """As many calls as a short generation has."""
    latent, timestep = case.args
    for call in range(MIN_CALLS):
        network(latent, timestep * (MIN_CALLS - call) / MIN_CALLS, **case.kwargs)


def _use_whatever_the_error() -> None:
    """Use recipes in this process that are off too much: random weights say nothing of the pictures."""
    recipe.MAX_ERROR = 1.0


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
    own = results["own"]
    write_line(f"torch {torch.__version__}, OpenVINO {devices.openvino_version()}, {torch.get_num_threads()} threads; own: {own}")
    write_line(f"\nUNet of SD1.5, {options.size}x{options.size}, batch 2, random weights: seconds a step")
    if "pytorch_s" in results:
        write_line(f"  PyTorch f32     {results['pytorch_s']:8.3f}")
    write_line(f"  {own:4}            {results['own_s']:8.3f}")
    write_line(f"  int8            {results['int8_s']:8.3f}   {results['int8_ratio']:.2f} of {own} (median of pairs)")
    if "pictures" in results:
        own_s, int8_s, ratio = (results["pictures"][key] for key in _COMPARED)
        decoder = f"(VAE {results['pictures']['decode_s']:.2f})"
        write_line(f"  {len(_TIMESTEPS)} steps: {own_s:.1f} in {own}, {int8_s:.1f} in int8, {ratio:.2f} of it {decoder}")
    write_line(f"  relative error  {results['relative_error']:8.4f}   layers {results['layers_count']}")
    write_line(f"  compiled, MiB   {results['compiled_mib']}")
    report_wait(results["wait_s"])
    for name, kinds in results.get("profile_ms", {}).items():
        write_line(f"\nOne step in {name}, {sum(kinds.values()):.0f} ms")
        for kind, value in kinds.items():
            write_line(f"  {value:8.1f} ms  {kind}")


def report_wait(wait: dict[str, dict[str, float]]) -> None:
    """Print what calibration adds."""
    now, later = wait["waited for"], wait["in the background"]
    write_line("\nThe wait that calibration adds, seconds")
    write_line(f"  a step of the first picture {now['a step, more']:+9.3f}   {now['own']:.3f} to {now['observed']:.3f}")
    write_line(f"  in the background           {later['background']:9.2f}   when the first picture is over")
    write_line("  the next picture begins       at once  after that")
    for name in ("check of the weights", "weights in 8 bits", "compile", "trial, and all else", "first step", "total"):
        write_line(f"  {name:28}{now[name]:9.2f}{later[name]:12.2f}")


if __name__ == "__main__":
    main()
