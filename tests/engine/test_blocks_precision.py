"""int8 by blocks: as of a whole network, the first picture calibrates, the next are in 8 bits, and a bad recipe is not used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.blocks import Blockwise, patch_calls
from ov_backend.engine.engine import Engine, NetworkHooks
from ov_backend.quantization.recipe import MAX_ERROR, Recipe
from ov_backend.runtime import compiled_graph
from tests.engine.test_blocks import foreign_forward
from tests.helpers.layers_in_8_bits import Cancelling, error, needs_vnni
from tests.helpers.networks import CONTEXT, seeded, unet

Strict = Callable[..., Settings]
Forward = Callable[..., torch.Tensor]
pytestmark = needs_vnni


@pytest.fixture(autouse=True)
def calls_patched() -> Iterator[None]:
    patch = patch_calls()
    yield
    assert patch.undo()


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that the tests share, so that most of them trace nothing; recipes lie beside the graphs."""
    return str(tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def settings(strict: Strict, graphs: str) -> Iterator[Settings]:
    settings = strict(precision="int8", cache_dir=graphs, fallback="pytorch")
    yield settings
    recipes = Engine(settings).resources.recipes.store
    assert recipes is not None
    recipes.clear()


def calm(seed: int = 0) -> Any:
    """ldm's UNet with one level, whose layers add little to what they read, as trained ones do: 8 bits are enough for it."""
    module = unet(seed, channel_mult=[1], attention_resolutions=[1])
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if name.endswith(("out_layers.3.weight", "proj_out.weight", "to_out.0.weight", "ff.net.2.weight")):
                weight.mul_(0.2)
    return module


class Parts(torch.nn.Module):
    """A network of two blocks, with a layer in PyTorch before and after them; its calls are those of a UNet."""

    def __init__(self, first: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.stem, self.head = torch.nn.Conv2d(4, 32, 3, padding=1), torch.nn.Conv2d(32, 4, 3, padding=1)
        self.first = first or torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.SiLU())
        self.second = torch.nn.Sequential(torch.nn.GroupNorm(4, 32), torch.nn.SiLU(), torch.nn.Conv2d(32, 32, 3, padding=1))

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        h = self.first(self.stem(x) + 1e-3 * timesteps[:, None, None, None])
        return self.head(h + 0.5 * self.second(h + context.mean()))  # type: ignore[no-any-return]


class Halves(Cancelling):
    """Two products that nearly cancel each other, for which 8 bits are too few."""

    def __init__(self) -> None:
        super().__init__()
        self.c = torch.nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.c(1000 * super().forward(x, x)).transpose(1, 2).reshape(x.shape)  # type: ignore[no-any-return]


def parts(first: torch.nn.Module | None = None) -> Any:
    return seeded(Parts(first)) if first is None else Parts(first).eval()


def call_parts(module: Any, *args: torch.Tensor) -> torch.Tensor:
    return Parts.forward(module, *args)


def blockwise(module: torch.nn.Module, settings: Settings) -> Blockwise:
    engine = Engine(settings)
    return engine.add(Blockwise(engine.resources, "unet", module, module.forward, NetworkHooks(quantizable=True)))


def call_of(step: int, size: int = 16) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(step)
    latents = torch.randn(2, 4, size, size, generator=generator)
    return latents, torch.full((2,), 900.0 - 100 * step), torch.randn(2, 7, CONTEXT, generator=generator)


def forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """Another's forward for a network, with something between the blocks."""
    return call_parts if isinstance(module, Parts) else foreign_forward


def by_blocks(network: Blockwise, forward: Callable[..., Any] | None = None) -> Forward:
    chosen = forward or forward_of(network.module)

    def foreign(*args: torch.Tensor) -> torch.Tensor:
        return chosen(network.module, *args)  # type: ignore[no-any-return]

    foreign.__qualname__ = chosen.__qualname__
    return lambda *args: network.by_blocks("it is another's", foreign, args, {})  # type: ignore[no-any-return]


def picture(network: Blockwise, steps: int = 8, size: int = 16, forward: Callable[..., Any] | None = None) -> list[torch.Tensor]:
    answer = by_blocks(network, forward)
    network.begin_run()
    with torch.no_grad():
        return [answer(*call_of(step, size)) for step in range(steps)]


def expected(module: torch.nn.Module, steps: int = 2, size: int = 16) -> list[torch.Tensor]:
    with torch.no_grad():
        return [forward_of(module)(module, *call_of(step, size)) for step in range(steps)]


def forms(network: Blockwise) -> set[str]:
    return {key.form.split(" ")[0] for key in network.resources.compiled}  # type: ignore[attr-defined]


def is_near(answers: list[torch.Tensor], module: torch.nn.Module, size: int = 16) -> bool:
    """Within the error that a recipe may have, and as much again for the device's own rounding, which may be bf16's."""
    return all(error(a, e) < 2 * MAX_ERROR for a, e in zip(answers, expected(module, len(answers), size)))


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


def test_no_layer_of_the_blocks_is_in_8_bits_that_is_not_in_the_whole_network(
    recipe: tuple[str, Recipe], settings: Settings
) -> None:
    whole = Engine(settings).network("unet", calm(), hooks=NetworkHooks(quantizable=True))
    with torch.no_grad():
        whole(*call_of(0))
    (observed,) = whole._lookup.low_precision._observed.values()
    ranges = set(recipe[1].ranges)
    assert ranges <= set(observed.calibration.ranges)
    assert len(ranges) > 0.9 * len(observed.calibration.ranges)


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


def test_a_recipe_that_is_off_too_much_is_not_used_now_or_later(settings: Settings) -> None:
    module = parts(Halves())
    for _ in range(2):
        network = blockwise(module, settings)
        picture(network)
        answers = picture(network, 1)
        assert network.stats()["int8"]["text"].startswith("int8 is not used: a call's result is off by")
        assert forms(network) == {""}
        own = blockwise(module, settings.replace(precision="auto"))
        assert torch.equal(answers[0], picture(own, 1)[0])
    compiles = network.statistics.compiles
    assert compiles == len(network.resources.compiled), "a second process does not calibrate again"


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

    monkeypatch.setattr(compiled_graph, "quantize", without_memory)
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
    observed = network.blocks_precision._observed
    picture(network, 1)
    assert [each.calibration.calls for each in observed.values()] == [3]
    for _ in range(4):
        network.begin_run()
    assert not observed
