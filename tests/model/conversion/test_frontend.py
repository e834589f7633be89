"""The frontend, its view of a graph, and the summary of its errors."""

from __future__ import annotations

import pytest
import torch

from ov_backend.core.fx_utils import graph_module
from ov_backend.model.conversion.frontend import _IndexedNodes, fx_decoder, pytorch_frontend, summary
from tests.helpers.graphs import traced


def test_the_frontend_is_loaded_once() -> None:
    assert pytorch_frontend() is pytorch_frontend()


def test_the_decoder_names_the_inputs_as_the_graph_does() -> None:
    gm = traced(lambda x, y: x + y, torch.randn(2), torch.randn(2))
    for node, name in zip(list(gm.graph.nodes)[:2], ("input_0", "input_1")):
        node.target = name
    lazy = graph_module(gm, gm.graph)  # its forward has no code yet, and so no such arguments
    decoder = fx_decoder(lazy)
    assert [decoder.get_input_signature_name(i) for i in range(2)] == ["input_0", "input_1"]


def test_nodes_are_found_as_in_a_list() -> None:
    nodes = list(traced(lambda x: (x + 1).relu(), torch.randn(2)).graph.nodes)
    indexed = _IndexedNodes(nodes)
    assert [indexed.index(node) for node in nodes] == list(range(len(nodes)))
    assert indexed == nodes
    other = next(iter(traced(lambda x: x + 1, torch.randn(2)).graph.nodes))
    with pytest.raises(ValueError, match="not among the nodes"):
        indexed.index(other)


@pytest.mark.parametrize(
    "message,expected",
    [
        ("Check failed at line 3\nSummary:\n-- No conversion rule\n   for aten::foo", "-- No conversion rule for aten::foo"),
        ("no  such\n headline", "no such headline"),
        ("Summary: " + "x" * 400, "x" * 300),
    ],
)
def test_the_summary_of_an_error_is_one_short_line(message: str, expected: str) -> None:
    assert summary(RuntimeError(message)) == expected
