"""What changes at every call is not compiled at every call, and is used as a whole again once it stays what it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ov_backend.engine.blocks.patched_calls import patch_calls
from tests.engine.test_blocks import Strict, assert_equal, blockwise
from tests.helpers.by_blocks import Stepped


class Counting(torch.nn.Module):
    """A network that asks others' numbers whose values leave its graph as it is, and counts its calls while it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
        self.calls, self.counts, self.step = 0, False, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.counts:
            self.calls += 1
        return self.inner(x) if self.step < 1000 else x


@pytest.fixture
def calls_patched() -> Iterator[None]:
    patch = patch_calls()
    yield
    assert patch.undo()


def test_a_network_whose_code_changes_at_every_call_is_divided(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    x = torch.randn(2, 4)
    with torch.no_grad():
        for module.step in range(6):
            assert_equal(network(x), module(x))
    assert network.statistics.compiles == 3 + 2
    assert list(network.statistics.by_blocks) == ["its code or its attributes change at every call"]


def test_a_block_whose_weights_change_at_every_call_is_not_compiled_at_every_call(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())), strict())
    x, bias = torch.randn(2, 4), module[0][0].bias

    def called() -> None:
        assert_equal(network.by_blocks("for a test", module.forward, (x,), {}), module(x))

    with torch.no_grad():
        for _ in range(40):
            bias += 1
            called()
        assert network.statistics.compiles == 3
        before = network.statistics.block_calls
        for _ in range(40):
            for parameter in module.parameters():
                parameter.data = parameter.data.clone()
            called()
    assert network.statistics.block_calls > before, "it stays what it is, wherever it lies"


def test_a_network_whose_weights_change_at_every_call_is_used_as_a_whole(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU()), strict())
    x, bias = torch.randn(2, 4), module[0].bias
    with torch.no_grad():
        for _ in range(3):
            for value in range(4):
                bias.fill_(value)
                assert_equal(network(x), module(x))
    assert (network.statistics.calls, network.statistics.compiles, network.left) == (12, 4, "")


def test_a_network_that_has_changed_twice_and_stays_so_is_used_as_a_whole_again(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    x = torch.randn(2, 4)
    with torch.no_grad():
        for module.step in (0, 1, 2, 2, 2, 2):
            assert_equal(network(x), module(x))
        assert (network.statistics.block_calls, network.left) == (0, ""), "it does not change at every call"
        for module.step in (3, 4, 5, 6, 7, 7, 7, 7, 7, 7):
            assert_equal(network(x), module(x))
    assert (network.statistics.block_calls, network.left) == (2 * 3, ""), "it is asked at the fourth call, and not at every one"
    assert network.statistics.compiles == 3 + 2 + 2 + 1


def test_a_network_that_is_traced_at_every_call_is_divided(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Counting(), strict())
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            for module.step in range(20):
                assert_equal(network(x), module(x))
        assert (network.statistics.captures, network.statistics.compiles, network.left) == (20, 1, ""), "the same numbers again"
        for module.step in range(20, 200):
            assert_equal(network(x), module(x))
    assert network.statistics.captures < 100
    assert list(network.statistics.by_blocks) == ["its code or its attributes change at every call"]


def test_a_network_is_used_as_a_whole_again_after_many_changes_without_an_answer(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Counting(), strict())
    x = torch.randn(2, 4)
    with torch.no_grad():
        for module.counts in (False, *[True] * 12, False, False):
            assert_equal(network(x), module.inner(x))
        network.retry()
        before = network.statistics.by_blocks.total()
        for _ in range(4):
            assert_equal(network(x), module.inner(x))
    assert network.statistics.by_blocks.total() == before > 0


def test_a_network_left_for_its_code_comes_back_though_its_weights_change(strict: Strict, calls_patched: None) -> None:
    module, network, _ = blockwise(Stepped(), strict())
    x, bias = torch.randn(2, 4), module.blocks[0][0].bias
    with torch.no_grad():
        for module.step in range(6):
            assert_equal(network(x), module(x))
        assert network.left
        for _ in range(20):
            bias += 1
            assert_equal(network(x), module(x))
    assert not network.left
