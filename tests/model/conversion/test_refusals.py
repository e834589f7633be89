"""The converter names what it refuses: of a whole graph, and operator by operator."""

from __future__ import annotations

import pytest
import torch

from ov_backend.model.conversion.refusals import refused_in_graph, refused_one_by_one
from tests.helpers.graphs import node_of, traced


def refused(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv_ex(x.relu())[0] + 1


def test_a_whole_graph_names_its_refused_operator() -> None:
    gm = traced(refused, torch.eye(3))
    assert refused_in_graph(gm) == {node_of(gm, "aten.linalg_inv_ex").name: "aten.linalg_inv_ex.default"}


def test_each_operator_alone() -> None:
    gm = traced(refused, torch.eye(3))
    assert refused_one_by_one(gm) == {node_of(gm, "aten.linalg_inv_ex").name: "aten.linalg_inv_ex.default"}


def test_an_operator_of_another_shape_is_refused_alone_only() -> None:
    gm = traced(lambda x: x.kthvalue(2)[0].relu(), torch.randn(3, 4))
    assert refused_in_graph(gm) == {}
    assert refused_one_by_one(gm) == {node_of(gm, "aten.kthvalue").name: "aten.kthvalue.default"}


@pytest.mark.parametrize("index", [0, 1])
def test_of_several_results_those_that_are_read_count(index: int) -> None:
    gm = traced(lambda x: torch.topk(x, 2)[index] + 1, torch.randn(3, 4))
    assert refused_one_by_one(gm) == {}


def test_a_graph_that_converts_has_no_refusals() -> None:
    gm = traced(lambda x, i: torch.nn.functional.layer_norm(x[i] @ x.t(), [4]).relu(), torch.randn(4, 4), torch.tensor([1, 2]))
    assert refused_in_graph(gm) == {}
    assert refused_one_by_one(gm) == {}
