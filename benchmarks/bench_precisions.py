"""A step of SD1.5's UNet in every precision, by PyTorch and in OpenVINO: the README's table of speed.

    python -m benchmarks.bench_precisions [--size 512] [--rounds 5] [--out FOLDER] [--json] [--tiny]

The weights are random. One process has all of them and times them in turn; the table has the fastest step of each. *first* is
the first call, which traces, converts and compiles. The results are compared with PyTorch's in f32 before anything is printed.
With ``ONEDNN_MAX_CPU_ISA=AVX2_VNNI ATEN_CPU_CAPABILITY=avx2`` in the environment a CPU with bf16 computes as most laptops do.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.bench_int8 import _MAX_ERROR, _use_whatever_the_error
from benchmarks.command import parser_of, show, write_line
from benchmarks.networks import TOLERANCE, seconds_of
from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.engine.engine import Engine, NetworkHooks
from ov_backend.int8.calibration import MIN_CALLS

#: Computes a step with the given timestep.
Step = Callable[[float], torch.Tensor]


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "a narrow network")
    parser.add_argument("--size", type=int, default=512, help="pixels of the square picture whose step is timed")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of timed steps")
    options = parser.parse_args()
    _use_whatever_the_error()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        results = measure(options, folder)
    show(results, options, report)


def measure(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Seconds of the first and of the fastest step, by who computes it and in what."""
    module = unet(options.tiny)
    steps = {"PyTorch f32": step_of(module, options)}
    (cpu,) = (device for device in devices.list_devices() if device.name == "CPU")
    half = [name for name in cpu.precisions if name == "bf16"]
    if half:  # PyTorch computes in bf16 everywhere, but without instructions for it a step takes many times as long
        copied = copy.deepcopy(module).to(torch.bfloat16, memory_format=torch.channels_last)
        steps["PyTorch bf16"] = step_of(copied, options, torch.bfloat16)
    engines = {}
    for precision in ("f32", *half, "int8"):
        engines[precision] = Engine(Settings(precision=precision, cache_dir=folder, fallback="raise"))
        network = engines[precision].network("unet", module, hooks=NetworkHooks(quantizable=True))
        steps[f"OpenVINO {precision}"] = step_of(network, options)
    expected = steps["PyTorch f32"](500.0)
    firsts = {name: seconds_of(lambda step=step: step(500.0)) for name, step in steps.items()}
    if not calibrated(steps["OpenVINO int8"], engines["int8"]):
        del steps["OpenVINO int8"]
    errors = {name: float((step(500.0).float() - expected).norm() / expected.norm()) for name, step in steps.items()}
    for name, error in errors.items():
        assert error < {**TOLERANCE, "int8": _MAX_ERROR}[name.split()[-1]], f"{name}: relative error {error}"
    rounds = [{name: seconds_of(lambda step=step: step(500.0)) for name, step in steps.items()} for _ in range(options.rounds)]
    return {name: {**row(firsts[name], [each[name] for each in rounds]), "relative_error": errors[name]} for name in steps}


def row(first: float, steps: list[float]) -> dict[str, float]:
    """Seconds of the first call, and of the fastest and the slowest step."""
    return {"first_call_s": first, "step_s": min(steps), "slowest_step_s": max(steps)}


def unet(tiny: bool) -> torch.nn.Module:
    """SD1.5's UNet as diffusers has it, with random weights."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    narrow = {"block_out_channels": (32, 64, 64, 64)} if tiny else {}
    return UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8, **narrow).eval()


def step_of(network: Callable[..., Any], options: argparse.Namespace, dtype: torch.dtype = torch.float32) -> Step:
    """A step of one picture with guidance: batch 2, 77 tokens."""
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(2, 4, options.size // 8, options.size // 8, generator=generator).to(dtype)
    context = torch.randn(2, 77, 768, generator=generator).to(dtype)
    return lambda timestep: network(latent, torch.tensor(timestep), encoder_hidden_states=context, return_dict=False)[0]


def calibrated(step: Step, engine: Engine) -> bool:
    """Draw the picture that calibrates, and begin the next one; whether that one is in 8 bits."""
    for call in range(MIN_CALLS):
        step(500.0 * (MIN_CALLS - call) / MIN_CALLS)
    engine.end_run()
    engine.resources.ahead.wait()
    for network in engine.networks.values():
        network.begin_run()
    step(500.0)
    (stats,) = engine.stats().values()
    return bool(stats["int8"]["state"] == "on")


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the figures."""
    versions = f"torch {torch.__version__}, OpenVINO {devices.openvino_version()}, {torch.get_num_threads()} threads"
    write_line(f"UNet of SD1.5, {options.size}x{options.size}, batch 2, random weights; {versions}")
    slowest = results["PyTorch f32"]["step_s"]
    for name, seconds in results.items():
        first, step = seconds["first_call_s"], seconds["step_s"]
        write_line(f"  {name:14} first {first:7.2f} s   step {step:7.3f} s   {slowest / step:5.2f} times as fast")


if __name__ == "__main__":
    main()
