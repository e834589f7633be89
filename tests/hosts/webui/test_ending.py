"""A WebUI that is ended on purpose while it prepares leaves no mark; one that is killed does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.hosts.webui.ending import Ending

_ENDED = """
import os, pathlib, signal, sys
from ov_backend.engine.crash_sentinel import CrashSentinel
from ov_backend.hosts.webui.ending import ending

folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
ending.handle_signals()
with ending.marked(CrashSentinel(folder)):
    assert list(folder.iterdir())
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), int(how))
    signal.pause()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize(
    ("how", "code", "died"),
    [("exit", 3, False), (signal.SIGTERM, -15, False), (signal.SIGHUP, -1, False), (signal.SIGKILL, -9, True)],
)
def test_only_a_killed_process_leaves_its_mark(tmp_path: Path, how: object, code: int, died: bool) -> None:
    argument = how if isinstance(how, str) else str(int(how))  # type: ignore[call-overload]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    ended = subprocess.run([sys.executable, "-c", _ENDED, str(tmp_path), argument], check=False, env=environment)
    assert (ended.returncode, CrashSentinel(tmp_path).died()) == (code, died)


@pytest.fixture
def unhandled() -> Iterator[None]:
    """SIGTERM as in a new process; the stand-in of the WebUI, which has loaded the script, gets its handler back."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("unhandled")
def test_nothing_of_ours_is_left(tmp_path: Path) -> None:
    ending, leave = Ending(), os._exit
    ending.handle_signals()
    assert signal.getsignal(signal.SIGTERM) == ending._end
    with ending.marked(CrashSentinel(tmp_path)):
        assert os._exit is not leave
        assert list(tmp_path.iterdir())
    ending.restore_signals()
    assert os._exit is leave
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not list(tmp_path.iterdir())


def test_a_signal_that_somebody_handles_stays_theirs() -> None:
    def theirs(number: int, frame: object) -> None:
        """Another extension's."""

    ending, before = Ending(), signal.signal(signal.SIGTERM, theirs)
    try:
        ending.handle_signals()
        ending.restore_signals()
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)
