"""Training: gradients through the default route and through AOTAutograd, and networks that learn the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch.nn import functional as F

import ov_backend
from tests.helpers.densenet import DenseNet
from tests.helpers.extent import only_in_full, some
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks


@pytest.fixture(autouse=True)
def _gradients() -> Iterator[None]:
    with torch.enable_grad():
        yield


class ConvNet(torch.nn.Module):
    """Convolutions of every kind, both norms, pooling, an embedding and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 8)
        self.down = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.group = torch.nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.batch = torch.nn.BatchNorm2d(8)
        self.q, self.kv, self.layer = torch.nn.Linear(8, 8), torch.nn.Linear(8, 16), torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.down(x)))
        x = F.max_pool2d(F.relu(self.batch(self.group(x))), 2)
        x = x.flatten(2).transpose(1, 2)
        k, v = self.kv(self.embed(tokens)).chunk(2, -1)
        x = x + F.scaled_dot_product_attention(self.q(x), k, v)
        return self.head(F.gelu(self.layer(x)).mean(1))


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    tokens, target = torch.randint(0, 10, (4, 6), generator=g), torch.randint(0, 5, (4,), generator=g)
    return torch.randn(4, 3, 12, 12, generator=g), tokens, target


def assert_same_gradients(actual: torch.nn.Module, expected: torch.nn.Module, least: float = 1e-7) -> None:
    for (name, want), got in zip(expected.named_parameters(), actual.parameters()):
        assert got.grad is not None, name
        scale = float(want.grad.abs().max())
        assert float((got.grad - want.grad).abs().max()) <= 1e-3 * scale + least, name


@pytest.mark.parametrize("aot", some([True], [False, True]), ids=["recomputed", "aot_autograd"])
def test_gradients_equal_eager(compiled: Compile, aot: bool) -> None:
    torch.manual_seed(0)
    expected = ConvNet()
    actual = copy.deepcopy(expected)
    x, tokens, target = data()
    g = compiled(actual, aot_autograd=aot)
    for net, call in ((expected, expected), (actual, g)):
        net.zero_grad()
        F.cross_entropy(call(x, tokens), target).backward()
    assert_same_gradients(actual, expected)
    agree(dict(actual.named_buffers()), dict(expected.named_buffers()))
    assert not fallbacks()
    assert calls() == 2  # batch norm writes to its buffers: both ways go by AOTAutograd, forward and backward


def test_the_default_computes_gradients_in_pytorch(compiled: Compile) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4, requires_grad=True)
    g = compiled(net)
    got = torch.autograd.grad(g(x).square().sum(), [x, *net.parameters()])
    agree(list(got), list(torch.autograd.grad(net(x).square().sum(), [x, *net.parameters()])))
    assert calls() == 1


def test_results_require_gradients_as_in_pytorch(compiled: Compile) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * y, y * 2, x.argmax(), x.detach() + 1

    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    assert [t.requires_grad for t in compiled(f)(x, y)] == [t.requires_grad for t in f(x, y)] == [True, False, False, False]


def test_dropout_in_training_draws_the_same(compiled: Compile) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Dropout(0.5), torch.nn.Linear(50, 3)).train()
    x = torch.randn(2, 6)
    results = []
    for call in (net, compiled(net)):
        torch.manual_seed(5)
        results.append(call(x))
        net.zero_grad()
        results[-1].sum().backward()
        results.append(net[0].weight.grad.clone())
    agree(results[2:], results[:2])


def losses(call: Compile, net: torch.nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    found = []
    for step in range(steps):
        x, tokens, target = data(step % 3)
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x, tokens), target)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_a_network_trained_by_aot_autograd_reaches_the_same_loss(compiled: Compile) -> None:
    torch.manual_seed(0)
    expected = ConvNet()
    actual = copy.deepcopy(expected)
    want = losses(expected, expected, 20)
    got = losses(compiled(actual, aot_autograd=True), actual, 20)
    assert want[-1] < 0.7 * want[0], "it learns at all"
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=2e-2, atol=2e-2)
    compiles = [network["compiles"] for network in ov_backend.stats().values()]
    assert compiles == [1, 1], "weights are inputs: no step compiles anew"


@only_in_full
def test_a_densenet_fine_tuned_by_aot_autograd(compiled: Compile) -> None:
    torch.manual_seed(0)
    expected = DenseNet(growth=8, blocks=(2, 1), channels=8, classes=5).train()
    actual = copy.deepcopy(expected)
    g = compiled(actual, aot_autograd=True)
    x, target = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (expected, actual)]
    found = []
    for _ in range(3):
        loss = [F.cross_entropy(call(x), target) for call in (expected, g)]
        for one, optimizer in zip(loss, optimizers):
            optimizer.zero_grad()
            one.backward()
        assert_same_gradients(actual, expected, least=1e-6)
        for optimizer in optimizers:
            optimizer.step()
        found.append([float(one.detach()) for one in loss])
    assert found[-1][0] < found[0][0], "it learns at all"
    torch.testing.assert_close(found[-1][1], found[-1][0], rtol=1e-3, atol=1e-3)
    agree(dict(actual.named_buffers()), dict(expected.named_buffers()))
    assert [network["compiles"] for network in ov_backend.stats().values()] == [1, 1]
    assert not fallbacks()


def test_training_step_compiled_as_a_whole(compiled: Compile) -> None:
    """The tutorial compiles ``train(model, data)``; Dynamo breaks it at ``backward``."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    expected = copy.deepcopy(net)
    x, target = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])

    def train(model: torch.nn.Module) -> torch.Tensor:
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        return loss.detach()

    agree(compiled(train, aot_autograd=True, fallback="pytorch")(net), train(expected))
    agree([p.grad for p in net.parameters()], [p.grad for p in expected.parameters()])


class WithoutBuffers(torch.nn.Module):
    """Normalises within a picture only, so that it writes to no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.head = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.silu(self.norm(self.into(x))).mean((2, 3)))


class WithBuffers(WithoutBuffers):
    """Normalises over the batch, and writes to its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(8)
        self.into.bias = None  # its gradient is zero but for rounding


#: Networks, and why each has a static graph for every size.
WHY = {
    "group norm": (WithoutBuffers, "AOTAutograd traces every size by itself"),
    "batch norm": (WithBuffers, "it writes to its inputs"),
}


@pytest.mark.parametrize(
    "name, option", some([("group norm", False), ("batch norm", True)], product(WHY, (False, True)), several=True)
)
def test_training_with_dynamic_shapes(
    compiled: Compile, name: str, option: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Dynamo keeps one graph for all batch sizes; OpenVINO has a static pair for each, and says so once where asked for more."""
    kind, why = WHY[name]
    expected = kind()
    actual = copy.deepcopy(expected)
    g = compiled(actual, dynamic=True, aot_autograd=True, dynamic_shapes=option)
    torch._dynamo.utils.counters.clear()
    sizes = (4, 6, 4, 6, 4)
    for size in sizes:
        x, target = torch.randn(size, 3, 8, 8), torch.randint(0, 5, (size,))
        for net, call in ((expected, expected), (actual, g)):
            net.zero_grad()
            F.cross_entropy(call(x), target).backward()
        assert_same_gradients(actual, expected)
    agree(dict(actual.named_buffers()), dict(expected.named_buffers()))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    stats = ov_backend.stats().values()
    assert sum(network["compiles"] for network in stats) == 2 * len(set(sizes)), "a forward and a backward for each size"
    assert calls() == 2 * len(sizes)
    assert not fallbacks()
    sentence = f"a static graph for each size, because {why}"
    found = {what: count for network in stats for what, count in network["corrections"].items()}
    assert found == ({sentence: len(sizes)} if option else {})
    assert sum(sentence in record.getMessage() for record in caplog.records) == option


@pytest.mark.parametrize("aot", [False, True], ids=["default", "aot"])
def test_gradients_of_attention_equal_eager(compiled: Compile, aot: bool) -> None:
    """The backward pass reads its log-sum-exp, which PyTorch's decomposition of it does not compute."""
    if aot and torch.__version__ < "2.5":
        pytest.skip("its backward is given an int64 input beyond 2 ** 20, which is left to PyTorch; fallback=raise raises")
    q, k, v = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q.tanh(), k.tanh(), v.tanh(), is_causal=True)

    compiled_forward = compiled(forward, aot_autograd=aot)
    gradients = torch.autograd.grad(compiled_forward(q, k, v).sum(), (q, k, v))
    for gradient, expected in zip(gradients, torch.autograd.grad(forward(q, k, v).sum(), (q, k, v))):
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)
    assert aot or calls() == 1, "the results are OpenVINO's"


@pytest.mark.parametrize("aot", [False, True], ids=["recomputed", "aot_autograd"])
def test_a_compiled_function_that_calls_backward_compiles_nothing_of_the_backend(compiled: Compile, aot: bool) -> None:
    def step(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    torch.manual_seed(0)
    expected, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)), torch.randn(3, 4)
    actual = copy.deepcopy(expected)
    g = compiled(step, aot_autograd=aot)
    for _ in range(2):
        agree(g(actual, x), step(expected, x))
    agree([p.grad for p in actual.parameters()], [p.grad for p in expected.parameters()])
    assert not [name for name in ov_backend.stats() if " at " in name and "ov_backend" in name]
    assert calls() <= (4 if aot else 2)


@pytest.mark.skipif(torch.__version__ < "2.5", reason="Dynamo cannot follow such hooks")
@pytest.mark.parametrize("aot", [False, True], ids=["recomputed", "aot_autograd"])
def test_a_hook_on_a_tensor_within_the_function_runs(compiled: Compile, aot: bool) -> None:
    """It is refused where gradients are off, as they are while OpenVINO computes the results."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 10)
        return y.sin()

    x = torch.randn(3, requires_grad=True)
    gradients = torch.autograd.grad(compiled(forward, aot_autograd=aot, fallback="pytorch")(x).sum(), x)
    agree(gradients, torch.autograd.grad(forward(x).sum(), x))
