"""The public API: the names that ``import ov_backend`` offers, and that it loads OpenVINO at first use only."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ov_backend
from ov_backend.errors import first_line, last_line

PUBLIC = {
    *("AcceleratedPipeline", "OVBackendError", "Settings", "__version__", "accelerate", "batch", "explain"),
    *("openvino_fx", "openvino_ts", "reset", "stats"),
}


def test_the_public_api_is_listed() -> None:
    assert set(ov_backend.__all__) == PUBLIC
    assert {name for name in dir(ov_backend) if not name.startswith("__")} == PUBLIC - {"__version__"}
    assert "__version__" in dir(ov_backend)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_exists(name: str) -> None:
    assert getattr(ov_backend, name) is not None


def test_an_unknown_name_raises() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compile'"):
        ov_backend.compile  # noqa: B018


def test_importing_the_package_does_not_load_openvino() -> None:
    code = "import sys, ov_backend; sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


def test_a_trace_in_another_thread_may_come_before_the_main_thread_s_own() -> None:
    """PyTorch 2.11 built for CUDA crashed in this order on a machine without a CUDA device."""
    code = """
import threading
import ov_backend, torch
from torch._subclasses import FakeTensorMode

def trace():
    with FakeTensorMode():
        torch.empty(3)

thread = threading.Thread(target=trace)
thread.start()
thread.join()
trace()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0


@pytest.mark.parametrize("text,first,last", [("a\n\n  b \n", "a", "b"), ("one", "one", "one"), ("", "no message", "no message")])
def test_first_and_last_line_of_an_error(text: str, first: str, last: str) -> None:
    assert (first_line(RuntimeError(text)), last_line(RuntimeError(text))) == (first, last)
