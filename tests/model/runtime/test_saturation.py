"""CPUs that multiply 8-bit integers exactly, and others."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly
from tests.helpers.extent import some

ROOT = Path(__file__).parents[3]
FLAGS = Path("/proc/cpuinfo")
PROBE = "from ov_backend.model.runtime.saturation import multiplies_8_bits_exactly as exact; print(exact())"
#: What oneDNN is held to, the flag of a CPU that has it, and whether products are exact then.
SETS = [("AVX2", "avx2", "False"), ("AVX2_VNNI", "avx_vnni", "True")]


@pytest.mark.skipif(not FLAGS.exists() or "ONEDNN_MAX_CPU_ISA" in os.environ, reason="it is not known what the CPU has")
def test_products_are_exact_where_the_cpu_has_vnni() -> None:
    assert multiplies_8_bits_exactly() == ("vnni" in FLAGS.read_text())


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are instructions of x86")
@pytest.mark.parametrize(("instructions", "needed", "expected"), some(SETS[:1], SETS, several=True))
def test_products_overflow_without_vnni(instructions: str, needed: str, expected: str) -> None:
    if FLAGS.exists() and needed not in FLAGS.read_text():
        pytest.skip(f"the CPU has no {needed}")
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions, "PYTHONPATH": path}
    process = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.split()[-1] == expected
