"""What is compiled reads nothing of the live weights."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ov_backend.core import devices
from tests.helpers.extent import FULL, some

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="access to memory is taken away with mprotect")

#: Instruction sets that OpenVINO and PyTorch can be held to; what a processor lacks is left out by both.
SETS = {"all that there is": {}, "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}}


@pytest.mark.parametrize("instructions", some(["all that there is"], SETS))
def test_networks_answer_when_their_weights_cannot_be_read(instructions: str) -> None:
    half = [] if SETS[instructions] else [name for name in ("bf16", "f16") if name in devices.list_devices()[0].precisions]
    command = [sys.executable, "-m", "tests.helpers.protected", *((half if FULL else half[:1]) or ["f32"])]
    result = subprocess.run(command, env={**os.environ, **SETS[instructions]}, capture_output=True, text=True, timeout=300)
    lines = result.stdout.splitlines() or ["nothing"]
    assert result.returncode == 0, f"{lines[-1]}: {result.stderr[-2000:]}"
    assert lines[-1] == "done"
