"""What is read from a node of a graph: its operator, and the operator's arguments."""

from __future__ import annotations

import torch

from ov_backend.trace.partitioning.packets import argument, aten_packets, packet_of
from tests.helpers.graphs import node_of, traced

aten = torch.ops.aten


def test_arguments_by_position_by_name_and_by_default() -> None:
    gm = traced(lambda x: aten.avg_pool2d(x, [2, 2], [2, 2], [0, 0], True), torch.randn(1, 2, 6, 6))
    node = node_of(gm, "aten.avg_pool2d")
    assert argument(node, "ceil_mode") is True
    assert argument(node, "count_include_pad") is True, "the schema's default"
    assert argument(node, "no such argument", 3) == 3
    node.args, node.kwargs = node.args[:2], {"ceil_mode": True}
    assert argument(node, "ceil_mode") is True


def test_packets_of_operators() -> None:
    gm = traced(lambda x: x + 1, torch.ones(2))
    assert packet_of(node_of(gm, "aten.add")) is aten.add
    assert aten_packets("add", "no_such_operator", "mul") == [aten.add, aten.mul]
