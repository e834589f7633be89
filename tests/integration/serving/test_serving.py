"""A model server's way: a saved module is loaded and compiled in worker processes, as its configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ov_backend
from tests.helpers.alone import alone
from tests.helpers.densenet import DenseNet
from tests.helpers.torch_compile import agree

#: As in a TorchServe ``model-config.yaml``: ``pt2: {compile: {enable: true, backend: openvino_fx}}``.
CONFIG = {"pt2": {"compile": {"enable": True, "backend": "openvino_fx", "options": {"precision": "f32", "fallback": "raise"}}}}


class Handler:
    """TorchServe's ``BaseHandler`` in what counts here: load what was saved, compile it as configured, answer batches."""

    def initialize(self, folder: Path, config: dict[str, Any]) -> None:
        self.model = DenseNet(growth=4, blocks=(2, 2), channels=8, classes=3)
        self.model.load_state_dict(torch.load(folder / "model.pt", map_location="cpu"))
        self.model.eval()
        options = dict(config["pt2"]["compile"])
        if options.pop("enable"):
            self.model = torch.compile(self.model, **options)

    def handle(self, batch: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.inference_mode():
            return list(self.model(torch.stack(batch)))


def answers_of_a_worker(folder: Path, config: dict[str, Any], batches: list[list[torch.Tensor]]) -> tuple[Any, dict[str, Any]]:
    """What a server's worker process does: the answers, and the statistics of its networks."""
    torch.set_num_threads(1)
    handler = Handler()
    handler.initialize(folder, config)
    answers = [[answer.tolist() for answer in handler.handle(batch)] for batch in batches]
    return answers, ov_backend.stats()


def test_a_worker_loads_compiles_and_answers(tmp_path: Path) -> None:
    model = DenseNet(growth=4, blocks=(2, 2), channels=8, classes=3).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    batches = [[torch.randn(3, 32, 32) for _ in range(2)] for _ in range(2)]
    answers, stats = alone(answers_of_a_worker, tmp_path, CONFIG, batches)
    for batch, answer in zip(batches, answers):
        agree(torch.tensor(answer), model(torch.stack(batch)))
    (network,) = stats.values()
    assert (network["compiles"], network["calls"], network["fallbacks"]) == (1, 2, {})


def test_a_handler_with_compiling_off_runs_in_pytorch(tmp_path: Path) -> None:
    model = DenseNet(growth=4, blocks=(2, 2), channels=8, classes=3).eval()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    handler, x = Handler(), torch.randn(3, 32, 32)
    handler.initialize(tmp_path, {"pt2": {"compile": {**CONFIG["pt2"]["compile"], "enable": False}}})
    agree(handler.handle([x])[0], model(x[None])[0])
    assert not ov_backend.stats()


def test_an_unknown_option_in_the_configuration_is_told(tmp_path: Path) -> None:
    torch.save(DenseNet(growth=4, blocks=(2, 2), channels=8, classes=3).state_dict(), tmp_path / "model.pt")
    handler = Handler()
    handler.initialize(tmp_path, {"pt2": {"compile": {"enable": True, "backend": "openvino_fx", "options": {"precison": "f32"}}}})
    with pytest.raises(Exception, match="Did you mean 'precision'"):
        handler.handle([torch.randn(3, 32, 32)])
