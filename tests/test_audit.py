"""The audit never passes in silence: what was not looked up is said, and the exit code tells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import audit

ENVIRONMENT = sys.prefix


def program(folder: Path, said: str, errors: str = "", code: int = 0) -> str:
    """A program in place of pip-audit that prints what it is told to."""
    path = folder / "pip-audit"
    path.write_text(f"#!{sys.executable}\nimport sys\nprint({said!r})\nprint({errors!r}, file=sys.stderr)\nsys.exit({code})\n")
    path.chmod(0o755)
    return str(path)


def report(*holes: dict[str, Any], **package: Any) -> str:
    return json.dumps({"dependencies": [{"name": "torch", "version": "1.0", "vulns": list(holes), **package}], "fixes": []})


@pytest.fixture(autouse=True)
def _python_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "npm", list)


def test_a_service_that_cannot_be_reached_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unreachable = program(tmp_path, "", "ConnectionError: no route to host", 1)
    assert audit.main([unreachable, ENVIRONMENT]) == audit.NOT_AUDITED
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"{ENVIRONMENT} was not audited: the services of pip-audit could not be reached")
    assert "no route to host" in first


def test_a_known_hole_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report({"id": "PYSEC-1", "fix_versions": ["2.0"]})
    assert audit.main([program(tmp_path, found, code=1), ENVIRONMENT]) == audit.FOUND
    assert "torch 1.0 has PYSEC-1, mended in 2.0" in capsys.readouterr().out


def test_nothing_is_known(tmp_path: Path) -> None:
    assert audit.main([program(tmp_path, report()), ENVIRONMENT]) == 0


def test_a_package_that_was_left_out_is_not_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([program(tmp_path, report(skip_reason="not found")), ENVIRONMENT]) == audit.NOT_AUDITED
    assert "pypi left out 1 of" in capsys.readouterr().out


def test_an_environment_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main([program(tmp_path, report()), str(tmp_path / "nowhere")]) == audit.NOT_AUDITED
    assert "there is no environment in" in capsys.readouterr().out
