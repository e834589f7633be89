"""How much of the suite runs.

``make test`` leaves out what has the marker ``slow``, ``make test-full`` runs that. The rows of long tables have the marker
``longest`` but for a sample, and run with ``ZOO=all`` only (``make test-longest``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

FULL = os.environ.get("ZOO") == "all"

#: Marks a long test whose parts, or whose like, are tested elsewhere.
only_in_full = pytest.mark.longest

#: Folders and files below ``tests/`` of which most tests take seconds: they start whole programs, browsers or processes, draw
#: pictures with several pipelines, or compile many networks. Chosen by the durations of a whole run: seven tenths of its time.
SLOW = (
    *("integration", "soundness", "hosts/webui", "test_wheel.py", "test_bench_memory.py", "test_init.py", "test_exit.py"),
    *(f"batch/test_{name}.py" for name in ("cluster", "kill", "renderer")),
    *(f"cli/test_{name}.py" for name in ("batch", "generate", "precompile", "process")),
    *(f"engine/test_{name}.py" for name in ("blocks_precision", "forged_entries", "low_precision", "when_int8")),
    *(f"guards/test_{name}.py" for name in ("code", "hash_seeds")),
    *(f"hosts/standalone/test_{name}.py" for name in ("compare_int8", "demo", "generator", "readiness", "upscalers")),
    *("memory/test_mappings.py", "model/runtime/test_binding.py", "model/runtime/test_shared_kernels.py"),
    *(f"torch_compile/test_{name}.py" for name in ("aot_autograd", "cache_keys", "dynamic_shapes", "dynamic_sizes")),
)
#: What is not slow in them: a picture in each host, a page in a browser, random graphs, and what tells whether int8 is used.
SMOKE = (
    "engine/test_low_precision.py::test_the_second_picture_is_made_in_8_bits",
    "hosts/standalone/test_generator.py::test_the_picture_is_pytorch_s",
    "hosts/webui/test_generation.py::test_txt2img",
    "integration/browser/test_standalone.py::test_the_page_answers_generate_at_once",
    "soundness/test_random_graphs.py",
)


def is_slow(path: Path, name: str) -> bool:
    """Whether a test, in a file below ``tests/``, is left out by ``make test``."""
    test = f"{path.as_posix()}::{name}"
    return any(test.startswith((f"{each}/", f"{each}:")) for each in SLOW) and not test.startswith(SMOKE)


def some(part: Iterable[Any], everything: Iterable[Any], several: bool = False) -> list[Any]:
    """The values of a test's parameter; those outside the part run in full only.

    ``several``: each value is a tuple of the values of several parameters.
    """
    chosen = list(part)
    values = [(value, *([] if value in chosen else [only_in_full])) for value in everything]
    return [pytest.param(*(value if several else [value]), marks=marks) for value, *marks in values]
