"""A changed module beside an equal one that was traced answers as PyTorch does; ``make soundness`` tries hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from ov_backend.guards.what_differed import Description
from tests.soundness import options
from tests.soundness.modules import NASTY
from tests.soundness.test_mutations import assert_right
from tests.soundness.twins import as_if_installed, beside_a_twin

_MODULES = ("config object", "closures", "class attributes")


@pytest.mark.parametrize("name", _MODULES)
def test_a_trace_answers_no_module_that_differs(tmp_path: Path, name: str) -> None:
    assert name in NASTY
    with as_if_installed():
        result = beside_a_twin(name, 12, str(options.seed()), str(tmp_path))
    assert_right(result)
    assert any(outcome.calls and not outcome.compiled for outcome in result.outcomes[1:]), "no trace of the other has answered"


def test_a_description_that_leaves_everything_out_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Description, "fingerprint", lambda self: "the same for all")
    with as_if_installed():
        result = beside_a_twin("config object", 25, "planted", str(tmp_path))
    assert len(result.stale) > 3
