"""The blob cache: compiled graphs with their weights on disk, which another process imports instead of compiling.

Unlike a stored graph, a blob belongs to its weights: their digest is a part of its key, and it is as large as they are.
OpenVINO's own ``CACHE_DIR`` is not used for this. Its key depends on the order in which a process creates its models, so that
the same network is missed, and its size has no bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ov_backend.core import devices
from ov_backend.core.settings import Settings
from ov_backend.store.key import cache_key
from ov_backend.store.store import GraphStore

#: Increased whenever the same graph is compiled to another blob.
BLOB_VERSION = 3
_SLOW_TO_COMPILE = ("GPU", "NPU")


@dataclass(frozen=True)
class Blob:
    """The entry of one compiled graph in the blob cache, which may not exist yet."""

    store: GraphStore
    key: str

    def load(self) -> bytes | None:
        """The stored blob, or None."""
        files = self.store.get(self.key)
        return None if files is None else files.get("blob")

    def save(self, data: bytes) -> None:
        """Store the blob."""
        self.store.put(self.key, {"blob": data})

    def remove(self) -> None:
        """Remove a blob that cannot be used."""
        self.store.remove(self.key)


def enabled(settings: Settings) -> bool:
    """Whether the settings ask for the blob cache and the device can export blobs."""
    if settings.blob_cache == "off" or not settings.model_caching:
        return False
    if settings.blob_cache == "auto" and settings.device.partition(".")[0] not in _SLOW_TO_COMPILE:
        return False
    return devices.exports(settings.device)


def blob(store: GraphStore, graph: str, part: str, weights: str, settings: Settings, torch_version: str) -> Blob:
    """The entry of one compiled graph, or of its subgraph ``part``, for weights of this digest.

    The settings that affect the compile, the device, and the torch that captured the graph are parts of the key, too.
    """
    compile_settings = {name: _plain(value) for name, value in settings.affecting("compile").items()}
    versions = {
        "torch": torch_version,
        "openvino": devices.openvino_version(),
        "device": devices.full_name(settings.device),
    }
    extra = f"blob {BLOB_VERSION}"
    key = cache_key(text=graph, call=part, slots=weights, settings=compile_settings, versions=versions, extra=extra)
    return Blob(store, key)


def _plain(value: object) -> object:
    return json.loads(json.dumps(value, default=str, sort_keys=True))
