"""``torch.compile`` with precision int8: the first calls calibrate, and the next ones are computed in 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ov_backend
from ov_backend.int8.calibration import MAX_GRAPH_CALLS
from ov_backend.int8.recipe import MAX_ERROR
from tests.helpers.layers_in_8_bits import Denoiser, call_of, error, needs_vnni

pytestmark = needs_vnni
Run = Callable[[torch.nn.Module, int], list[torch.Tensor]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Compile a module anew and call it some times."""
    options = {"precision": "int8", "device": "CPU", "model_caching": True, "cache_dir": str(tmp_path), "fallback": "raise"}

    def answers(module: torch.nn.Module, calls: int) -> list[torch.Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="openvino_fx", options=options)
        with torch.no_grad():
            return [compiled(*call_of(seed)) for seed in range(calls)]

    return answers


def state() -> str:
    stats = list(ov_backend.stats().values())[-1]  # PyTorch 2.1 keeps the graphs of models that are gone
    return str(stats["int8"]["state"])


def test_a_graph_is_in_int8_after_its_first_calls_and_in_the_next_process_at_once(run: Run) -> None:
    run(Denoiser(), MAX_GRAPH_CALLS)
    assert state() == "calibrating"
    module = Denoiser()
    answers = run(module, MAX_GRAPH_CALLS + 1)
    assert state() == "on"
    with torch.no_grad():
        assert error(answers[-1], module(*call_of(MAX_GRAPH_CALLS))) < MAX_ERROR
    run(Denoiser(), 1)
    assert state() == "on"


def test_another_function_of_the_same_weights_has_no_part_in_it(run: Run) -> None:
    class Other(Denoiser):
        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return super().forward(100 * x, time)

    run(Denoiser(), MAX_GRAPH_CALLS + 1)
    assert state() == "on"
    run(Other(), 1)
    assert state() == "calibrating"


def test_a_graph_with_dynamic_sizes_stays_in_the_devices_own_precision() -> None:
    torch._dynamo.reset()
    options = {"precision": "int8", "dynamic_shapes": True, "fallback": "raise", "model_caching": False}
    compiled = torch.compile(Denoiser(), backend="openvino_fx", dynamic=True, options=options)
    with torch.no_grad():
        compiled(*call_of(0))
    stated = list(ov_backend.stats().values())[-1]["int8"]
    assert stated["text"] == "int8 is not used: it is for graphs of fixed sizes and weights that are not trained"
