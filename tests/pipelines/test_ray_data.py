"""The class for Ray Data's ``map_batches``: by itself, and in an actor of Ray's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ov_backend
from tests.helpers.extent import only_in_full


class TinyPipeline:
    """Two steps of a network over noise that is made from a seed."""

    def __init__(self) -> None:
        self.unet = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(8, 4, 3, padding=1))
        generator = torch.Generator().manual_seed(0)
        for parameter in self.unet.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1

    def __call__(self, seeds: Any) -> torch.Tensor:
        latents = torch.stack([torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(int(seed))) for seed in seeds])
        for _ in range(2):
            latents = latents - self.unet(latents)
        return latents


def call(pipe: TinyPipeline, batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "latents": pipe(batch["seed"]).numpy()}


def expected(seeds: Any) -> np.ndarray:
    with torch.no_grad():
        return TinyPipeline()(seeds).numpy()


def test_a_batch_is_mapped_by_openvino(strict: Callable[..., ov_backend.Settings]) -> None:
    mapper = ov_backend.AcceleratedPipeline(TinyPipeline, call, strict())
    result = mapper({"seed": np.arange(3)})
    assert np.abs(result["latents"] - expected(range(3))).max() < 1e-4
    assert mapper.stats()["unet"]["calls"] == 2
    assert mapper._accelerated.engine.settings.config == {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    mapper.close()


@pytest.fixture
def ray() -> Iterator[Any]:
    pytest.importorskip("ray.data")
    from ov_backend.batch.cluster import import_ray

    module = import_ray()
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield module
    module.shutdown()


@only_in_full
def test_ray_data_maps_a_dataset_in_actors(ray: Any, strict: Callable[..., ov_backend.Settings]) -> None:
    from ray import data

    data.DataContext.get_current().enable_progress_bars = False
    arguments = {"load": TinyPipeline, "call": call, "settings": strict()}
    rows = data.from_items([{"seed": seed} for seed in range(6)]).map_batches(
        ov_backend.AcceleratedPipeline, fn_constructor_kwargs=arguments, batch_size=3, concurrency=1, num_cpus=1
    )
    results = sorted(rows.take_all(), key=lambda row: row["seed"])
    assert [row["seed"] for row in results] == list(range(6))
    assert np.abs(np.stack([row["latents"] for row in results]) - expected(range(6))).max() < 1e-4
