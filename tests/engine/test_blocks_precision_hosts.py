"""int8 by blocks where hosts write weights, exchange blocks, or have weights that cannot be read: no picture is lost or wrong."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from ov_backend import Settings
from tests.helpers.blocks_in_8_bits import blockwise, call_parts, calls_patched, graphs, is_near, parts, picture, settings
from tests.helpers.layers_in_8_bits import needs_vnni

__all__ = ["calls_patched", "graphs", "settings"]
pytestmark = needs_vnni


def test_a_lora_that_is_applied_within_a_step_is_applied_once(settings: Settings) -> None:
    def applying(module: Any, *args: torch.Tensor) -> torch.Tensor:
        if not applied:
            applied.append(True)
            module.head.weight += 0.01
        return call_parts(module, *args)

    network, applied = blockwise(parts(), settings), []
    before = network.module.head.weight.detach().clone()  # type: ignore[union-attr,operator]
    picture(network, 9, forward=applying)
    picture(network, 1, forward=applying)
    assert torch.equal(network.module.head.weight, before + 0.01)  # type: ignore[union-attr]
    assert network.stats()["int8"]["state"] == "on", "the step that wrote is not tried again, the others are"


def test_a_checkpoint_that_cannot_be_read_costs_int8_and_no_picture(settings: Settings) -> None:
    module = parts()
    module.unused = torch.nn.Linear(3, 3, device="meta")
    network = blockwise(module, settings)
    assert is_near(picture(network, 1), module)
    assert network.stats()["int8"]["state"] == "off"
    assert "meta" in network.stats()["int8"]["text"]


def test_a_recipe_is_made_after_another_forward_called_fewer_blocks(settings: Settings) -> None:
    def half(module: Any, x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return module.head(module.second(module.stem(x)))  # type: ignore[no-any-return]

    network = blockwise(parts(), settings)
    picture(network)
    picture(network, 1, forward=half)
    picture(network, 1, forward=half)
    picture(network, 1)
    assert network.stats()["int8"]["state"] == "on"


def test_a_block_that_is_replaced_before_the_recipe_is_made_calibrates_anew(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    picture(network)
    network.module.second = parts().second
    assert is_near(picture(network), network.module)
    assert network.stats()["int8"]["state"] == "calibrating"
    picture(network, 1)
    assert network.stats()["int8"]["state"] == "on"


def test_dropped_steps_are_not_kept_alive_by_what_was_compiled_to_observe_them(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    picture(network, 2)
    (observed,) = network.precision.observed.values()
    tapes = [weakref.ref(tape) for tape in observed.samples]
    del observed
    for _ in range(4):
        network.begin_run()
    gc.collect()
    assert len(network.resources.compiled)
    assert not any(tape() for tape in tapes)
