"""Pictures of prompts by your own pipeline on Ray Data: each actor has a pipeline with its networks in OpenVINO.

    pip install 'ray[data]'
    python examples/ray_data.py path/of/the/model prompts.csv pictures.parquet

The model is a folder of diffusers, and the file has a column ``prompt``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import ov_backend


def load(model: str) -> Any:
    """A pipeline; called once in each actor."""
    from diffusers import StableDiffusionPipeline

    return StableDiffusionPipeline.from_pretrained(model)


def call(pipe: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The pictures of a batch, whose columns are numpy arrays."""
    images = pipe([str(prompt) for prompt in batch["prompt"]], num_inference_steps=20, output_type="np").images
    return {"prompt": batch["prompt"], "image": images}


def main(model: str, prompts: str, out: str) -> None:
    """Read the prompts, and write the pictures."""
    import ray

    arguments = {"load": lambda: load(model), "call": call}
    cores = max(1, (os.cpu_count() or 2) - 1)  # one is left for what reads and writes; without it Ray Data waits for ever
    pictures = ray.data.read_csv(prompts).map_batches(
        ov_backend.AcceleratedPipeline, fn_constructor_kwargs=arguments, batch_size=4, concurrency=1, num_cpus=cores
    )
    pictures.write_parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
