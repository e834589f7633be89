"""int8: the first picture calibrates, the next ones are computed in 8 bits, and a recipe that is not good enough is not used."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.core.errors import DeviceError
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.engine.int8 import precision
from ov_backend.int8.recipe import MAX_ERROR
from ov_backend.model.runtime import bound_model
from tests.helpers.layers_in_8_bits import (
    Cancelling,
    Denoiser,
    call_of,
    error,
    expected,
    forms,
    needs_vnni,
    network_of,
    picture,
    runtime_types,
)

Strict = Callable[..., Settings]
pytestmark = needs_vnni
EIGHT_BITS = {"u8", "i8"}


@pytest.fixture
def settings(strict: Strict) -> Settings:
    return strict(precision="int8")


@pytest.fixture
def calibrated(settings: Settings) -> Network:
    """A network whose second picture was made in int8."""
    network = network_of(settings, Denoiser())
    picture(network)
    picture(network, 2)
    return network


def test_the_first_picture_is_made_in_the_devices_own_precision(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    network, plain = network_of(settings, Denoiser()), network_of(settings.replace(precision="auto"), Denoiser())
    answers = picture(network)
    assert all(error(a, b) < 1e-2 for a, b in zip(answers, picture(plain))), "observing changes no more than the rounding"
    assert not EIGHT_BITS & runtime_types(network)["Convolution"]
    assert "this picture calibrates int8" in network.stats()["int8"]["text"]
    assert sum("calibrates" in record.message for record in caplog.records) == 1


def test_the_second_picture_is_made_in_8_bits_and_says_how_much_it_is_off(calibrated: Network) -> None:
    answers = picture(calibrated, 2)
    assert all(error(a, e) < MAX_ERROR for a, e in zip(answers, expected(Denoiser())))
    types = runtime_types(calibrated)
    assert types["Convolution"] <= EIGHT_BITS
    assert types["FullyConnected"] & EIGHT_BITS
    assert forms(calibrated) == {"int8"}, "what observed is evicted"
    stated = calibrated.stats()["int8"]
    assert 0 < stated["error"] < MAX_ERROR
    assert f"{100 * stated['error']:.1f} % off" in stated["text"]


def test_too_few_calls_make_no_recipe(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    picture(network, 3)
    picture(network, 3)
    assert forms(network) == {"observing"}
    picture(network, 3)
    picture(network, 1)
    assert forms(network) == {"int8"}


def test_another_size_and_another_process_calibrate_nothing(calibrated: Network, settings: Settings) -> None:
    picture(calibrated, 2, size=24)
    assert forms(calibrated) == {"int8"}
    later = network_of(settings, Denoiser())
    answers = picture(later, 2)
    assert forms(later) == {"int8"}
    assert all(error(a, e) < MAX_ERROR for a, e in zip(answers, expected(Denoiser())))


def test_a_lora_mix_calibrates_nothing_and_is_computed(calibrated: Network) -> None:
    module = calibrated.module
    with torch.no_grad():
        module.gate.weight += 0.01 * torch.outer(torch.randn(128), torch.randn(64))
        module.first.weight.mul_(1.05)
    before = calibrated.statistics.compiles
    answers = picture(calibrated, 2)
    assert forms(calibrated) == {"int8"}
    assert calibrated.statistics.compiles == before + 1
    assert all(error(a, e) < 2 * MAX_ERROR for a, e in zip(answers, expected(module)))


def test_a_lora_added_before_the_recipe_is_made_is_no_error_of_int8(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    picture(network)
    with torch.no_grad():
        network.module.last.weight.mul_(3.0)
    picture(network, 1)
    assert 0 < network.stats()["int8"]["error"] < MAX_ERROR


def test_what_was_compiled_to_try_a_recipe_is_evicted_where_it_is_not_needed(settings: Settings) -> None:
    changed, refused = network_of(settings, Denoiser()), network_of(settings, Cancelling())
    picture(changed)
    with torch.no_grad():  # a LoRA: both forms are compiled for the new weights
        changed.module.last.weight.mul_(3.0)
    picture(changed, 1)
    assert forms(changed) == {"int8"}
    picture(refused)
    picture(refused, 1)
    assert forms(refused) == {""}


def test_the_8_bit_weights_are_not_kept_in_memory_beside_the_packed_ones(calibrated: Network) -> None:
    compiled = calibrated.resources.compiled
    (part,) = compiled.peek(list(compiled)[-1]).value.program.parts.values()
    (buffer,) = part.buffers
    assert buffer._memory is not None, "it is a file, whose pages are dropped"


def test_it_is_said_whether_both_forms_fit_in_memory_and_where_not_one_is_evicted(calibrated: Network) -> None:
    both = calibrated.precision.both
    assert both.needed > 0
    assert "both fit in memory" in both.describe()
    calibrated.resources.compiled.budget = 1
    assert "evicted before the other" in both.describe()
    both.make_room()
    assert forms(calibrated) == set()


def test_it_is_said_on_what_the_quality_was_measured(settings: Settings) -> None:
    engine = Engine(settings)
    network = engine.network("unet", Denoiser(), hooks=NetworkHooks(quantizable=True))
    picture(network)
    assert "measured" not in engine.stats()["unet"]["int8"]
    picture(network, 1)
    assert "your own comparison decides" in engine.stats()["unet"]["int8"]["measured"]


def test_a_recipe_that_is_off_too_much_is_not_used_and_the_next_process_calibrates_anew(settings: Settings) -> None:
    network = network_of(settings, Cancelling())
    picture(network)
    answers = picture(network, 2)
    assert forms(network) <= {"", "int8"}
    assert all(error(a, e) < 0.02 for a, e in zip(answers, expected(network.module))) or _is_half(answers)
    assert network.stats()["int8"]["text"].startswith("int8 is not used: a call's result is off by")
    compiles = network.statistics.compiles
    picture(network)
    picture(network, 1)
    assert network.statistics.compiles == compiles, "this one does not"
    later = network_of(settings, Cancelling())
    picture(later, 1)
    assert later.stats()["int8"]["state"] == "calibrating", "its first picture may have been one of little noise"


def _is_half(answers: list[torch.Tensor]) -> bool:
    """Whether this CPU computes in bf16, in which the network is off by its own rounding."""
    from ov_backend.core import devices

    return devices.resolved_precision(Settings()) == "bf16"


def test_a_network_without_such_layers_says_so(settings: Settings) -> None:
    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) * 2

    network = network_of(settings, Sine())
    picture(network)
    assert torch.allclose(picture(network, 1)[0], 2 * call_of(0)[0].sin(), atol=2e-2)
    assert "no layer of it can be computed in 8 bits" in network.stats()["int8"]["text"]
    assert forms(network) == {""}


def test_other_networks_are_what_they_are_without_int8(settings: Settings) -> None:
    engine = Engine(settings)
    network = engine.network("vae_decode", Denoiser(), hooks=NetworkHooks())
    first = picture(network)
    engine.configure(settings.replace(precision="auto"))
    assert all(map(torch.equal, first, picture(network)))
    assert network.statistics.compiles == 1
    assert not network.stats()["int8"]


def test_a_graph_in_the_devices_precision_is_never_taken_for_one_in_8_bits(calibrated: Network, settings: Settings) -> None:
    in_8_bits = picture(calibrated, 1)[0]
    calibrated.resources.configure(settings.replace(precision="f32"))
    exact = picture(calibrated, 1)[0]
    assert error(exact, expected(calibrated.module)[0]) < 1e-5 < error(in_8_bits, exact)
    calibrated.resources.configure(settings)
    assert torch.equal(picture(calibrated, 1)[0], in_8_bits)


def test_an_overflow_is_computed_again_in_f32(calibrated: Network) -> None:
    with torch.no_grad():
        calibrated.module.last.weight.fill_(3e38)
    x, time = call_of(0)
    with torch.no_grad():
        calibrated(x, time)
    assert "" in forms(calibrated)


def test_other_devices_are_refused_in_one_sentence(strict: Strict) -> None:
    with pytest.raises(DeviceError) as refusal:
        Engine(strict(precision="int8", device="HETERO:CPU,CPU"))
    assert "int8 is for the CPU alone" in str(refusal.value)


def test_a_damaged_recipe_is_made_again(calibrated: Network, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    store = calibrated.resources.recipes.store
    (entry,) = store.entries()
    store.put(entry.key, {"recipe.json": store.get(entry.key)["recipe.json"].replace(b'"calls": ', b'"calls": -')})
    later = network_of(settings, Denoiser())
    with caplog.at_level(logging.WARNING):
        picture(later, 1)
    assert forms(later) == {"observing"}
    assert "Ignoring the stored recipe" in caplog.text


def test_a_layer_behind_a_large_group_normalization_is_in_8_bits(settings: Settings) -> None:
    class Normalized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.inner = torch.nn.GroupNorm(8, 32), torch.nn.Conv2d(32, 32, 1)

        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return self.inner(self.norm(x))

    network = network_of(settings, Normalized())
    picture(network, size=48)
    picture(network, 1, size=48)
    assert runtime_types(network)["Convolution"] <= EIGHT_BITS, "the CPU's form of the normalisation ends in a sum"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_call_or_a_weight_that_is_not_finite_gives_no_finite_answer(calibrated: Network, value: float) -> None:
    x, time = call_of(0)
    with torch.no_grad():
        before = calibrated(x, time)
        spoiled = calibrated(x.index_fill(3, torch.tensor(3), value), time)
        assert not spoiled.isfinite().all(), "8 bits would cut off what they do not have"
        assert torch.equal(calibrated(x, time), before), "the next call is in int8 again"
        calibrated.module.last.weight[3, 5] = value
        assert not calibrated(x, time)[..., 3].isfinite().any()


@pytest.mark.parametrize("name", ["norm.weight", "first.bias", "last.bias", "first.weight", "gate.weight"])
def test_a_weight_that_is_not_finite_gives_no_finite_answer_and_int8_says_so(calibrated: Network, name: str) -> None:
    call = call_of(0)
    with torch.no_grad():
        weight = calibrated.module.get_parameter(name)
        before, answer = weight.clone(), calibrated(*call)
        weight.fill_(float("nan"))
        calibrated.begin_run()
        assert calibrated(*call).isnan().all(), "8 bits would make numbers of it"
        assert calibrated.stats()["int8"]["state"] == "off"
        assert "not finite" in calibrated.stats()["int8"]["text"]
        weight.copy_(before)
        calibrated.begin_run()
        assert torch.equal(calibrated(*call), answer), "the weights are what they were, and their recipe holds"


def test_calls_that_are_not_finite_calibrate_nothing(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    x, time = call_of(0)
    with torch.no_grad():
        for _ in range(8):
            network(torch.full_like(x, float("nan")), time)
    picture(network)
    picture(network, 1)
    assert forms(network) == {"int8", ""}


def test_a_compile_that_failed_is_no_verdict_for_other_processes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: object) -> list[str]:
        raise RuntimeError("bad allocation")

    network = network_of(settings, Denoiser())
    picture(network)
    monkeypatch.setattr(bound_model, "quantize", without_memory)
    picture(network, 1)
    assert "bad allocation" in network.stats()["int8"]["text"]
    monkeypatch.undo()
    assert picture(network, 1), "it is not tried again in this one"
    later = network_of(settings, Denoiser())
    picture(later, 1)
    assert forms(later) == {"observing"}


def test_a_network_whose_weights_change_at_every_call_keeps_no_more_and_more_calls(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    network.begin_run()
    most = precision.MOST_OBSERVED
    with torch.no_grad():
        for step in range(most + 2):
            network.module.first.bias += 0.1
            network(*call_of(step))
    assert len(network.precision.observed) == most


def test_without_int8_what_was_observed_for_it_is_not_compiled(settings: Settings) -> None:
    network = network_of(settings, Denoiser())
    picture(network)
    network.resources.configure(settings.replace(precision="auto"))
    compiles = network.statistics.compiles
    picture(network, 1, size=24)
    assert network.statistics.compiles == compiles + 1, "the calls of the other size are not computed again"


def test_a_form_that_was_compiled_before_int8_was_chosen_stays(settings: Settings) -> None:
    network = network_of(settings.replace(precision="auto"), Denoiser())
    picture(network, 1)
    network.resources.configure(settings)
    picture(network)
    picture(network, 1)
    assert forms(network) == {"", "int8"}


def test_without_vnni_int8_is_not_used_and_one_sentence_says_so(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies_8_bits_exactly", lambda: False)
    network = network_of(settings, Denoiser())
    picture(network, 2)
    assert forms(network) == {""}
    assert "this CPU has no VNNI instructions" in network.stats()["int8"]["text"]
