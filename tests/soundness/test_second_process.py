"""A second process, with another seed of hashes, finds the graphs of known networks by their texts: it converts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine
from tests.helpers.alone import alone
from tests.helpers.small import engine_for
from tests.soundness.real import REAL, missing

#: Split ones (T5's buckets, FreeU's Fourier transform) are left out: their parts are found one by one.
NAMES = (
    *("ldm UNet", "ldm VAE decoder", "CLIP text encoder", "diffusers UNet of SDXL", "diffusers UNet with a PEFT LoRA"),
    *("a network with PEFT adapters", "diffusers SD3 transformer", "WebUI UNet with LoRAs", "WebUI UNet with a hypernetwork"),
)


def first_calls(folder: str, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """How often each network is traced for its first call, and found in the store, which is in a folder."""
    found = {}
    for name in names:
        case, stages = REAL[name](), list[str]()
        case.module.requires_grad_(False)
        settings = Settings(precision="f32", cache_dir=folder, fallback="raise")
        engine = Engine(settings, lambda network, stage, signature, stages=stages: stages.append(stage))
        case.call(engine.network("net", case.module, hooks=case.hooks))
        found[name] = stages.count("capture"), engine.networks["net"].statistics.graph_hits
        case.finish()
    return found


def test_known_networks_are_traced_once(tmp_path: Path) -> None:
    names = tuple(name for name in NAMES if not missing(name))
    if not names:
        pytest.skip("none of the networks' packages is installed")
    # once: what is watched before the first trace covers all that the trace turns out to read, but what PEFT finds by names
    traces = {name: 2 if name == "a network with PEFT adapters" else 1 for name in names}
    assert first_calls(str(tmp_path), names) == {name: (count, 0) for name, count in traces.items()}
    assert alone(first_calls, str(tmp_path), names) == {name: (count, 1) for name, count in traces.items()}


FIELDS = {"data", "labels", "typemap", "restricted"}


class Options:
    """Settings as the WebUI keeps them: code asks a set of names for members, and looks attributes up by computed names."""

    def __init__(self) -> None:
        self.data, self.labels = {"upcast": True}, {"upcast": "Upcast"}

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS:
            return super().__getattribute__(name)
        return self.data[name] if name in self.data else super().__getattribute__(name)


OPTIONS = Options()


class Reader(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if OPTIONS.upcast else x * 3


#: Another name of the same set.
ALIAS = FIELDS


class Orders(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "data" not in FIELDS:
            return x
        return x * float(sum(i * len(name) for i, name in enumerate(ALIAS)))


def answers_alike(folder: str) -> bool:
    module, x = Orders(), torch.ones(2, 3)
    return torch.equal(engine_for(Settings(precision="f32", cache_dir=folder, fallback="raise"), module)(x), module(x))


def graph_hits_of_reader(folder: str) -> int:
    network = engine_for(Settings(precision="f32", cache_dir=folder, fallback="raise"), Reader())
    assert torch.equal(network(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    return network.statistics.graph_hits


def test_a_set_that_is_only_asked_for_members_has_no_order(tmp_path: Path) -> None:
    assert graph_hits_of_reader(str(tmp_path)) == 0
    assert alone(graph_hits_of_reader, str(tmp_path)) == 1


def test_a_set_that_is_gone_through_by_another_name_has_its_order(tmp_path: Path) -> None:
    assert answers_alike(str(tmp_path))
    assert alone(answers_alike, str(tmp_path))
