"""A network that cannot be captured as a whole is answered by its blocks; nothing stays patched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ov_backend
from ov_backend import Settings
from ov_backend.core.errors import CaptureError
from tests.helpers.torch_compile import agree

CALL = torch.nn.Module.__call__


def block() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())


class Counting(torch.nn.Module):
    """Counts its calls in an attribute, as VAEs of videos count their convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.calls = block(), block(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(self.first(x)) * self.calls


class AskingForValues(Counting):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) * float(x.sum().item())


class WithSparseWeight(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sparse", torch.eye(2).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.sparse, self.second(self.first(x)))


class Nested(torch.nn.Module):
    """One network that runs by its blocks calls another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last, self.calls = Counting(), block(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(self.inner(x))


class Layers(torch.nn.Module):
    """Layers without modules of their own, and between them something that cannot be traced."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.norm, self.between = torch.nn.LayerNorm(4), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.between(self.norm(self.first(x))))
        return result


class InAList(Layers):
    """As layers, and one of its modules has children, but no forward."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__(between)
        self.more = torch.nn.ModuleList([torch.nn.ReLU()])


def packed(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([2]), batch_first=True).data


BETWEEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a choice of rows": lambda h: h[h.sum(-1) > -1e9],
    "a value": lambda h: h * float(h.detach().numpy().max()),
    "counts": lambda h: h * torch.bincount(h[:, 0].long() * 0).sum(),
    "repeated rows": lambda h: torch.repeat_interleave(h, torch.tensor([1, 2]), 0),
    "packed rows": packed,
}
x = torch.randn(2, 4)
Strict = Callable[..., Settings]


@pytest.fixture
def lenient(strict: Strict) -> Strict:
    return lambda **changes: strict(fallback="pytorch", **changes)


@pytest.mark.parametrize("kind", [Counting, AskingForValues, WithSparseWeight])
def test_its_blocks_run_in_openvino(kind: Callable[[], torch.nn.Module], lenient: Strict) -> None:
    net, twin = kind(), kind()
    twin.load_state_dict(net.state_dict())
    with ov_backend.accelerate({"net": net}, lenient()) as accelerated:
        for _ in range(2):
            agree(net(x), twin(x))
        (stats,) = accelerated.stats().values()
    assert (stats["calls"], stats["block_calls"], stats["fallbacks"]) == (2, 4, {})
    assert list(stats["by_blocks"].values()) == [2]
    assert torch.nn.Module.__call__ is CALL
    assert getattr(net, "calls", 0) == getattr(twin, "calls", 0)


@pytest.mark.parametrize("name", BETWEEN)
def test_layers_are_the_blocks_of_a_network_without_any_other(name: str, lenient: Strict) -> None:
    net = Layers(BETWEEN[name]).eval()
    with torch.no_grad():
        expected = net(x)
        with ov_backend.accelerate({"net": net}, lenient()) as accelerated:
            for _ in range(2):
                agree(net(x), expected)
            (stats,) = accelerated.stats().values()
    assert (stats["calls"], stats["block_calls"], stats["fallbacks"]) == (2, 4, {})


def test_layers_become_blocks_once_no_other_module_was_one(lenient: Strict) -> None:
    net = InAList(BETWEEN["a choice of rows"]).eval()
    with torch.no_grad(), ov_backend.accelerate({"net": net}, lenient()) as accelerated:
        for _ in range(3):
            net(x)
        (stats,) = accelerated.stats().values()
    assert (stats["calls"], stats["block_calls"]) == (2, 4)


def test_a_layer_whose_inputs_have_ever_new_sizes_stays_in_pytorch(lenient: Strict) -> None:
    net = Layers(lambda h: h[h[:, 0] >= h[0, 0]]).eval()
    inputs = [torch.cat([torch.randn(1, 4), torch.randn(12, 4)]) for _ in range(40)]
    with torch.no_grad():
        expected = [net(each) for each in inputs]
        with ov_backend.accelerate({"net": net}, lenient()) as accelerated:
            for each, wanted in zip(inputs, expected):
                agree(net(each), wanted)
            (stats,) = accelerated.stats().values()
    assert stats["calls"] == 40
    assert stats["compiles"] <= 9
    assert stats["blocks_in_pytorch"] == {"Linear: its inputs have ever new sizes": 1}


def test_the_calls_of_modules_are_patched_only_while_its_forward_runs(lenient: Strict) -> None:
    seen = []

    class Looking(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.nn.Module.__call__ is CALL)
            return super().forward(x)

    net = Looking()
    with ov_backend.accelerate({"net": net}, lenient()):
        net(x)
        assert torch.nn.Module.__call__ is CALL
    assert seen[-1] is False


def test_a_forward_that_raises_leaves_nothing_patched(lenient: Strict) -> None:
    class Failing(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise KeyError("its own")

    net = Failing()
    with ov_backend.accelerate({"net": net}, lenient()), pytest.raises(KeyError, match="its own"):
        net(x)
    assert torch.nn.Module.__call__ is CALL


def test_one_that_is_called_within_another(lenient: Strict) -> None:
    net, twin = Nested(), Nested()
    twin.load_state_dict(net.state_dict())
    with ov_backend.accelerate({"net": net, "inner": net.inner}, lenient()) as accelerated:
        agree(net(x), twin(x))
        stats = accelerated.stats()
    assert stats["net"]["block_calls"] >= 1
    assert torch.nn.Module.__call__ is CALL


def test_two_threads(lenient: Strict) -> None:
    nets = [Counting() for _ in range(2)]
    expected = [[net.second(net.first(x)) * i for i in range(1, 6)] for net in nets]
    results: list[list[torch.Tensor]] = [[], []]

    def run(i: int) -> None:
        with torch.no_grad():
            results[i].extend(nets[i](x) for _ in range(5))

    with ov_backend.accelerate({str(i): net for i, net in enumerate(nets)}, lenient()) as accelerated:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = accelerated.stats()
    agree(results, expected)
    assert all(each["block_calls"] >= 1 for each in stats.values())
    assert torch.nn.Module.__call__ is CALL


@pytest.mark.parametrize("of_weights", [False, True])
def test_blocks_are_tried_again_when_gradients_are_no_longer_asked_for(of_weights: bool, lenient: Strict) -> None:
    net = Counting().requires_grad_(of_weights)
    given = x.clone().requires_grad_(not of_weights)
    with ov_backend.accelerate({"net": net}, lenient()) as accelerated:
        with torch.enable_grad():
            net(given).sum().backward()
        assert accelerated.stats()["net"]["block_calls"] == 0
        assert (net.first[0].weight if of_weights else given).grad is not None
        net(x)
        assert accelerated.stats()["net"]["block_calls"] == 2


def test_with_fallback_raise_it_is_refused(strict: Strict) -> None:
    with ov_backend.accelerate({"net": Counting()}, strict()) as accelerated, pytest.raises(CaptureError, match="sets"):
        accelerated.engine.networks["net"](x)


@pytest.mark.skipif(torch.__version__ < "2.3", reason="Dynamo of earlier versions does not follow Module.__call__")
def test_dynamo_does_not_see_the_patch(lenient: Strict) -> None:
    inner: list[Any] = []

    class Compiling(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            inner.append(torch.compile(self.first, backend="eager", fullgraph=True)(x))
            return self.second(inner[-1])

    net = Compiling()
    with ov_backend.accelerate({"net": net}, lenient()):
        agree(net(x), net.second(net.first(x)))


def test_an_old_weight_norm_is_computed_as_a_part_of_the_network(strict: Strict) -> None:
    net = torch.nn.Sequential(torch.nn.utils.weight_norm(torch.nn.Linear(4, 4)), torch.nn.ReLU())
    with ov_backend.accelerate({"net": net}, strict()):
        for _ in range(2):
            agree(net(x), torch.nn.functional.linear(x, torch._weight_norm(net[0].weight_v, net[0].weight_g), net[0].bias).relu())
            net[0].weight_g.data *= 2


def test_an_attribute_that_a_trace_deletes_and_sets_is_put_back(lenient: Strict) -> None:
    class Clearing(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            del self.calls
            self.calls = 0
            return self.first(x)

    net = Clearing()
    with ov_backend.accelerate({"net": net}, lenient()):
        net(x)
    assert net.calls == 0
