"""What a device made of a graph and its weights, on disk: a process that finds it there need not compile.

Unlike a graph it belongs to its weights, whose digest is a part of its key, and is as large as they are. OpenVINO's own
``CACHE_DIR`` is not used for this: its key depends on the order in which a process makes its models, so that the same
network is missed, and nothing bounds it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from ov_backend import devices
from ov_backend.cache.entry_file import BLOBS
from ov_backend.cache.key import cache_key
from ov_backend.cache.store import GraphStore
from ov_backend.settings import Settings

_SLOW_TO_COMPILE = ("GPU", "NPU")


@dataclass(frozen=True)
class Blob:
    """Where the compiled form of one graph with its weights is, or will be.

    Attributes:
        store: the store of blobs.
        key: of graph, weights, settings and device.
    """

    store: GraphStore
    key: str

    def load(self) -> bytes | None:
        """What is there."""
        files = self.store.get(self.key)
        return None if files is None else files.get("blob")

    def save(self, data: bytes) -> None:
        """Keep it."""
        self.store.put(self.key, {"blob": data})

    def remove(self) -> None:
        """Forget what cannot be used."""
        self.store.remove(self.key)


def wanted(settings: Settings) -> bool:
    """Whether blobs are kept under these settings: asked for, and the device can export them."""
    if settings.blob_cache == "off" or not settings.model_caching:
        return False
    if settings.blob_cache == "auto" and settings.device.partition(".")[0] not in _SLOW_TO_COMPILE:
        return False
    return devices.exports(settings.device)


def open_blobs(settings: Settings, graphs: Path) -> GraphStore:
    """The store of blobs that belongs to a store of graphs: a folder beside its entries."""
    return GraphStore(graphs / "blobs", settings.blob_mb << 20, BLOBS)


def blob(store: GraphStore, graph: Hashable, part: str, weights: str, settings: Settings, torch_version: str) -> Blob:
    """The place of one graph's compiled form.

    Args:
        store: see :func:`open_blobs`.
        graph: key of the captured graph.
        part: name of the subgraph, where it is split.
        weights: digest of the weights.
        settings: those that affect the compile go into the key, and the device itself.
        torch_version: of what captured it.
    """
    compile_settings = {name: _plain(value) for name, value in settings.affecting("compile").items()}
    versions = {
        "torch": torch_version,
        "openvino": devices.openvino_version(),
        "device": devices.full_name(settings.device),
    }
    key = cache_key(code=repr(graph), inputs=part, slots=weights, settings=compile_settings, versions=versions, extra="blob")
    return Blob(store, str(key))


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=str, sort_keys=True))
