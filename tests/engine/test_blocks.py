"""A network by its blocks: right where its forward belongs to other code, and nothing of ours is left on its modules."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ov_backend import Settings
from ov_backend.engine.blocks.blocks import Blockwise
from ov_backend.engine.blocks.patched_calls import call_block, patch_calls
from ov_backend.engine.engine import Engine, NetworkHooks
from tests.helpers.by_blocks import Stepped, foreign_forward
from tests.helpers.networks import CONTEXT, unet

Strict = Callable[..., Settings]
UNet = tuple[torch.nn.Module, Blockwise, Engine]


@pytest.fixture
def calls_patched() -> Iterator[None]:
    before = torch.nn.Module.__call__
    patch = patch_calls()
    yield
    assert patch.undo()
    assert torch.nn.Module.__call__ is before


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that the tests share, so that most of them trace nothing."""
    return str(tmp_path_factory.mktemp("graphs"))


@pytest.fixture
def tiny(strict: Strict, graphs: str, calls_patched: None) -> UNet:
    return blockwise(smallest(), strict(cache_dir=graphs))


def smallest() -> torch.nn.Module:
    """ldm's UNet with one level: two input blocks and two output blocks."""
    return unet(channel_mult=[1], attention_resolutions=[1])


def blockwise(module: torch.nn.Module, settings: Settings, hooks: NetworkHooks | None = None) -> UNet:
    engine = Engine(settings.replace(fallback="pytorch"))
    return module, add(engine, module, module.forward, hooks), engine


def add(engine: Engine, module: torch.nn.Module, forward: Callable[..., Any], hooks: NetworkHooks | None = None) -> Blockwise:
    return engine.add(Blockwise(engine.resources, "unet", module, forward, hooks or NetworkHooks()))


def inputs(batch: int = 2, size: int = 16) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    latents = torch.randn(batch, 4, size, size, generator=generator)
    return latents, torch.full((batch,), 500.0), torch.randn(batch, 7, CONTEXT, generator=generator)


def run_foreign(tiny: UNet, *args: torch.Tensor) -> torch.Tensor:
    module, network, _ = tiny
    with torch.no_grad():
        return network.by_blocks("it is another's", lambda *a: foreign_forward(module, *a), args, {})  # type: ignore[no-any-return]


def eager(module: torch.nn.Module, *args: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return foreign_forward(module, *args)


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def count_of_blocks(module: Any) -> int:
    return len(module.input_blocks) + len(module.output_blocks) + 3  # and time_embed, middle_block, out


def test_the_blocks_that_a_foreign_forward_calls_are_answered(tiny: UNet) -> None:
    module, _, engine = tiny
    expected = eager(module, *inputs())
    for _ in range(2):
        assert_equal(run_foreign(tiny, *inputs()), expected)
    blocks = count_of_blocks(module)
    stats = engine.stats()
    assert list(stats) == ["unet"]
    assert stats["unet"]["calls"] == 2
    assert stats["unet"]["by_blocks"] == {"it is another's": 2}
    assert (stats["unet"]["block_calls"], stats["unet"]["compiles"]) == (2 * blocks, blocks)
    assert stats["unet"]["held"] == blocks
    assert stats["unet"]["fallbacks"] == {}


def test_other_sizes_and_weights_are_right(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    for batch in (2, 3, 2):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))
    compiles = network.statistics.compiles
    with torch.no_grad():
        module.blocks[1][0].weight[0, 0] += 1  # type: ignore[index]
        assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))
    assert network.statistics.compiles == compiles + 1


def test_outside_of_its_own_forward_modules_are_called_by_pytorch(tiny: UNet) -> None:
    module, network, _ = tiny
    eager(module, *inputs())
    assert network.statistics.block_calls == 0


def test_extensions_find_no_forward_of_ours(tiny: UNet) -> None:
    module, _, _ = tiny
    block: Any = module.middle_block
    seen = []

    def forward(*args: torch.Tensor) -> torch.Tensor:
        saved = block.forward
        seen.append(saved.__func__ is type(block).forward)
        block.forward = saved  # as an extension restores it
        return foreign_forward(module, *args)

    _, network, _ = tiny
    with torch.no_grad():
        assert_equal(network.by_blocks("it is another's", forward, inputs(), {}), eager(module, *inputs()))
    assert seen == [True]
    assert "forward" not in {name for each in module.modules() if each is not block for name in vars(each)}


class Counting(Stepped):
    """A network whose forward does more than compute."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return super().forward(x)


def test_a_network_with_a_side_effect_is_answered_by_its_blocks(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Counting(), strict())
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = [module(x) for _ in range(3)]
        module.step = 0  # type: ignore[assignment]
        for result in expected:
            assert_equal(network(x), result)
    assert module.step == 3
    (reason,) = network.statistics.by_blocks
    assert "Counting.step" in reason
    assert network.statistics.block_calls == 3 * 2


def test_where_a_block_cannot_be_used_its_children_are(tiny: UNet) -> None:
    module, network, _ = tiny
    transformer: Any = next(m for m in module.middle_block.modules() if type(m).__name__ == "BasicTransformerBlock")  # type: ignore[union-attr]
    attention, noted = transformer.attn2, []
    original = attention.forward

    def forward(x: torch.Tensor, context: Any = None, mask: Any = None) -> torch.Tensor:
        noted.append(x.mean().item())
        return 0.5 * original(x, context=context, mask=mask)  # type: ignore[no-any-return]

    attention.forward = forward
    expected = eager(module, *inputs())
    noted.clear()
    for _ in range(2):
        assert_equal(run_foreign(tiny, *inputs()), expected)
    assert len(noted) == 2, "the foreign forward runs once in each call"
    # what else has the same function inside is not even tried
    assert [text.partition(":")[0] for text in network.statistics.blocks_in_pytorch] == ["TimestepEmbedSequential"]
    assert network.statistics.block_calls > 2 * (count_of_blocks(module) - 1)
    calls = network.statistics.block_calls
    del attention.forward
    network.retry()
    assert_equal(run_foreign(tiny, *inputs()), eager(module, *inputs()))
    assert network.statistics.block_calls == calls + count_of_blocks(module), "the block is used again"


def test_a_block_with_a_hook_calls_it(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    x = torch.randn(2, 4)
    block: Any = module.blocks[0]  # type: ignore[index]
    handle = block.register_forward_hook(lambda _module, _args, output: output * 2)
    with torch.no_grad():
        assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))
        handle.remove()
        assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))
    assert network.statistics.block_calls == 1 + 2


class Doubled(torch.nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2  # type: ignore[no-any-return]


class Tripled(Doubled):
    """Another class, whose forward is exchanged below."""


def test_a_block_of_another_class_or_with_another_forward_of_it(
    strict: Strict, calls_patched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    x = torch.randn(2, 4)
    block: Any = module.blocks[0]  # type: ignore[index]

    def assert_right() -> None:
        with torch.no_grad():
            assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))

    assert_right()
    block.__class__ = Doubled
    assert_right()
    block.__class__ = Tripled
    assert_right()
    monkeypatch.setattr(Tripled, "forward", lambda self, x: torch.nn.Sequential.forward(self, x) * 3, raising=False)
    assert_right()
    assert network.statistics.block_calls == 4 * 2


def test_random_numbers_are_drawn_as_in_pytorch(tiny: UNet) -> None:
    module, network, _ = tiny
    attention: Any = next(m for m in module.modules() if type(m).__name__ == "CrossAttention")
    original = attention.forward

    def shuffled(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        order = torch.randperm(x.shape[1])
        return original(x[:, order], *args, **kwargs)[:, order.argsort()] + 0.1 * torch.rand(())  # type: ignore[no-any-return]

    attention.forward = shuffled
    torch.manual_seed(3)
    expected = [eager(module, *inputs()) for _ in range(2)]
    state = torch.get_rng_state()
    torch.manual_seed(3)
    actual = [run_foreign(tiny, *inputs()) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(actual, expected):
        assert_equal(one, other)
    assert network.statistics.block_calls


def test_modules_beside_the_network_are_the_hosts_companions(strict: Strict, calls_patched: None) -> None:
    companion = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
    met = []

    def find(module: torch.nn.Module) -> None:
        met.append(module)

    module, network, _ = blockwise(Stepped(), strict(), NetworkHooks(companion=find))
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert_equal(network.by_blocks("it is another's", lambda x: module(companion(x)), (x,), {}), module(companion(x)))
    assert met == [companion]


def test_blocks_are_evicted_together(strict: Strict, calls_patched: None) -> None:
    module, network, engine = blockwise(Stepped(), strict())
    engine.compiled.budget = 1
    for batch in (2, 2, 3):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))
    assert network.statistics.compiles == 4, "the blocks of one call do not evict each other"
    assert engine.stats()["unet"]["held"] == 2, "those of the other size are gone, all of them"


def test_a_block_that_was_replaced_is_let_go(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    x = torch.randn(2, 4)
    replaced = weakref.ref(module.blocks[1])  # type: ignore[index]
    with torch.no_grad():
        network.by_blocks("it is another's", module, (x,), {})
        module.blocks[1] = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())  # type: ignore[index,operator]
        for _ in range(2):
            network.begin_run()
            assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))
    assert len(network._blocks) == 2
    gc.collect()
    assert replaced() is None


def test_blocks_are_read_in_full_when_a_run_begins_and_share_their_patience(strict: Strict, calls_patched: None) -> None:
    large = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.SiLU()) for _ in range(2)])
    module, network, _ = blockwise(Stepped(), strict())
    module.blocks = large
    x = torch.randn(2, 600)
    with torch.no_grad():
        network.by_blocks("it is another's", module, (x,), {})
        known = [block._lookup.guards._checksums for block in network._blocks.values()]
        for each in known:
            each.seconds = 1e6  # no reading is due
        assert network.readings.seconds() >= 2e6
        for layer, _ in large:
            layer.weight.numpy()[1, 3] += 40  # none of the elements that are compared at every call
        network.begin_run()
        assert [each.changes for each in known] == [1, 1]
        assert_equal(network.by_blocks("it is another's", module, (x,), {}), module(x))


def test_operators_of_a_block_that_stay_in_pytorch_are_no_blocks(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    module.blocks[0].append(torch.nn.Dropout(0.5).train())  # type: ignore[index,operator]
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.manual_seed(1)
        answer = network.by_blocks("it is another's", module, (x,), {})
        torch.manual_seed(1)
        assert_equal(answer, module(x))
    assert network.statistics.block_calls == 2
    assert not network.statistics.blocks_in_pytorch


def test_a_call_outside_of_a_network_by_its_blocks_is_pytorchs() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)
    assert torch.equal(call_block(torch.nn.Module.__call__, layer, (x,), {}), layer(x))


def test_a_property_that_the_device_refuses_is_not_tried_with_every_block(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(smallest(), strict(config={"NPU_TURBO": True}))
    x = inputs()
    for _ in range(2):
        assert_equal(network(*x), module(*x))
    (reason,) = network.statistics.fallbacks
    assert "NPU_TURBO" in reason
    assert (network.statistics.captures, network.statistics.block_calls) == (1, 0)
