"""What reads OpenVINO's results by strides reads eager's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.helpers.small import Computing, engine_for

Strict = Callable[..., Settings]
X = torch.arange(12.0).reshape(1, 3, 4).mT  # what is computed of it has its strides in eager


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.as_strided([3, 3], [2, 1], 1),
        lambda x: x.transpose(0, 1).as_strided([3, 3], [2, 1], 1),
        lambda x: x.expand(3, 4, 3).diagonal(),
        lambda x: x.unfold(1, 2, 1),
    ],
    ids=["as_strided", "of a transposed one", "diagonal", "unfold"],
)
def test_the_values_are_eager_s(strict: Strict, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = Computing(lambda x: read(x * 2) + 1)
    torch.testing.assert_close(engine_for(strict(), module)(X), module(X))


def test_memory_that_elements_share_stays_in_pytorch(strict: Strict) -> None:
    module = Computing(lambda x: (x * 2).expand(3, 4, 3).as_strided([3, 3], [2, 1], 1) + 1)
    network = engine_for(strict(fallback="pytorch"), module)
    torch.testing.assert_close(network(X), module(X))
    assert any("share memory" in reason for reason in network.statistics.fallbacks)
