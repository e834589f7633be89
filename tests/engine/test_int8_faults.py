"""int8 with two processes at once, with a full disk, with weights exchanged during a trial, and with several batch sizes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.int8.low_precision import CallSample
from ov_backend.int8.recipe import MAX_ERROR
from tests.helpers.layers_in_8_bits import Denoiser, call_of, error, expected, forms, needs_vnni, network_of, picture

pytestmark = needs_vnni


@pytest.fixture
def settings(strict: Callable[..., Settings]) -> Settings:
    return strict(precision="int8")


def test_processes_that_calibrate_at_once_each_use_their_recipe_and_the_next_one_finds_one(settings: Settings) -> None:
    both = [network_of(settings, Denoiser()) for _ in range(2)]
    for steps in (8, 2):
        for network in both:
            picture(network, steps)
    assert [forms(network) for network in both] == [{"int8"}] * 2
    later = network_of(settings, Denoiser())
    picture(later, 1)
    assert forms(later) == {"int8"}
    assert len(later.resources.recipes.store.entries()) == 1


def test_where_no_recipe_can_be_stored_this_process_uses_it_and_a_warning_says_so(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    network = network_of(settings, Denoiser())
    folder = network.resources.recipes.store.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder")
    with caplog.at_level(logging.WARNING):
        picture(network)
        answers = picture(network, 2)
    assert forms(network) == {"int8"}
    assert all(error(a, e) < MAX_ERROR for a, e in zip(answers, expected(network.module)))
    assert caplog.text.count("Cannot store a recipe") == 1
    later = network_of(settings, Denoiser())
    picture(later, 1)
    assert forms(later) == {"observing"}


def test_a_checkpoint_that_is_exchanged_during_the_trial_gets_no_recipe_and_the_tried_one_is_tried_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, replay, replayed = network_of(settings, Denoiser()), CallSample.replay, []

    def exchanging(sample: CallSample) -> Sequence[torch.Tensor]:
        replayed.append(sample)
        if len(replayed) == 2:
            network.module.load_state_dict(Denoiser(seed=1).state_dict())
        return replay(sample)

    picture(network)
    monkeypatch.setattr(CallSample, "replay", exchanging)
    (answer,) = picture(network, 1)
    assert len(replayed) > 2
    assert error(answer, expected(network.module, 1)[0]) < 0.02, "the exchanged weights' answer, in the device's own precision"
    assert network.stats()["int8"]["state"] == "calibrating"
    assert not network.resources.recipes.store.entries()
    network.module.load_state_dict(Denoiser().state_dict())
    picture(network, 1)
    assert network.stats()["int8"]["state"] == "on"


@pytest.mark.parametrize("batch", [1, 5, 40])
def test_a_recipe_serves_every_batch_size(settings: Settings, batch: int) -> None:
    network = network_of(settings, Denoiser())
    picture(network)
    picture(network, 1)
    x, time = (each[:1].expand(batch, *each.shape[1:]).clone() for each in call_of(0))
    with torch.no_grad():
        assert error(network(x, time), network.module(x, time)) < MAX_ERROR
    assert forms(network) == {"int8"}
    assert network.stats()["int8"]["state"] == "on"
