"""Shared fixtures. Tests run strict: a fallback to PyTorch raises unless a test is about fallbacks.

Nothing large is imported here: where tests run in several processes, this file is loaded before these are started.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.extent import FULL, is_slow
from tests.helpers.frozen import freeze, leave_guards_unmeasured

if TYPE_CHECKING:
    from ov_backend import Settings
    from tests.helpers.torch_compile import Compile

TESTS = Path(__file__).parent
_frozen_modules: list[int] = [0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow, before pytest selects by markers; leave out what only ``make test-longest`` runs."""
    for item in items:
        if is_slow(item.path.relative_to(TESTS), item.name):
            item.add_marker("slow")
    left_out = [] if FULL else [item for item in items if item.get_closest_marker("longest")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("longest")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Skip what asks for a precision that this machine's CPU does not have."""
    try:
        return (yield)
    except Exception as error:
        lacking = re.search(r"\(CPU\) cannot compute in (b?f16)", str(error)) if type(error).__name__ == "DeviceError" else None
        if lacking is None or _CAPABILITIES[lacking[1]] in _capabilities_of_the_cpu():
            raise
        pytest.skip(f"the CPU cannot compute in {lacking[1]}")


_CAPABILITIES = {"bf16": "BF16", "f16": "FP16"}


def _capabilities_of_the_cpu() -> set[str]:
    from ov_backend.core import devices

    return {str(each) for each in devices.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")}


@pytest.fixture(autouse=True)
def memory_is_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are offloaded where a test asks for it, however little memory this machine has left."""
    from ov_backend.memory import low_memory

    monkeypatch.setattr(low_memory, "available_memory", low_memory.total_memory)


@pytest.fixture
def strict(tmp_path: Path) -> Callable[..., Settings]:
    """Settings in f32 with a graph store of the test's own, where every fallback raises."""
    from ov_backend import Settings

    def make(**changes: Any) -> Settings:
        defaults = {"device": "CPU", "precision": "f32", "cache_dir": str(tmp_path / "graphs"), "fallback": "raise"}
        return Settings(**{**defaults, **changes})

    return make


@pytest.fixture
def compiled() -> Compile:
    """``torch.compile`` with this backend, in f32, where every fallback raises."""
    import torch

    def make(model: Any, *, dynamic: bool | None = False, fullgraph: bool = False, **options: Any) -> Any:
        strict_options = {"precision": "f32", "fallback": "raise", **options}
        return torch.compile(model, backend="openvino_fx", dynamic=dynamic, fullgraph=fullgraph, options=strict_options)

    return make


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint of random weights, whose own size is 64x64."""
    from ov_backend.checkpoint import TOKENIZER
    from tests.hosts.standalone.checkpoints import write_small_checkpoint

    if not TOKENIZER.is_dir():
        pytest.skip("the project's own vocabulary is not here")
    return write_small_checkpoint(tmp_path_factory.mktemp("checkpoint"), vae_levels=2)


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    """No compiled graph and no Dynamo state outlives a test; no gradients are recorded in one."""
    import torch

    import ov_backend

    _freeze_imported_modules()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()
    ov_backend.reset()


def _freeze_imported_modules() -> None:
    """Exclude what was imported since the last test from garbage collection; see tests/helpers/frozen.py."""
    if len(sys.modules) > _frozen_modules[0]:
        _frozen_modules[0] = len(sys.modules)
        gc.collect()
        freeze()
        leave_guards_unmeasured()
