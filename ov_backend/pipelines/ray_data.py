"""A class for Ray Data's ``map_batches``: a pipeline of one's own in each actor, with its networks in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ov_backend.core.settings import Settings
from ov_backend.pipelines.accelerate import accelerate


class AcceleratedPipeline:
    """Maps batches of a Ray dataset by a pipeline whose networks run in OpenVINO; each actor has one.

    ::

        dataset.map_batches(
            ov_backend.AcceleratedPipeline,
            fn_constructor_kwargs={"load": load, "call": call},
            batch_size=4, concurrency=2, num_cpus=8,
        )

    OpenVINO gets as many threads as PyTorch has in the actor, which are Ray's ``num_cpus``, unless ``settings`` say otherwise.

    Args:
        load: makes the pipeline, or a dict of name to torch module; called once in each actor.
        call: takes the pipeline and a batch, a dict of columns that are numpy arrays, and returns a dict of columns.
        settings: see :class:`ov_backend.Settings`; every field has a default.

    Raises:
        OVBackendError: as :func:`ov_backend.accelerate` does.
    """

    def __init__(
        self, load: Callable[[], Any], call: Callable[[Any, dict[str, Any]], dict[str, Any]], settings: Settings | None = None
    ) -> None:
        chosen = settings or Settings()
        threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads()} if chosen.device == "CPU" else {}
        self._pipe, self._call = load(), call
        self._accelerated = accelerate(self._pipe, chosen.replace(config={**threads, **chosen.config}))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Map one batch; gradients are not recorded."""
        with torch.no_grad():
            return self._call(self._pipe, batch)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Statistics of every network by name: captures, compiles, calls, fallbacks with reasons, seconds."""
        return self._accelerated.stats()

    def close(self) -> None:
        """Give the pipeline its own networks back."""
        self._accelerated.restore()
