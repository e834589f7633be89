"""Compares pictures of OpenVINO with those of PyTorch float32: PSNR and pixel differences per sampler and precision."""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from tqdm import tqdm

from .paths import CHECKPOINT_DIR, COMPANION_DIR, RESULTS_DIR

log = logging.getLogger(__name__)
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
        "psnr_median_db": round(float(np.median(values)), 2), "psnr_worst_db": round(float(values.min()), 2),
        "largest_difference": int(difference.max()), "mean_difference": round(float(difference.mean()), 4),
    }  # fmt: skip


def main() -> None:
    """Parse the command line and compare."""
    import ov_backend

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", nargs="+", default=["f32", "bf16"])
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--out", type=Path, default=RESULTS_DIR / "fidelity.json")
    options = parser.parse_args()
    pipe = pipeline()
    begin = time.monotonic()
    expected = pictures(pipe, options.seeds, options.steps, "PyTorch f32")
    facts: dict[str, Any] = {"device": options.device, "seeds": options.seeds, "steps": options.steps, "guidance": 4.0,
                             "size": "256x256", "torch": torch.__version__}  # fmt: skip
    facts["seconds"] = {"PyTorch f32": round(time.monotonic() - begin, 1)}
    for precision in options.precision:
        begin = time.monotonic()
        with ov_backend.accelerate(pipe, ov_backend.Settings(device=options.device, precision=precision)) as accelerated:
            actual = pictures(pipe, options.seeds, options.steps, f"OpenVINO {precision}")
            facts[f"fallbacks {precision}"] = {name: stats["fallbacks"] for name, stats in accelerated.stats().items()}
        facts["seconds"][f"OpenVINO {precision}"] = round(time.monotonic() - begin, 1)
        facts[precision] = {name: compare(expected[name], actual[name]) for name in expected}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(facts, indent=1) + "\n")
    log.info("%s", json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
