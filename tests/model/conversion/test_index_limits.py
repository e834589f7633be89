"""A position out of range raises as in PyTorch, wherever it comes from; those in range are read in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ov_backend import Settings
from tests.helpers.small import engine_for
from tests.helpers.torch_compile import Compile, agree, calls, fallbacks

TABLE, X = torch.nn.Embedding(10, 4), torch.randn(3, 4)


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


#: A function, its inputs within range, and others of the same shapes beyond it.
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor], list[torch.Tensor]]] = {
    "embedding": (lambda i: TABLE(i) * 2, [ids(0, 9)], [ids(1, 10)]),
    "embedding, negative": (lambda i: TABLE(i) * 2, [ids(0, 9)], [ids(1, -1)]),
    "embedding of a scalar": (lambda i: TABLE(i) * 2, [torch.tensor(9)], [torch.tensor(10)]),
    "through views": (lambda i: TABLE(i.view(2, 1)[:, 0].flip(0)) * 2, [ids(0, 9)], [ids(10, 0)]),
    "some of an input": (lambda i: TABLE(i[:2]) * 2, [ids(0, 9, 99)], [ids(0, 10, 99)]),
    "some of a join": (lambda i: TABLE(torch.stack((i, i * 7), 1)[:, 0]) * 2, [ids(0, 9)], [ids(1, 10)]),
    "computed": (lambda i: TABLE(i + 1) * 2, [ids(0, 8)], [ids(1, 9)]),
    "computed in sums": (lambda i: TABLE(i.cumsum(0)) * 2, [ids(4, 5)], [ids(5, 5)]),
    "computed of floats": (lambda x: TABLE((x * 4).long()) * 2, [torch.tensor([0.1, 2.4])], [torch.tensor([0.1, 2.6])]),
    "the position of another": (lambda x: TABLE(x.round().long().argmax(1)) * 2, [torch.eye(2, 12)], [torch.eye(2, 12).flip(1)]),
    "gather": (lambda x, i: x.gather(1, i) * 2, [X, ids(0, 3)[None]], [X, ids(0, 4)[None]]),
    "index": (lambda x, i: x[i] * 2, [X, ids(-3, 2)], [X, ids(0, 3)]),
    "index, negative": (lambda x, i: x[i] * 2, [X, ids(-3, 2)], [X, ids(-4, 0)]),
    "two indices": (lambda x, i, j: x[i, j] * 2, [X, ids(0, 2), ids(3, 1)], [X, ids(0, 2), ids(4, 1)]),
    "index_select": (lambda x, i: x.index_select(1, i) * 2, [X, ids(0, 3)], [X, ids(0, -1)]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3.0) * 2, [X, ids(0, -4)], [X, ids(0, -5)]),
    "index_put": (lambda x, i: x.index_put((i,), torch.tensor(1.0)) * 2, [X, ids(2)], [X, ids(3)]),
    "index_add": (lambda x, i: x.index_add(0, i, x[:1]) * 2, [X, ids(2)], [X, ids(3)]),
    "scatter": (lambda x, i: x.scatter(1, i, 2.0) * 2, [X, ids(0, 3)[None]], [X, ids(0, 4)[None]]),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, x) * 2, [X, ids(0, 3)[None]], [X, ids(0, -1)[None]]),
    "one_hot": (lambda i: F.one_hot(i, 5) * 2, [ids(0, 4)], [ids(0, 5)]),
    "one_hot, negative": (lambda i: F.one_hot(i, 5) * 2, [ids(0, 4)], [ids(0, -1)]),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i) * 2, [X, ids(0, -100, 3)], [X, ids(0, 1, 4)]),
    "cross_entropy, negative": (lambda x, i: F.cross_entropy(x, i) * 2, [X, ids(0, -100, 3)], [X, ids(0, -100, -5)]),
}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def error_of(function: Callable[..., Any], inputs: list[torch.Tensor]) -> str:
    with pytest.raises((IndexError, RuntimeError)) as caught:
        function(*inputs)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("case", CASES)
def test_a_position_out_of_range_raises_as_in_pytorch(compiled: Compile, case: str) -> None:
    function, within, beyond = CASES[case]
    compiled_function = compiled(function, fallback="inductor")
    agree(compiled_function(*within), function(*within))
    assert (calls(), fallbacks()) == (1, {})
    assert error_of(compiled_function, beyond) == error_of(function, beyond)
    agree(compiled_function(*within), function(*within))
    assert calls() == 2, "the next call is OpenVINO's again"


def test_a_part_reads_what_is_looked_up_in_pytorch(compiled: Compile) -> None:
    """Its input is named as the operator that has computed it."""

    def forward(i: torch.Tensor) -> torch.Tensor:
        return TABLE(i) * 2 + TABLE(i).sin()

    agree(compiled(forward, disabled_ops=["aten.embedding"])(ids(0, 9)), forward(ids(0, 9)))
    assert (calls(), fallbacks()) == (1, {})


class Positions(torch.nn.Module):
    """Positions by their number, for at most eight tokens, and a table that a buffer indexes."""

    def __init__(self, indices: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)
        self.register_buffer("indices", indices)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + self.table(torch.arange(len(x))) + self.table(self.indices)


@pytest.mark.parametrize("fallback", ["pytorch", "raise"])
def test_positions_of_the_code_and_of_buffers(strict: Callable[..., Settings], fallback: str) -> None:
    module, shorter, longer = Positions(ids(7)), torch.randn(8, 4), torch.randn(9, 4)
    network = engine_for(strict(fallback=fallback), module)
    agree(network(shorter), module(shorter))
    assert error_of(network, [longer]) == error_of(module, [longer])
    module.indices.fill_(8)
    assert error_of(network, [shorter]) == error_of(module, [shorter])
    module.indices.fill_(0)
    agree(network(shorter), module(shorter))
    assert network.statistics.calls == 2


def test_a_stored_graph_knows_its_limits(strict: Callable[..., Settings]) -> None:
    module = Positions(ids(7))
    for hits in (0, 1):
        network = engine_for(strict(), Lookups(module.table))
        agree(network(ids(0, 7)), module.table(ids(0, 7)) * 2)
        assert error_of(network, [ids(0, 8)]) == error_of(module.table, [ids(0, 8)])
        assert network.statistics.graph_hits == hits


class Lookups(torch.nn.Module):
    def __init__(self, table: torch.nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.table(i) * 2
