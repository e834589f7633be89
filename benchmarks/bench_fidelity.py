"""Pictures of the demo checkpoint by OpenVINO and by PyTorch in float32: PSNR and differences of pixels by sampler and precision.

    python -m benchmarks.bench_fidelity [--seeds 8] [--steps 20] [--precision f32 auto] [--out FOLDER] [--json] [--tiny]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import diffusers
import numpy as np
import torch
from tqdm import tqdm

import ov_backend
from benchmarks.command import parser_of, show, write_line
from ov_backend import Settings
from ov_backend.core import devices
from training.paths import CHECKPOINT_DIR, COMPANION_DIR

#: Least PSNR in dB; another seed's picture is below 15.
LEAST_PSNR = {"f32": 70.0, "bf16": 25.0, "f16": 40.0}
SAMPLERS = {
    "DDIM": ("DDIMScheduler", {}),
    "Euler": ("EulerDiscreteScheduler", {}),
    "Euler a": ("EulerAncestralDiscreteScheduler", {}),
    "DPM++ 2M": ("DPMSolverMultistepScheduler", {}),
    "UniPC": ("UniPCMultistepScheduler", {}),
}
PROMPTS = (
    "a cat face on a blue background", "a rocket under a night sky", "a flat guitar on a red background", "a pink elephant",
    "line art of a bicycle on a yellow background", "a panda and a balloon in a meadow", "a castle in the snow", "a pizza",
)  # fmt: skip


def pipeline() -> Any:
    """The demo checkpoint as a diffusers pipeline, loaded from its single file."""
    pipe = diffusers.StableDiffusionPipeline.from_single_file(
        str(CHECKPOINT_DIR / "fluent-sd.safetensors"), config=str(COMPANION_DIR), local_files_only=True, torch_dtype=torch.float32
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def pictures(pipe: Any, seeds: int, steps: int, title: str) -> dict[str, np.ndarray]:
    """The pictures of all seeds for every sampler, uint8 [seeds, 256, 256, 3]."""
    config, by_sampler = pipe.scheduler.config, {}
    for name, (kind, changes) in SAMPLERS.items():
        pipe.scheduler = getattr(diffusers, kind).from_config(config, **changes)
        rows = []
        for seed in tqdm(range(seeds), desc=f"{title} {name}", mininterval=10):
            output = pipe(
                PROMPTS[seed % len(PROMPTS)], num_inference_steps=steps, guidance_scale=4.0, height=256, width=256,
                generator=torch.Generator().manual_seed(seed), output_type="np",
            )  # fmt: skip
            rows.append((output.images[0] * 255).round().astype(np.uint8))
        by_sampler[name] = np.stack(rows)
    pipe.scheduler = diffusers.DDIMScheduler.from_config(config)
    return by_sampler


def compare(expected: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    """PSNR in dB (median and worst of the pictures; 99 if equal) and pixel differences from 0 to 255."""
    difference = np.abs(expected.astype(np.int16) - actual.astype(np.int16))
    errors = (difference.astype(np.float64) ** 2).mean((1, 2, 3))
    values = np.where(errors > 0, 10 * np.log10(255**2 / np.maximum(errors, 1e-9)), 99.0)
    return {
        "median_db": float(np.median(values)),
        "worst_db": float(values.min()),
        "largest_levels": int(difference.max()),
        "mean_levels": float(difference.mean()),
    }


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "two pictures of two steps by each sampler")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", nargs="+", default=["f32", "auto"])
    parser.add_argument("--device", default="CPU")
    options = parser.parse_args()
    if options.tiny:
        options.seeds = options.steps = 2
    show(measure(options), options, report)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of every sampler, by precision."""
    pipe, results = pipeline(), dict[str, Any]()
    expected = pictures(pipe, options.seeds, options.steps, "PyTorch f32")
    for asked in options.precision:
        settings = Settings(device=options.device, precision=asked)
        with ov_backend.accelerate(pipe, settings) as accelerated:
            actual = pictures(pipe, options.seeds, options.steps, f"OpenVINO {asked}")
            assert not any(stats["fallbacks"] for stats in accelerated.stats().values()), accelerated.stats()
        precision = devices.resolved_precision(settings)
        results[precision] = {name: compare(expected[name], actual[name]) for name in expected}
        worst = min(each["worst_db"] for each in results[precision].values())
        assert worst > LEAST_PSNR[precision], f"{precision}: the worst picture has {worst:.1f} dB"
    return results


def report(results: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the figures."""
    for precision, by_sampler in results.items():
        for name, figures in by_sampler.items():
            write_line(f"{precision:5} {name:9} {json.dumps(figures)}")


if __name__ == "__main__":
    main()
