"""Random networks of layers answer as PyTorch does; ``make soundness`` draws thousands."""

from __future__ import annotations

import pytest

from ov_backend.model import transformations
from tests.soundness import layers, options


@pytest.mark.parametrize("part", range(2))
def test_random_networks_answer_as_pytorch_does(part: int) -> None:
    first = options.graph_seed() * 1000 + part * 20
    wrong = [message for seed in range(first, first + 20) if (message := layers.judge(seed))]
    assert not wrong, "\n".join(wrong)


def test_a_device_that_mistakes_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the copies before shared transposes, OpenVINO 2026.4 is wrong for this network."""
    monkeypatch.setattr(transformations, "copy_shared_inputs", lambda model: None)
    assert "off by" in layers.judge(1193)
