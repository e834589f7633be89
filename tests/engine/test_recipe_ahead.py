"""int8: when a picture is over, what the next one needs is compiled and tried in the background."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.engine import Engine, Network, NetworkHooks
from tests.helpers.layers_in_8_bits import Cancelling, Denoiser, call_of, needs_vnni, network_of, picture

Strict = Callable[..., Settings]
pytestmark = needs_vnni


@pytest.fixture
def settings(strict: Strict) -> Settings:
    return strict(precision="int8", low_memory="off")


def engine_of(settings: Settings, module: torch.nn.Module) -> tuple[Engine, Network]:
    engine = Engine(settings)
    return engine, engine.network("unet", module, hooks=NetworkHooks(quantizable=True))


def after_a_picture(engine: Engine, network: Network) -> int:
    """The number of compiles when the first picture is over, and what it needs next is compiled."""
    picture(network)
    engine.end_run()
    assert engine.resources.ahead.wait(60)
    return network.statistics.compiles


def forms(network: Network) -> set[str]:
    return {key.form.split()[0] if key.form else "" for key in network.resources.compiled}


def test_the_next_picture_compiles_nothing_and_computes_no_call_again(settings: Settings) -> None:
    engine, network = engine_of(settings, Denoiser())
    compiles = after_a_picture(engine, network)
    assert forms(network) == {"observing", "int8"}
    assert len(tried_of(network)) == 4
    picture(network, 2)
    assert network.statistics.compiles == compiles
    assert forms(network) == {"int8"}
    assert "% off" in network.stats()["int8"]["text"]


def tried_of(network: Network) -> dict[int, list[torch.Tensor]]:
    """The results of observed calls that were computed in the background with what was compiled last."""
    compiled = network.resources.compiled
    return compiled.peek(list(compiled)[-1]).value.tried


def test_the_error_is_the_same_as_of_a_recipe_made_when_the_next_picture_begins(settings: Settings) -> None:
    engine, ahead = engine_of(settings.replace(model_caching=False), Denoiser())
    after_a_picture(engine, ahead)
    waiting = network_of(settings, Denoiser())
    picture(waiting)
    for network in (ahead, waiting):
        picture(network, 1)
    assert ahead.stats()["int8"]["error"] == pytest.approx(waiting.stats()["int8"]["error"], rel=1e-6)


@pytest.mark.parametrize("told", [False, True])
def test_where_no_host_says_so_a_decoding_is_the_end_of_a_picture(settings: Settings, told: bool) -> None:
    engine, network = engine_of(settings, Denoiser())
    decoder = engine.network("vae_decode", torch.nn.Conv2d(32, 32, 3))
    if told:
        engine.begin_picture()
    with torch.no_grad():
        for step in range(8):
            network(*call_of(step))
        decoder(call_of(0)[0])
    assert engine.resources.ahead.wait(60)
    assert ("int8" in forms(network)) is not told, "it may be a preview"
    engine.end_run()
    assert engine.resources.ahead.wait(60)
    assert "int8" in forms(network)


def test_after_too_few_calls_or_an_interrupted_picture_nothing_is_compiled(settings: Settings) -> None:
    engine, network = engine_of(settings, Denoiser())
    picture(network, 7)
    engine.end_run()
    picture(network, 7)
    engine.end_run(completed=False)
    assert engine.resources.ahead.wait(60)
    assert forms(network) == {"observing"}


def test_a_recipe_that_is_off_too_much_is_refused_all_the_same(settings: Settings) -> None:
    engine, network = engine_of(settings, Cancelling())
    after_a_picture(engine, network)
    assert forms(network) == {"observing", "int8"}
    picture(network, 1)
    assert "int8 is not used: a call's result is off by" in network.stats()["int8"]["text"]
    assert forms(network) == {""}


def test_weights_that_change_afterwards_are_compiled_and_tried_anew(settings: Settings) -> None:
    engine, network = engine_of(settings, Denoiser())
    after_a_picture(engine, network)
    with torch.no_grad():
        network.module.last.weight.numpy()[:] *= -2  # nothing counts this write
    answer = picture(network, 1)[0]
    with torch.no_grad():
        expected = network.module(*call_of(0))
    assert float((answer - expected).norm() / expected.norm()) < 0.03


def test_calls_that_are_observed_afterwards_belong_to_the_recipe(settings: Settings) -> None:
    engine, network = engine_of(settings, Denoiser())
    compiles = after_a_picture(engine, network)
    x, time = call_of(3)
    with torch.no_grad():
        network(1.5 * x, time)
    picture(network, 1)
    assert network.statistics.compiles == compiles + 1
    assert len(network.resources.compiled) == 1, "the form of the ranges before is evicted"
    (entry,) = network.resources.recipes.store.entries()
    recipe = network.resources.recipes.get(entry.key[:32], entry.key[32:])
    assert recipe.calls == 9
    assert recipe.ranges["first.weight"].high >= float(1.5 * x.max()) * 0.99


def test_without_room_in_the_memory_budget_the_next_picture_compiles(settings: Settings) -> None:
    engine, network = engine_of(settings, Denoiser())
    picture(network)
    engine.compiled.budget = engine.compiled.bytes
    engine.end_run()
    assert engine.resources.ahead.wait(60)
    assert forms(network) == {"observing"}
    picture(network, 1)
    assert "int8" in forms(network)
