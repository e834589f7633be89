"""``--lowvram`` on a CPU: nothing is moved, and the UNet is whole; the WebUI's hooks are there again afterwards."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.hosts.webui.conftest import ALL, TITLE, arguments, before_every_step, engine_stats, ran, ran_text

_WEBUI = """
def setup_for_low_vram(unet, moved):
    def send_me_to_gpu(module, _):
        moved.append(module)
        module.to("cpu")
    return [block.register_forward_pre_hook(send_me_to_gpu) for block in (unet.time_embed, *unet.input_blocks)]
"""


@pytest.fixture
def hooked(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Hooks as the WebUI's in the UNet; the modules that they have moved."""
    webui: dict[str, Any] = {"__name__": "modules.lowvram"}
    exec(_WEBUI, webui)
    moved: list[Any] = []
    handles = webui["setup_for_low_vram"](host.shared.sd_model.model.diffusion_model, moved)
    yield moved
    for handle in handles:
        handle.remove()


def _on(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    devices = types.ModuleType("modules.devices")
    devices.device = torch.device(device)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "modules.devices", devices)


def test_the_unet_is_whole_where_nothing_is_moved(
    host: SimpleNamespace, hooked: list[Any], compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _on(monkeypatch, "cpu")
    compare(prompt="a cat")
    moves = len(hooked)
    compiles = engine_stats()["unet"]["compiles"]
    compare(prompt="a cat")
    assert engine_stats()["unet"]["compiles"] == compiles
    assert moves > 0
    assert len(hooked) == 2 * moves, "PyTorch's own picture has them again"


def test_they_stand_in_front_of_hooks_that_came_meanwhile(
    host: SimpleNamespace, hooked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _on(monkeypatch, "cpu")
    block = host.shared.sd_model.model.diffusion_model.time_embed
    first = list(block._forward_pre_hooks.values())
    handles: list[Any] = []

    def add(_: Any) -> None:
        if not handles:
            handles.append(block.register_forward_pre_hook(lambda module, inputs: None))

    with before_every_step(add):
        host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert list(block._forward_pre_hooks.values())[:1] == first
    assert len(block._forward_pre_hooks) == 2
    handles[0].remove()


def test_they_stay_where_something_is_moved(host: SimpleNamespace, hooked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _on(monkeypatch, "cuda")
    on = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert hooked
    assert ran(on) != ran_text(*ALL)
