"""In the default precision no answer is further from f32 than twice PyTorch's autocast; ``make soundness`` draws thousands."""

from __future__ import annotations

import pytest

from ov_backend import Settings
from ov_backend.core import devices
from tests.soundness import options, positions

pytestmark = pytest.mark.skipif(devices.resolved_precision(Settings(device="CPU")) != "bf16", reason="this CPU computes in f32")


@pytest.mark.parametrize("form", positions.FORMS)
def test_networks_of_positions_and_offsets_answer_as_autocast_does(form: str) -> None:
    first = options.graph_seed() * 1000
    wrong = [message for seed in range(first, first + 8) if (message := positions.judge(seed, form=form))]
    assert not wrong, "\n".join(wrong)


def test_a_device_that_rounds_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "takes_autocast_types", lambda settings: False)
    wrong = [seed for seed in range(16) if positions.judge(seed)]
    assert len(wrong) > 2
