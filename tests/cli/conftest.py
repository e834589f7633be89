"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Refusal = Callable[[list[str], str], None]


@pytest.fixture
def assert_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Runs a command with bad input: it ends with one sentence of these words and exit code 2, and leaves no file."""
    from ov_backend.cli import main as cli

    def run(arguments: list[str], words: str) -> None:
        monkeypatch.chdir(tmp_path)
        try:
            code = cli.main(arguments)
        except SystemExit as system_exit:  # from argparse
            code = int(system_exit.code or 0)
        printed = capsys.readouterr()
        assert code == 2
        assert words in printed.err
        assert len(printed.err.strip().splitlines()) == 1
        assert not printed.out
        assert not list(tmp_path.iterdir()), "a file is left behind"

    return run
