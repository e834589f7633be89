"""int8 by blocks: as of a whole network, the first picture calibrates, the next are in 8 bits, and a bad recipe is not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.engine import Engine, NetworkHooks
from ov_backend.int8.recipe import MAX_ERROR, Recipe
from ov_backend.model.runtime import bound_model
from tests.helpers.blocks_in_8_bits import (
    Halves,
    blockwise,
    by_blocks,
    call_of,
    call_parts,
    calls_patched,
    calm,
    expected,
    forms,
    graphs,
    is_near,
    parts,
    picture,
    settings,
)
from tests.helpers.layers_in_8_bits import error, needs_vnni

Strict = Callable[..., Settings]
Forward = Callable[..., torch.Tensor]
__all__ = ["calls_patched", "graphs", "settings"]
pytestmark = needs_vnni


@pytest.fixture(scope="module")
def recipe(graphs: str) -> tuple[str, Recipe]:
    """The architecture and recipe of ldm's UNet."""
    patch = patch_calls()
    network = blockwise(calm(), Settings(device="CPU", precision="int8", cache_dir=graphs))
    picture(network)
    picture(network, 1)
    assert patch.undo()
    (((architecture, _), recipe),) = network.resources.recipes._known.items()
    assert recipe is not None
    return architecture, recipe


@pytest.fixture
def unet_in_8_bits(recipe: tuple[str, Recipe], settings: Settings) -> Blockwise:
    """ldm's UNet with a recipe that is there."""
    network = blockwise(calm(), settings)
    network.resources.recipes.put(*recipe)
    return network


@pytest.fixture
def calibrated(settings: Settings) -> Blockwise:
    """A small network whose second picture was made in int8 by its blocks."""
    network = blockwise(parts(), settings)
    picture(network)
    picture(network, 1)
    assert network.stats()["int8"]["state"] == "on"
    return network


def test_the_first_picture_calibrates_and_the_second_is_in_8_bits(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    plain = blockwise(parts(), settings.replace(precision="auto"))
    first = picture(network)
    assert all(error(a, b) < 1e-2 for a, b in zip(first, picture(plain))), "observing changes no more than the rounding"
    assert forms(network) == {"observing"}
    assert network.stats()["int8"]["state"] == "calibrating"
    second = picture(network, 2)
    stated = network.stats()["int8"]
    assert stated["state"] == "on"
    assert 0 < stated["error"] < MAX_ERROR
    assert f"{100 * stated['error']:.1f} % off" in stated["text"]
    assert forms(network) == {"int8"}, "what observed is evicted"
    assert not torch.equal(second[0], first[0])
    assert is_near(second, network.module)
    assert (network.statistics.calls, network.stats()["fallbacks"]) == (10, {})


def test_the_blocks_of_a_unet_compute_in_integers_and_layers_have_the_names_of_the_whole_network(
    unet_in_8_bits: Blockwise, recipe: tuple[str, Recipe]
) -> None:
    assert recipe[1].error < MAX_ERROR
    assert not recipe[1].refused
    assert is_near(picture(unet_in_8_bits, 2), unet_in_8_bits.module)
    assert forms(unet_in_8_bits) == {"int8", ""}, "the time embedding has no layer in 8 bits"
    compiled, types = unet_in_8_bits.resources.compiled, set()
    for key in compiled:
        for part in compiled.peek(key).value.program.parts.values():  # type: ignore[union-attr]
            for node in part._request.get_compiled_model().get_runtime_model().get_ops():
                kind, element_type = (node.get_rt_info()[name].astype(str) for name in ("layerType", "runtimePrecision"))
                types.add((kind, element_type))
    assert {("Convolution", "u8"), ("Convolution", "i8")} & types
    ranges = recipe[1].ranges
    assert "input_blocks.1.0.in_layers.2.weight" in ranges
    assert "middle_block.1.transformer_blocks.0.attn1.to_q.weight" in ranges
    out = ("time_embed", "emb_layers", "input_blocks.0.", "out.", "skip_connection", "attn2.to_k", "attn2.to_v", "ff.net.2")
    assert not [name for name in ranges if any(name.startswith(each) or f".{each}" in name for each in out)]


def test_the_layers_of_the_blocks_in_8_bits_are_those_of_the_whole_network(
    recipe: tuple[str, Recipe], settings: Settings
) -> None:
    whole = Engine(settings).network("unet", calm(), hooks=NetworkHooks(quantizable=True))
    with torch.no_grad():
        whole(*call_of(0))
    (observed,) = whole.precision.observed.values()
    assert set(recipe[1].ranges) == set(observed.ranges)  # it has attention at one resolution alone


def test_another_size_another_process_and_other_weights_calibrate_nothing(calibrated: Blockwise, settings: Settings) -> None:
    assert is_near(picture(calibrated, 2, size=24), calibrated.module, size=24)
    later = blockwise(parts(), settings)
    before = picture(later, 1)
    assert forms(later) == {"int8"}
    with torch.no_grad():  # as a LoRA does
        later.module.second[2].weight.mul_(2.0)  # type: ignore[index,union-attr]
    after = picture(later, 1)
    assert "observing" not in forms(later)
    assert is_near(after, later.module)
    assert error(after[0], before[0]) > 5e-3, "the weights of before would be seen"


def test_a_recipe_is_for_one_checkpoint_and_one_forward(calibrated: Blockwise) -> None:
    def another(module: Any, *args: torch.Tensor) -> torch.Tensor:
        return call_parts(module, *args) * 2

    picture(calibrated, 1, forward=another)
    assert calibrated.stats()["int8"]["state"] == "calibrating"
    picture(calibrated, 1)
    assert calibrated.stats()["int8"]["state"] == "on"
    with torch.no_grad():
        calibrated.module.head.bias.add_(0.1)  # type: ignore[index,union-attr]
    assert is_near(picture(calibrated, 1), calibrated.module)
    assert calibrated.stats()["int8"]["state"] == "calibrating"


def test_a_recipe_that_is_off_too_much_is_not_used_and_the_next_process_calibrates_anew(settings: Settings) -> None:
    module = parts(Halves())
    network = blockwise(module, settings)
    picture(network)
    answers = picture(network, 1)
    assert network.stats()["int8"]["text"].startswith("int8 is not used: a call's result is off by")
    assert forms(network) == {""}
    own = blockwise(module, settings.replace(precision="auto"))
    assert torch.equal(answers[0], picture(own, 1)[0])
    compiles = network.statistics.compiles
    picture(network)
    picture(network)
    assert network.statistics.compiles == compiles, "this one does not"
    later = blockwise(module, settings)
    picture(later, 1)
    assert later.stats()["int8"]["state"] == "calibrating"


def test_a_lora_added_before_the_recipe_is_made_is_no_error_of_int8(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    picture(network)
    with torch.no_grad():
        network.module.head.weight.mul_(3.0)  # type: ignore[index,union-attr]
        network.module.second[2].weight.mul_(1.5)  # type: ignore[index,union-attr]
    answers = picture(network, 1)
    assert 0 < network.stats()["int8"]["error"] < MAX_ERROR
    assert is_near(answers, network.module)


def test_a_forward_is_run_once_for_each_step_and_its_random_numbers_are_pytorchs(settings: Settings) -> None:
    runs = []

    def drawing(module: Any, x: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        runs.append(len(runs))
        x = x + 0.1 * torch.randn_like(x) + 0.1 * torch.randn(x.shape)
        result = call_parts(module, x, *args)
        result[:, :2].mul_(1.5)  # a write into a part
        return result

    network = blockwise(parts(), settings)
    torch.manual_seed(1)
    answers = [*picture(network, forward=drawing), *picture(network, 2, forward=drawing)]
    state = torch.get_rng_state()
    assert runs == list(range(10))
    assert network.stats()["int8"]["state"] == "on"
    torch.manual_seed(1)
    with torch.no_grad():
        references = [drawing(network.module, *call_of(step % 8)) for step in range(10)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(error(a, e) < 2 * MAX_ERROR for a, e in zip(answers, references))


@pytest.mark.parametrize("leave", [lambda h: torch.from_numpy(h.numpy().copy()), lambda h: h * (1 + 0 * float(h.mean()))])
def test_where_a_step_cannot_be_followed_int8_is_not_used(settings: Settings, leave: Callable[..., torch.Tensor]) -> None:
    def leaving(module: Any, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return module.second(leave(module.first(module.stem(x))))  # type: ignore[no-any-return]

    network = blockwise(parts(), settings)
    picture(network, forward=leaving)
    picture(network, 1, forward=leaving)
    assert "so the error of a step is not known" in network.stats()["int8"]["text"]
    assert forms(network) == {""}


def test_where_8_bits_cannot_be_compiled_the_devices_precision_answers(
    calibrated: Blockwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_memory(*_: object) -> list[str]:
        raise RuntimeError("bad allocation")

    monkeypatch.setattr(bound_model, "quantize", without_memory)
    answers = picture(calibrated, 1, size=24)
    assert "bad allocation" in calibrated.stats()["int8"]["text"]
    assert calibrated.stats()["int8"]["state"] == "off"
    assert calibrated.stats()["blocks_in_pytorch"] == calibrated.stats()["fallbacks"] == {}
    assert error(answers[0], expected(calibrated.module, size=24)[0]) < 0.03, "bf16's rounding"


def test_a_call_that_is_not_finite_has_no_finite_answer(calibrated: Blockwise) -> None:
    latents, timesteps, context = call_of(0)
    before = picture(calibrated, 1)[0]
    with torch.no_grad():
        spoiled = by_blocks(calibrated)(latents.index_fill(3, torch.tensor(3), float("nan")), timesteps, context)
    assert not spoiled.isfinite().all(), "8 bits would cut off what they do not have"
    assert torch.equal(picture(calibrated, 1)[0], before)


def test_without_int8_the_blocks_are_what_they_were(calibrated: Blockwise, settings: Settings) -> None:
    in_8_bits = picture(calibrated, 1)[0]
    calibrated.resources.configure(settings.replace(precision="f32"))
    exact = picture(calibrated, 1)[0]
    assert error(exact, expected(calibrated.module)[0]) < 1e-4 < error(in_8_bits, exact)
    assert not calibrated.stats()["int8"]
    calibrated.resources.configure(settings)
    assert torch.equal(picture(calibrated, 1)[0], in_8_bits)


def test_the_blocks_in_8_bits_are_evicted_together_and_made_again(calibrated: Blockwise) -> None:
    before = picture(calibrated, 1)[0]
    compiled = calibrated.resources.compiled
    compiled.evict(lambda key, entry: True)
    assert torch.equal(picture(calibrated, 1)[0], before)
    groups = {compiled.peek(key).group for key in compiled}  # type: ignore[union-attr]
    assert len(groups) == 1


def test_what_was_observed_is_dropped_where_the_blocks_are_no_longer_called(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    picture(network, 2)
    observed = network.precision.observed
    picture(network, 1)
    assert [each.calls for each in observed.values()] == [3]
    for _ in range(4):
        network.begin_run()
    assert not observed


def test_other_networks_calls_between_the_steps_end_no_picture(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    network.begin_run()
    for step in range(12):
        network.resources.last = "vae_decode"
        with torch.no_grad():
            by_blocks(network)(*call_of(step))
        assert network.stats()["int8"]["state"] == "calibrating"
    picture(network, 1)
    assert network.stats()["int8"]["state"] == "on"


def test_an_attribute_of_a_block_that_changes_after_the_first_picture_is_no_error_of_int8(
    settings: Settings, calibrated: Blockwise
) -> None:
    network = blockwise(parts(), settings.replace(model_caching=False))
    picture(network)
    network.module.second[0].eps = 0.3
    picture(network, 1)
    assert network.stats()["int8"]["state"] == "on"
    assert network.stats()["int8"]["error"] < 1.3 * calibrated.stats()["int8"]["error"]
    assert is_near(picture(network, 2), network.module)


def test_an_interrupted_picture_is_observed_anew(settings: Settings) -> None:
    network = blockwise(parts(), settings)
    for completed, state in ((False, "calibrating"), (True, "calibrating"), (True, "on")):
        picture(network, 9)
        assert network.stats()["int8"]["state"] == state
        network.end_run(completed)

