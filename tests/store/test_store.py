"""The store of graphs: entries are returned complete, their total size is bounded, and nothing in a file is trusted."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ov_backend.core import posix
from ov_backend.store.entry_file import GRAPHS, MANIFEST
from ov_backend.store.store import GraphStore

KEY = "ab" * 16
OTHER = "cd" * 16
FILES = {"model.xml": b"<net/>", "model.bin": b"\0\1\2", "graph.json": b"{}", "empty": b""}


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    return GraphStore(tmp_path / "graphs")


def test_entries_are_returned_as_they_were_put(store: GraphStore) -> None:
    assert store.get(KEY) is None
    assert store.put(KEY, FILES)
    assert store.get(KEY) == FILES
    assert [entry.key for entry in store.entries()] == [KEY]
    assert store.check() == ({}, [])
    assert store.remove(KEY)
    assert not store.remove(KEY)
    assert store.get(KEY) is None


def test_reading_creates_no_folder(store: GraphStore) -> None:
    assert store.get(KEY) is None
    assert (store.entries(), store.check(), store.clear(), store.bytes) == ([], ({}, []), 0, 0)
    assert not store.folder.exists()


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a.b", "G", "ab ", "AB"])
def test_only_hexadecimal_keys_are_accepted(store: GraphStore, key: str) -> None:
    with pytest.raises(ValueError, match="no key of this store"):
        store.put(key, FILES)
    with pytest.raises(ValueError, match="no key of this store"):
        store.get(key)


def test_the_store_is_bounded_and_the_least_recently_used_entry_is_removed(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, max_bytes=35_000)
    keys = [f"{i:032x}" for i in range(8)]
    for i, key in enumerate(keys[:3]):
        store.put(key, {"x": os.urandom(10_000)})
        os.utime(tmp_path / f"{key}{GRAPHS.suffix}", (i, i))
    assert store.get(keys[0]) is not None  # this use makes it the newest
    store.put(keys[3], {"x": os.urandom(10_000)})
    assert {entry.key for entry in store.entries()} == {keys[0], keys[2], keys[3]}
    for key in keys[4:]:
        store.put(key, {"x": os.urandom(10_000)})
        assert store.bytes <= store.max_bytes
        assert store.get(key) is not None


def test_one_entry_that_exceeds_the_bound_stays(tmp_path: Path) -> None:
    store = GraphStore(tmp_path, max_bytes=1000)
    for key in (KEY, OTHER):
        assert store.put(key, {"x": os.urandom(5000)})
        assert [entry.key for entry in store.entries()] == [key]


def _zip(members: dict[str, bytes], manifest: object = None, method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        if manifest is None:
            manifest = _sizes(**{name: len(data) for name, data in members.items()})
        archive.writestr(MANIFEST, manifest if isinstance(manifest, bytes) else json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _sizes(**sizes: object) -> dict[str, object]:
    return {"format": GRAPHS.format, "key": KEY, "sizes": sizes}


def _bomb() -> bytes:
    """A small file whose member unpacks to a large size although its header states a small one."""
    honest = _zip({"x": b"\0" * 100}, method=zipfile.ZIP_DEFLATED)
    packed = zlib.compressobj(9, wbits=-15)
    body = packed.compress(b"\0" * (8 << 20)) + packed.flush()
    small = zlib.compressobj(9, wbits=-15)
    return honest.replace(small.compress(b"\0" * 100) + small.flush(), body)


def _honest_bomb() -> bytes:
    data = bytearray(_zip({"x": b"\0" * 100}, method=zipfile.ZIP_DEFLATED))
    for start in _find(data, (100).to_bytes(4, "little")):
        data[start : start + 4] = (GRAPHS.max_bytes + 1).to_bytes(4, "little")
    return bytes(data)


def _find(data: bytes, part: bytes) -> list[int]:
    return [i for i in range(len(data)) if data[i : i + len(part)] == part]


class _Evil:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, ("executed",)


FOREIGN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text": lambda: b"hello",
    "a pickle": lambda: pickle.dumps(_Evil()),
    "a pickle as manifest": lambda: _zip({}, pickle.dumps(_Evil())),
    "another zip": lambda: _zip({"x": b"1"}, b"[]"),
    "no manifest": lambda: _zip({"x": b"1"}).replace(b"manifest", b"manifesd"),
    "an older version": lambda: _zip({"x": b"1"}, {**_sizes(x=1), "format": "ov_backend graph 0"}),
    "a newer version": lambda: _zip({"x": b"1"}, {**_sizes(x=1), "format": "ov_backend graph 3"}),
    "another key": lambda: _zip({"x": b"1"}, {**_sizes(x=1), "key": OTHER}),
    "no sizes": lambda: _zip({"x": b"1"}, {"format": GRAPHS.format, "key": KEY}),
    "sizes as a list": lambda: _zip({"x": b"1"}, {"format": GRAPHS.format, "key": KEY, "sizes": ["x"]}),
    "a size too large": lambda: _zip({"x": b"1"}, _sizes(x=2)),
    "a size too small": lambda: _zip({"x": b"1"}, _sizes(x=0)),
    "a size that is no number": lambda: _zip({"x": b"1"}, _sizes(x="1")),
    "a negative size": lambda: _zip({"x": b""}, _sizes(x=-1)),
    "an unlisted member": lambda: _zip({"x": b"1", "y": b"2"}, _sizes(x=1)),
    "a missing member": lambda: _zip({"x": b"1"}, _sizes(x=1, y=1)),
    "many members": lambda: _zip({f"{i}": b"" for i in range(99)}),
    "another compression": lambda: _zip({"x": b"1" * 100}, method=zipfile.ZIP_LZMA),
    "a zip bomb with a false size": _bomb,
    "a zip bomb with its true size": _honest_bomb,
    "nested a thousand deep": lambda: _zip({"x": b"1"}, b"[" * 100_000),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_a_miss_and_is_replaced(
    store: GraphStore, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    store.folder.mkdir()
    (store.folder / f"{KEY}{GRAPHS.suffix}").write_bytes(FOREIGN[kind]())
    assert store.get(KEY) is None
    assert store.get(KEY) is None
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
    assert not (tmp_path / "executed").exists()
    kept = "version" in kind  # another version of this package may use it
    damaged, old = store.check()
    assert (list(damaged), old) == ([], [KEY] if kept else []), "what is damaged is removed"
    assert store.put(KEY, FILES)
    assert store.get(KEY) == FILES


def test_a_file_larger_than_any_graph_is_not_read(store: GraphStore, caplog: pytest.LogCaptureFixture) -> None:
    store.folder.mkdir()
    with (store.folder / f"{KEY}{GRAPHS.suffix}").open("wb") as file:
        file.truncate(GRAPHS.max_bytes + 1)
    assert store.get(KEY) is None
    assert "larger than any graph" in caplog.text


def test_temporary_files_of_running_processes_are_kept(store: GraphStore) -> None:
    store.folder.mkdir()
    path = store.folder / f"abcdef00.x{GRAPHS.temporary}"
    with path.open("wb") as file:
        posix.lock(file.fileno())
        file.write(b"half")
        store.put(KEY, FILES)
        store.clear()
        assert path.exists()
    store.put(KEY, FILES)
    assert not path.exists(), "no process is writing it any more"
