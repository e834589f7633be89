"""Recurrent networks in ``accelerate``: each layer is one operator, and values are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ov_backend import Settings, accelerate
from tests.helpers.torch_compile import agree

Strict = Callable[..., Settings]
X = torch.linspace(-1, 1, 24).reshape(3, 2, 4)


class Cells(torch.nn.Module):
    def __init__(self, cell: torch.nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, outputs = None, []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs)


class Packed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0])[0]


NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[Any, ...]]] = {
    "LSTM": (lambda: torch.nn.LSTM(4, 3, num_layers=2, bidirectional=True), (X,)),
    "LSTM with a state": (lambda: torch.nn.LSTM(4, 3), (X, (torch.ones(1, 2, 3), -torch.ones(1, 2, 3)))),
    "LSTM without biases": (lambda: torch.nn.LSTM(4, 3, bias=False, batch_first=True), (X,)),
    "LSTM with projections": (lambda: torch.nn.LSTM(4, 3, proj_size=2), (X,)),
    "LSTM with dropout, in eval": (lambda: torch.nn.LSTM(4, 3, num_layers=2, dropout=0.5), (X,)),
    "LSTM of one sequence": (lambda: torch.nn.LSTM(4, 3), (X[:, 0],)),
    "GRU": (lambda: torch.nn.GRU(4, 3, num_layers=2, bidirectional=True), (X,)),
    "GRU with a state": (lambda: torch.nn.GRU(4, 3, bias=False), (X, torch.ones(1, 2, 3))),
    "RNN": (lambda: torch.nn.RNN(4, 3, bidirectional=True), (X,)),
    "RNN with relu": (lambda: torch.nn.RNN(4, 3, nonlinearity="relu", batch_first=True), (X,)),
    "cells of an LSTM": (lambda: Cells(torch.nn.LSTMCell(4, 3)), (X,)),
    "cells of a GRU": (lambda: Cells(torch.nn.GRUCell(4, 3)), (X,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_networks_run(name: str, strict: Strict) -> None:
    torch.manual_seed(0)
    make, args = NETWORKS[name]
    net = make().eval()
    with torch.no_grad():
        expected = net(*args)
        with accelerate({"net": net}, strict(precision="f32")) as accelerated:
            agree(net(*args), expected)
            stats = accelerated.stats()["net"]
    assert (stats["calls"], stats["in_pytorch"]) == (1, {})


def test_weights_are_watched_where_the_network_refers_to_them_weakly(strict: Strict) -> None:
    net = torch.nn.LSTM(4, 3).eval()
    with torch.no_grad(), accelerate({"net": net}, strict(fallback="pytorch", precision="f32")) as accelerated:
        net(X)
        net.weight_hh_l0.mul_(2)
        agree(net(X), torch.nn.LSTM.forward(net, X))
        net.weight_ih_l0 = torch.nn.Parameter(torch.ones(12, 4))  # the next call in PyTorch renews the references
        copied = torch.nn.LSTM(4, 3)
        copied.load_state_dict(net.state_dict())
        expected = copied(X)
        for _ in range(2):
            agree(net(X), expected)
        stats = accelerated.stats()["net"]
    assert (stats["calls"], sum(stats["fallbacks"].values())) == (3, 1)


def test_packed_sequences_stay_in_pytorch(strict: Strict) -> None:
    net, lengths = Packed().eval(), torch.tensor([3, 2])
    with torch.no_grad(), accelerate({"net": net}, strict(fallback="pytorch")) as accelerated:
        agree(net(X, lengths), Packed.forward(net, X, lengths))
        ((reason, count),) = accelerated.stats()["net"]["fallbacks"].items()
    assert (count, "cannot be traced" in reason) == (1, True)
