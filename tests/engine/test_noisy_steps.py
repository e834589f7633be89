"""int8: the steps with much noise decide what the picture becomes, and are computed in the device's own precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.blocks.patched_calls import patch_calls
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from ov_backend.engine.int8 import dual_precision_memory, much_noise
from tests.helpers import blocks_in_8_bits
from tests.helpers.layers_in_8_bits import Denoiser, call_of, forms, needs_vnni

pytestmark = needs_vnni
#: Of one picture of eight steps, as a sampler counts down; two of them have much noise.
TIMESTEPS = (999.0, 890.0, 750.0, 625.0, 500.0, 375.0, 250.0, 125.0)


class Stepping(Denoiser):
    """A denoiser that is told how much noise there is."""

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, time: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, time + timesteps[:, None] / 1000)


@pytest.fixture
def calibrated(strict: Callable[..., Settings]) -> Network:
    """A network whose first picture was observed."""
    hooks = NetworkHooks(quantizable=True)
    network = Engine(strict(precision="int8")).network("unet", Stepping(), hooks=hooks)
    picture(network)
    return network


def step(network: Network, number: int, size: int = 16) -> torch.Tensor:
    x, time = call_of(number, size)
    with torch.no_grad():
        result: torch.Tensor = network(x, torch.full((2,), TIMESTEPS[number]), time)
    return result


def picture(network: Network, steps: int = len(TIMESTEPS), size: int = 16) -> list[torch.Tensor]:
    network.begin_run()
    return [step(network, number, size) for number in range(steps)]


def own(network: Network, number: int) -> torch.Tensor:
    """The answer in the device's own precision."""
    x, time = call_of(number)
    engine = Engine(network.resources.settings.replace(precision="auto"))
    with torch.no_grad():
        result: torch.Tensor = engine.network("unet", network.module)(x, torch.full((2,), TIMESTEPS[number]), time)
    return result


def test_steps_with_much_noise_are_computed_in_the_devices_own_precision_and_others_in_8_bits(calibrated: Network) -> None:
    answers = picture(calibrated)
    equal = [torch.equal(answer, own(calibrated, number)) for number, answer in enumerate(answers)]
    assert equal == [True, True, *[False] * 6]
    assert "; steps with much noise are computed in" in calibrated.stats()["int8"]["text"]


def test_both_forms_stay_so_the_next_picture_compiles_nothing(calibrated: Network) -> None:
    picture(calibrated)
    assert {"", "int8"} <= forms(calibrated)
    compiles = calibrated.statistics.compiles
    picture(calibrated)
    assert calibrated.statistics.compiles == compiles


def test_the_form_in_8_bits_of_a_new_size_is_compiled_while_the_first_steps_are_computed(calibrated: Network) -> None:
    picture(calibrated)
    picture(calibrated, 1, size=24)
    assert calibrated.resources.ahead.wait(60)
    compiles = calibrated.statistics.compiles
    picture(calibrated, size=24)
    assert calibrated.statistics.compiles == compiles


def test_where_both_forms_do_not_fit_in_memory_every_step_is_in_8_bits(
    calibrated: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dual_precision_memory, "available_memory", lambda: 0)
    answers = picture(calibrated)
    assert not any(torch.equal(answer, own(calibrated, number)) for number, answer in enumerate(answers))
    assert "so steps with much noise are in 8 bits too" in calibrated.stats()["int8"]["text"]
    monkeypatch.undo()
    picture(calibrated, 3)
    assert "; steps with much noise are computed in" in calibrated.stats()["int8"]["text"], "it says what the last picture did"


def test_by_its_blocks_too_steps_with_much_noise_are_computed_in_the_devices_own_precision(
    strict: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(much_noise, "MUCH_NOISE", 750)
    patch = patch_calls()
    network = blocks_in_8_bits.blockwise(blocks_in_8_bits.parts(), strict(precision="int8", fallback="pytorch"))
    plain = blocks_in_8_bits.blockwise(network.module, network.resources.settings.replace(precision="auto"))
    blocks_in_8_bits.picture(network)
    answers = blocks_in_8_bits.picture(network)
    own = blocks_in_8_bits.picture(plain)
    assert patch.undo()
    equal = [torch.equal(answer, each) for answer, each in zip(answers, own)]
    assert equal == [True, *[False] * 7], "the timesteps are 800, 700, and so on"
    assert {"", "int8"} <= blocks_in_8_bits.forms(network)


def test_a_recipe_is_tried_on_no_step_that_will_not_be_in_8_bits(calibrated: Network) -> None:
    observed = calibrated.low_precision.precision.last_observed
    assert observed is not None
    assert [sample.much_noise for sample in observed.samples].count(True) == 1
    tried = calibrated.low_precision.precision.tried_on(observed)
    assert len(tried) == len(observed.samples) - 1
    assert not any(sample.much_noise for sample in tried)


def test_pictures_of_nothing_but_much_noise_do_not_calibrate(strict: Callable[..., Settings]) -> None:
    network = Engine(strict(precision="int8")).network("unet", Stepping(), hooks=NetworkHooks(quantizable=True))
    for _ in range(10):
        picture(network, 1)
    assert network.stats()["int8"]["state"] == "calibrating"
    picture(network)
    picture(network)
    assert network.stats()["int8"]["state"] == "on"


def test_where_one_form_fits_every_step_is_tried(calibrated: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = calibrated.low_precision.precision.last_observed
    assert observed is not None
    monkeypatch.setattr(dual_precision_memory, "available_memory", lambda: 0)
    assert calibrated.low_precision.precision.tried_on(observed) == observed.samples
