"""The watch over live weights: nothing that changes them goes unseen, and it costs next to nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from ov_backend.guards.weights import Placement, WeightsGuard
from tests.helpers import networks
from tests.helpers.small import Small


def fresh(module: torch.nn.Module) -> str:
    """The digest of a module that nobody has looked at before."""
    return WeightsGuard(module).digest


def _set(module: Small) -> None:
    module.matrix.weight = torch.nn.Parameter(torch.randn_like(module.matrix.weight))


def _data(module: Small) -> None:
    module.matrix.weight.data = torch.randn_like(module.matrix.weight)


def _through_data(module: Small) -> None:
    module.matrix.weight.data += 0.001


def _column_through_data(module: Small) -> None:
    module.matrix.weight.data[:, 256:] *= 1.5


def _interior(module: Small) -> None:
    with torch.no_grad():
        module.matrix.weight[123, 45] += 1


def _buffer(module: Small) -> None:
    module.offset.add_(1)


def _assign(module: Small) -> None:
    module.load_state_dict(Small(seed=9).state_dict(), assign=True)


def _copy(module: Small) -> None:
    module.load_state_dict(Small(seed=9).state_dict())


def _bias_gone(module: Small) -> None:
    module.last.bias = None


def _view(module: Small) -> None:
    with torch.no_grad():
        module.matrix.weight.view(-1)[7].zero_()


def _numpy_interior_of_a_bias(module: Small) -> None:
    module.last.bias.detach().numpy()[:] += 1


CHANGES = [_set, _data, _through_data, _column_through_data, _interior, _buffer, _assign, _copy, _bias_gone, _view]
CHANGES.append(_numpy_interior_of_a_bias)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__.strip("_"))
def test_every_change_is_seen(change: Callable[[Small], None]) -> None:
    module = Small()
    state = WeightsGuard(module)
    before = state.digest
    assert state.check()
    change(module)
    assert not state.check()
    assert state.digest != before
    assert state.digest == fresh(module)
    assert state.check()


def test_a_tensor_where_there_was_none_is_seen() -> None:
    module = Small()
    module.last.bias = None
    state = WeightsGuard(module)
    module.last.bias = torch.nn.Parameter(torch.ones(8))
    assert not state.check()
    assert "last.bias" in state.tensors


def test_an_old_state_is_recognised() -> None:
    module = Small()
    state = WeightsGuard(module)
    before, kept = state.digest, module.matrix.weight.detach().clone()
    with torch.no_grad():
        module.matrix.weight.add_(1)
    assert not state.check()
    with torch.no_grad():
        module.matrix.weight.copy_(kept)
    assert not state.check()
    assert state.digest == before


def test_an_id_used_again_is_another_tensor() -> None:
    module = Small()
    state = WeightsGuard(module)
    seen = {id(module.matrix.weight)}
    again = 0
    for i in range(60):
        del module.matrix._parameters["weight"]
        gc.collect(0)
        state.release()
        module.matrix.weight = torch.nn.Parameter(torch.full((640, 512), 1.0))
        module.matrix.weight.data[5, 5] = i  # where no probe is, and no version is counted
        again += id(module.matrix.weight) in seen
        seen.add(id(module.matrix.weight))
        state.check()
        assert state.digest == fresh(module)
    assert again, "no id was used again: this test has tested nothing"


def test_tied_weights_are_one() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    module[1].weight = module[0].weight
    state = WeightsGuard(module)
    assert sorted(state.tensors) == ["0.bias", "0.weight", "1.bias"]
    module[1].weight = torch.nn.Parameter(module[0].weight.detach().clone())
    assert not state.check(), "untied weights of equal content make another layout"
    assert "1.weight" in state.tensors


def test_weights_of_inference_mode_are_watched() -> None:
    with torch.inference_mode():
        module = Small()
        state = WeightsGuard(module)
        assert state.check()
        module.matrix.weight += 1
        assert not state.check()
        assert state.digest == fresh(module)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool])
def test_every_dtype_is_watched(dtype: torch.dtype) -> None:
    module = torch.nn.Module()
    module.register_buffer("values", torch.ones(7, 5).to(dtype))
    state = WeightsGuard(module)
    assert state.check()
    module.values.data.zero_()
    assert not state.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_not_a_number_is_equal_to_itself_here(dtype: torch.dtype) -> None:
    module = torch.nn.Module()
    module.register_buffer("values", torch.full((40, 40), float("nan"), dtype=dtype))
    state = WeightsGuard(module)
    assert state.check()


LAYOUTS = {
    "channels_last": lambda: torch.randn(8, 8, 3, 3).contiguous(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(40, 30).t(),
    "every second column": lambda: torch.randn(40, 60)[:, ::2],
    "expanded": lambda: torch.randn(1, 40).expand(20, 40),
    "small": lambda: torch.randn(3, 2).t(),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_watched(layout: str) -> None:
    module = torch.nn.Module()
    module.register_buffer("values", LAYOUTS[layout]())
    state = WeightsGuard(module)
    assert state.check()
    if not module.values.numel():
        return
    module.values.data.mul_(2) if layout != "expanded" else module.values.data[0].mul_(2)
    assert not state.check()
    assert state.digest == fresh(module)


def test_a_placement_ends_when_its_weights_do() -> None:
    for end in (_set, _data, lambda module: module.to("meta")):
        module = Small()
        placement = Placement.of(WeightsGuard(module).tensors)
        assert placement.exists()
        end(module)
        assert not placement.exists()
    module = Small()
    placement = Placement.of(WeightsGuard(module).tensors)
    with torch.no_grad():
        module.matrix.weight.add_(1)
    assert placement.exists(), "a weight written in place is where it was"
    del module
    gc.collect()
    assert not placement.exists()


def test_released_weights_are_not_kept_alive() -> None:
    module = Small()
    state = WeightsGuard(module)
    memory = module.matrix.weight.untyped_storage()
    weak = torch.multiprocessing.reductions.StorageWeakRef(memory)
    del memory
    module.to("meta")
    assert not weak.expired(), "the probes still look at it"
    state.release()
    gc.collect()
    assert weak.expired()
    assert not state.check()
    assert state.tensors["matrix.weight"].device.type == "meta"


def test_a_check_looks_at_few_numbers() -> None:
    unet = networks.unet(channel_mult=[1, 2, 2, 2], num_res_blocks=2, attention_resolutions=[4, 2, 1], model_channels=32)
    state = WeightsGuard(unet)
    assert len(state.tensors) > 600
    looked = [view.size for view in state._probes[0]]
    assert len(looked) == len(state.tensors)
    assert 0 < sum(looked) < 64 * len(state.tensors)


def test_a_write_that_nothing_counts_is_found_when_everything_is_read_again() -> None:
    module = torch.nn.Linear(1024, 1024)
    state = WeightsGuard(module)
    before = state.digest
    module.weight.data.view(-1)[5] += 1
    assert state.untouched(), "no probe is there"
    state._checksums.read_again(always=True)
    assert not state.untouched()
    assert not state.check()
    assert state.digest == fresh(module) != before
    assert state.check()


def test_a_new_look_at_a_small_network_reads_everything() -> None:
    module = torch.nn.Linear(64, 64)
    state = WeightsGuard(module)
    before = state.digest
    module.weight.data[5, 5] += 1  # where no probe is, and no version is counted
    state.refresh()
    assert state.digest != before


def test_a_small_weight_of_other_strides_is_compared_in_full() -> None:
    module = torch.nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    state = WeightsGuard(module)
    module.weight.data[1, 2, 0, 1] += 50
    assert not state.check()
