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

#: Of each folder below ``tests/``, the files of which most tests take seconds: they start whole programs, browsers, processes,
#: draw pictures with several pipelines, or compile many networks. Chosen by the durations of a whole run: three quarters of it.
_SLOW_FILES = {
    ".": "bench_memory exit init wheel",
    "batch": "cluster kill renderer",
    "checkpoint": "bounded",
    "cli": "arguments batch generate precompile process words",
    "core": "telemetry",
    "engine": "blocks_precision blocks_precision_hosts faults forged_entries int8_faults low_precision noisy_steps recipe_ahead"
    " signals when_int8 worker",
    "guards": "code hash_seeds",
    "hosts/standalone": "compare_int8 demo generator interrupted_generation readiness serve upscalers",
    "memory": "mappings",
    "model/runtime": "binding shared_kernels strides",
    "model/transformations": "convert_precision convolutions copies cpu_faults",
    "pipelines": "calls hooks int8",
    "store": "store_faults",
    "torch_compile": "aot_autograd cache_keys dynamic_shapes dynamic_sizes int8 recompilation",
    "torch_compile/report": "coverage",
}
SLOW = (
    *("integration/", "soundness/", "hosts/webui/"),
    *((Path(folder) / f"test_{name}.py").as_posix() for folder, names in _SLOW_FILES.items() for name in names.split()),
    "torch_compile/test_fallback.py::test_a_graph_that_fails_runs_by_inductor",
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
    return test.startswith(SLOW) and not test.startswith(SMOKE)


def some(part: Iterable[Any], everything: Iterable[Any], several: bool = False) -> list[Any]:
    """The values of a test's parameter; those outside the part run in full only.

    ``several``: each value is a tuple of the values of several parameters.
    """
    chosen = list(part)
    values = [(value, *([] if value in chosen else [only_in_full])) for value in everything]
    return [pytest.param(*(value if several else [value]), marks=marks) for value, *marks in values]
