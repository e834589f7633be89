"""The blob cache, switched on for the CPU: another process does not compile, and never gets results of other weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ov_backend import Settings
from ov_backend.core import devices
from ov_backend.engine.network import Network
from ov_backend.store import blobs as blob_cache
from ov_backend.store.entry_file import BLOBS
from ov_backend.store.store import open_blobs
from tests.helpers.small import Small, assert_right, engine_for, inputs

Strict = Callable[..., Settings]


def answered(settings: Settings, seed: int = 0, height: int = 8) -> Network:
    """A network of a new engine, as in a new process, after one call whose result was checked."""
    module = Small(seed)
    network = engine_for(settings, module)
    assert_right(network, module, *inputs(height, 8))
    return network


def counts(network: Network) -> tuple[int, int, int]:
    """(captures, compiles, blob hits)."""
    statistics = network.statistics
    return statistics.captures, statistics.compiles, statistics.blob_hits


def blobs(settings: Settings) -> list[Path]:
    return sorted(Path(str(settings.cache_dir)).glob(f"blobs/*{BLOBS.suffix}"))


def test_a_second_process_compiles_nothing(strict: Strict) -> None:
    settings = strict(blob_cache="on")
    assert counts(answered(settings)) == (1, 1, 0)
    network = answered(settings)
    assert counts(network) == (1, 0, 1)
    assert network.stats()["seconds"]["import"] > 0
    assert network.stats()["seconds"]["compile"] == 0
    assert len(blobs(settings)) == 1


def test_other_weights_are_another_blob(strict: Strict) -> None:
    settings = strict(blob_cache="on")
    answered(settings, seed=0)
    assert counts(answered(settings, seed=1)) == (1, 1, 0)
    assert counts(answered(settings, seed=0)) == (1, 0, 1)
    assert len(blobs(settings)) == 2


def test_weights_that_change_after_an_import_are_noticed(strict: Strict) -> None:
    settings = strict(blob_cache="on")
    answered(settings)
    module = Small()
    network = engine_for(settings, module)
    assert_right(network, module, *inputs())
    with torch.no_grad():
        module.table.weight.mul_(3)
        module.convolution.weight[0, 0, 0, 0] += 4
    assert_right(network, module, *inputs())
    assert counts(network) == (1, 1, 1)


@pytest.mark.parametrize(
    "changes", [{"config": {"INFERENCE_NUM_THREADS": 1}}, {"disabled_ops": ["aten.tanh.default"]}], ids=["compile", "graph"]
)
def test_other_settings_are_another_blob(strict: Strict, changes: dict[str, object]) -> None:
    answered(strict(blob_cache="on"))
    network = answered(strict(blob_cache="on", **changes))
    assert network.statistics.blob_hits == 0


def test_a_split_network_is_compiled_every_time(strict: Strict) -> None:
    """The names of the parts may differ between processes, and a part must not get the blob of another one."""
    settings = strict(blob_cache="on", disabled_ops=["aten.tanh.default"])
    for _ in range(3):
        network = answered(settings)
        assert (network.statistics.compiles, network.statistics.blob_hits) == (1, 0)
    assert blobs(settings) == []


def test_the_blob_cache_is_off_for_the_cpu_by_default(strict: Strict) -> None:
    for choice in ("auto", "off"):
        settings = strict(blob_cache=choice)
        answered(settings)
        assert blobs(settings) == []
    assert not blob_cache.enabled(strict(blob_cache="on", model_caching=False))
    assert not blob_cache.enabled(strict(blob_cache="on", device="AUTO"))
    assert blob_cache.enabled(strict(blob_cache="on"))
    assert devices.exports("CPU")


def _truncate(data: bytearray) -> bytes:
    return bytes(data[: len(data) // 2])


def _flip(data: bytearray) -> bytes:
    data[len(data) // 2] ^= 1
    return bytes(data)


@pytest.mark.parametrize("damage", [_truncate, _flip], ids=lambda f: f.__name__.strip("_"))
def test_a_damaged_blob_is_replaced(
    strict: Strict, damage: Callable[[bytearray], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    settings = strict(blob_cache="on")
    answered(settings)
    (path,) = blobs(settings)
    path.write_bytes(damage(bytearray(path.read_bytes())))
    with caplog.at_level(logging.WARNING):
        assert counts(answered(settings)) == (1, 1, 0)
    assert len([r for r in caplog.records if "stored blob" in r.getMessage()]) == 1
    assert counts(answered(settings)) == (1, 0, 1)


def test_a_blob_that_the_device_refuses_is_replaced(strict: Strict, caplog: pytest.LogCaptureFixture) -> None:
    settings = strict(blob_cache="on")
    answered(settings)
    (path,) = blobs(settings)
    store = open_blobs(settings, Path(str(settings.cache_dir)))
    store.put(path.stem, {"blob": b"of another driver" * 100})
    with caplog.at_level(logging.WARNING):
        assert counts(answered(settings)) == (1, 1, 0)
    assert "Ignoring a stored blob" in caplog.text
    assert counts(answered(settings)) == (1, 0, 1)


def test_blobs_have_their_own_bound(strict: Strict) -> None:
    settings = strict(blob_cache="on", blob_mb=9)
    for height in range(4, 10):
        answered(settings, height=height)
    sizes = [path.stat().st_size for path in blobs(settings)]
    assert 3_000_000 < sizes[0] < 6_000_000
    assert sum(sizes) <= 9 << 20
    assert len(sizes) < 6
    assert len(list(Path(str(settings.cache_dir)).glob("*.ovgraph"))) == 6, "graphs have their own bound"
