"""int8: when a network calibrates, when its recipe is made, and what happens where its form in 8 bits cannot be compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.errors import OVBackendError
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.engine.request import CompiledEntry
from ov_backend.guards.signature import Call
from ov_backend.int8.calibration import MAX_CALLS
from ov_backend.int8.recipe import MAX_ERROR
from ov_backend.model.runtime import bound_model
from tests.helpers.layers_in_8_bits import Denoiser, call_of, error, expected, forms, needs_vnni, network_of, picture

Strict = Callable[..., Settings]
pytestmark = needs_vnni


@pytest.fixture
def settings(strict: Strict) -> Settings:
    return strict(precision="int8")


def calls(network: Network, count: int, start: int = 0) -> list[torch.Tensor]:
    """Calls of which no host says what they belong to."""
    with torch.no_grad():
        return [network(*call_of(start + step)) for step in range(count)]


def state_of(network: Network) -> str:
    return str(network.stats()["int8"]["state"])


def test_another_checkpoint_calibrates_too(settings: Settings) -> None:
    own, other = network_of(settings, Denoiser()), network_of(settings, Denoiser(seed=1))
    picture(own)
    picture(own, 1)
    answers = picture(other)
    assert all(error(a, e) < 0.02 for a, e in zip(answers, expected(other.module, 8))), "the device's own rounding"
    assert state_of(other) == "calibrating"
    assert forms(other) == {"observing"}
    picture(other, 1)
    assert "% off" in other.stats()["int8"]["text"]
    recipes = other.resources.recipes.store
    assert recipes is not None
    assert len(recipes.entries()) == 2


def test_checkpoints_that_take_turns_in_one_module_get_their_recipes(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    states = [Denoiser(seed).state_dict() for seed in (0, 1, 2)]
    seen = []
    for _ in range(3):
        for state in states:
            network.module.load_state_dict(state)
            picture(network)
            seen.append(state_of(network))
    assert seen == ["calibrating"] * 3 + ["on"] * 6
    assert forms(network) == {"int8"}


def test_other_networks_calls_between_the_steps_end_no_picture(settings: Settings) -> None:
    engine = Engine(settings)
    network = engine.network("unet", Denoiser(), hooks=NetworkHooks(quantizable=True))
    small = torch.nn.Conv2d(32, 32, 3)
    others = [engine.network(name, small) for name in ("controlnet", "vae_decode")]
    for step in range(12):
        for other in others:
            with torch.no_grad():
                other(call_of(0)[0])
        calls(network, 1, step)
        assert state_of(network) == "calibrating"
    encoder = engine.network("text_encoder", small)
    with torch.no_grad():
        encoder(call_of(0)[0])
    calls(network, 1)
    assert state_of(network) == "on"


def test_where_a_host_says_when_a_picture_begins_a_long_one_is_calibrated_to_its_end(settings: Settings) -> None:
    told, untold = network_of(settings, Denoiser()), network_of(settings, Denoiser(seed=1))
    told.begin_picture()
    for network in (told, untold):
        calls(network, MAX_CALLS + 1)
    assert (state_of(told), state_of(untold)) == ("calibrating", "on")
    picture(told, 1)
    assert state_of(told) == "on"


def test_where_the_form_in_8_bits_cannot_be_compiled_later_the_devices_own_precision_answers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(settings, Denoiser())
    picture(network)
    assert all(error(a, e) < MAX_ERROR for a, e in zip(picture(network, 2), expected(network.module)))

    def fail(*args: object) -> None:
        raise RuntimeError("no memory for it")

    monkeypatch.setattr(bound_model, "quantize", fail)
    later = network_of(settings, Denoiser())
    assert all(error(a, e) < 0.02 for a, e in zip(picture(later, 2), expected(later.module)))
    assert later.stats()["int8"]["text"] == "int8 is not used: OpenVINO could not compile it: no memory for it"
    assert not later.stats()["fallbacks"]
    assert forms(later) == {""}
    monkeypatch.undo()
    again = network_of(settings, Denoiser())
    picture(again, 2)
    assert state_of(again) == "on", "another process tries again"


def test_a_recipe_that_fits_no_layer_is_not_used(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    picture(network)
    picture(network, 1)
    recipes = network.resources.recipes
    ((identity, recipe),) = recipes._known.items()
    assert recipe is not None
    renamed = {f"another.{name}": given for name, given in recipe.ranges.items()}
    recipes.put(identity[0], dataclasses.replace(recipe, ranges=renamed))
    later = network_of(settings, Denoiser())
    picture(later, 2)
    assert later.stats()["int8"]["text"] == "int8 is not used: the recipe has no layer that is computed in 8 bits at this size"
    assert state_of(later) == "off"


def test_a_network_that_cannot_be_compiled_at_all_does_not_blame_int8(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture(network := network_of(settings, Denoiser()))
    picture(network, 1)

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("nothing works")

    monkeypatch.setattr(bound_model, "bind", fail)
    later = network_of(settings, Denoiser())
    with pytest.raises(OVBackendError, match="nothing works"):
        picture(later, 1)
    assert state_of(later) == "on"


class Scaled(Denoiser):
    """A denoiser with a factor, as of a LoRA or of FreeU."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.scale = 1.0

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x, time)


def test_an_attribute_that_changes_after_the_first_picture_is_no_error_of_int8(settings: Settings) -> None:
    steady, changed = (network_of(settings, Scaled(seed)) for seed in range(2))
    for network in (steady, changed):
        picture(network)
        network.module.scale = 0.7 if network is changed else 1.0
        picture(network, 1)
    assert state_of(changed) == "on"
    assert changed.stats()["int8"]["error"] < 1.3 * steady.stats()["int8"]["error"]


def test_a_call_that_is_not_finite_in_int8_alone_is_computed_in_the_devices_precision(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = network_of(settings, Denoiser())
    picture(network)
    picture(network, 1)
    compute, spoiled = network._compute, []

    def spoil(entry: CompiledEntry, call: Call) -> list[torch.Tensor]:
        outputs = compute(entry, call)
        if entry.form.startswith("int8") and not spoiled:
            spoiled.append(entry)
            outputs[0][0, 0, 0] = torch.inf
        return outputs

    monkeypatch.setattr(network, "_compute", spoil)
    (answer,) = calls(network, 1)
    assert spoiled
    assert error(answer, expected(network.module)[0]) < 0.02, "bf16's rounding"
    assert network.stats()["in_f32"] == 0
    assert list(network.statistics.corrections) == ["not finite in int8, computed again in the device's own precision"]
    calls(network, 1)
    assert state_of(network) == "on"
    assert forms(network) == {"int8", ""}


def test_an_interrupted_picture_is_observed_anew(settings: Settings) -> None:
    engine = Engine(settings)
    network = engine.network("unet", Denoiser(), hooks=NetworkHooks(quantizable=True))
    engine.begin_picture()
    calls(network, 12)
    engine.end_run(completed=False)
    engine.begin_picture()
    calls(network, 9)
    engine.end_run(completed=False)
    engine.begin_picture()
    calls(network, 9)
    assert state_of(network) == "calibrating"
    assert network.statistics.compiles == 1, "what observes is kept"
    engine.end_run()
    engine.begin_picture()
    calls(network, 1)
    assert state_of(network) == "on"


def test_an_interrupted_picture_of_another_checkpoint_leaves_what_was_observed(settings: Settings) -> None:
    engine = Engine(settings)
    network = engine.network("unet", Denoiser(), hooks=NetworkHooks(quantizable=True))
    for seed, count, completed in ((0, 9, True), (1, 3, False), (0, 1, True)):
        network.module.load_state_dict(Denoiser(seed).state_dict())
        engine.begin_picture()
        calls(network, count)
        engine.end_run(completed)
    assert state_of(network) == "on"


def test_a_second_pass_of_a_picture_begins_none(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    network.begin_picture()
    network.read_again()
    calls(network, 9)
    network.read_again()
    calls(network, 9)
    assert state_of(network) == "calibrating"
    picture(network, 1)
    assert state_of(network) == "on"


def test_after_a_run_of_a_host_calls_without_one_are_known_by_the_text_encoder(settings: Settings) -> None:
    engine = Engine(settings)
    network = engine.network("unet", Denoiser(), hooks=NetworkHooks(quantizable=True))
    encoder = engine.network("text_encoder", torch.nn.Conv2d(32, 32, 3))
    engine.begin_picture()
    calls(network, 2)
    engine.end_run()
    for state in ("calibrating", "on"):
        with torch.no_grad():
            encoder(call_of(0)[0])
        calls(network, 9)
        assert state_of(network) == state


class Long(torch.nn.Module):
    """A product that is worth computing in 8 bits for long inputs only: [B, N, 64] -> [B, N, 64]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.sin())


def test_a_size_without_layers_in_8_bits_decides_for_itself_alone(settings: Settings) -> None:
    def draw(network: Network, tokens: int) -> str:
        network.begin_run()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for _ in range(8):
                network(torch.randn(1, tokens, 64, generator=generator))
        return state_of(network)

    small = network_of(settings, Long())
    assert [draw(small, 16), draw(small, 16)] == ["calibrating", "off"]
    large = network_of(settings, Long())
    assert [draw(large, 1024), draw(large, 1024)] == ["calibrating", "on"], "the small size's verdict is not kept on disk"
    assert [draw(large, 16), draw(large, 1024), draw(large, 16), draw(large, 1024)] == ["off", "on", "off", "on"]
    assert large.stats()["fallbacks"] == {}
