"""Whose an entry and its folder are: what another user wrote, or may change, is never used, and the log says what to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ov_backend.cli.main import main
from ov_backend.core import posix
from ov_backend.store import ownership
from ov_backend.store.entry_file import GRAPHS
from ov_backend.store.store import GraphStore

KEY = "ab" * 16
FILES = {"model.xml": b"<net/>", "graph.json": b"{}"}
SOMEBODY = 12345

pytestmark = pytest.mark.skipif(not posix.has_owners(), reason="files have no owners here")
as_root = pytest.mark.skipif(posix.user_id() != 0, reason="only root can give files away")


@pytest.fixture
def store(tmp_path: Path) -> GraphStore:
    store = GraphStore(tmp_path / "graphs")
    assert store.put(KEY, FILES)
    return store


def entry(store: GraphStore) -> Path:
    return store.folder / f"{KEY}{GRAPHS.suffix}"


def test_a_folder_of_ours_is_closed_to_others_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = GraphStore(tmp_path / "deep" / "graphs")
        assert store.put(KEY, FILES)
    finally:
        os.umask(before)
    assert not store.folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert not entry(store).stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert store.get(KEY) == FILES


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757, 0o702])
def test_a_shared_folder_is_refused_with_what_to_do(store: GraphStore, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    store.folder.chmod(mode)
    assert store.get(KEY) is None
    assert store.get(KEY) is None
    assert not store.put("cd" * 16, FILES)
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert message.startswith(f"The graphs in {store.folder} are not used: other users may write to it (mode {mode:04o});")
    assert message.endswith("run chmod go-w on it, or choose a folder of your own (--cache-dir or OPENVINO_TORCH_CACHE_DIR).")
    store.folder.chmod(0o755)
    assert store.get(KEY) == FILES


@as_root
def test_a_folder_of_another_user_is_refused(store: GraphStore, caplog: pytest.LogCaptureFixture) -> None:
    os.chown(store.folder, SOMEBODY, -1)
    assert store.get(KEY) is None
    assert not store.put(KEY, FILES)
    assert len(caplog.records) == 1
    assert f"belongs to user {SOMEBODY}" in caplog.text
    assert entry(store).exists(), "nothing is removed from a folder that is not ours"


@as_root
@pytest.mark.parametrize("removes", ["clear", "remove", "trim", "sweep"])
def test_no_file_of_another_user_is_removed(store: GraphStore, removes: str) -> None:
    planted = entry(store) if removes != "sweep" else store.folder / f"{KEY[:8]}.x{GRAPHS.temporary}"
    planted.touch()
    _give_away(planted)
    if removes == "clear":
        assert store.clear() == 0
    elif removes == "remove":
        assert not store.remove(KEY)
    else:
        assert GraphStore(store.folder, max_bytes=1).put("cd" * 16, FILES)
    assert planted.exists()


@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_clear_refuses_a_folder_that_is_not_used(
    store: GraphStore, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store.folder.chmod(0o777)
    assert store.clear() == 0
    assert main(["cache", "clear", "--cache-dir", str(store.folder), *options]) == 2
    assert "are not removed: other users may write to it (mode 0777); run chmod" in capsys.readouterr().err
    assert entry(store).exists()


@as_root
def test_a_link_to_a_folder_of_another_user_is_refused(store: GraphStore, tmp_path: Path) -> None:
    os.chown(store.folder, SOMEBODY, -1)
    link = tmp_path / "link"
    link.symlink_to(store.folder)
    assert GraphStore(link).get(KEY) is None


def _give_away(path: Path) -> None:
    os.chown(path, SOMEBODY, -1)


PLANTED: dict[str, Callable[[Path], None]] = {
    "of another user": _give_away,
    "writable for all": lambda path: path.chmod(0o666),
    "writable for some": lambda path: path.chmod(0o646),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_entry_is_a_miss_with_one_line_until_it_is_replaced(
    store: GraphStore, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "of another user" and posix.user_id() != 0:
        pytest.skip("only root can give files away")
    PLANTED[kind](entry(store))
    assert store.check()[0]
    assert store.get(KEY) is None
    assert store.get(KEY) is None
    assert len(caplog.records) == 1
    assert entry(store).exists(), "it is no damage, and may be somebody's"
    assert store.put(KEY, FILES)
    assert store.get(KEY) == FILES


def test_a_private_group_is_nobody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = _with_group_write(tmp_path)
    user = posix.pwd.getpwuid(posix.user_id())
    own = {"gr_name": user.pw_name, "gr_mem": []}
    for fields, private in ((own, True), ({**own, "gr_mem": ["mallory"]}, False), ({**own, "gr_name": "users"}, False)):
        monkeypatch.setattr(posix.grp, "getgrgid", lambda gid, fields=fields: type("Group", (), fields))
        assert posix.others_may_write(status) is not private


def test_a_group_that_nobody_knows_is_not_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(gid: int) -> None:
        raise KeyError(gid)

    status = _with_group_write(tmp_path)
    monkeypatch.setattr(posix.grp, "getgrgid", unknown)
    assert posix.others_may_write(status)


def _with_group_write(folder: Path) -> os.stat_result:
    path = folder / "x"
    path.touch()
    os.chown(path, -1, os.getgid())
    path.chmod(0o664)
    return path.stat()


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """As on Windows, with these identifiers of a folder's owner and of the user."""
    monkeypatch.setattr(posix, "has_owners", lambda: False)

    def identify(owner: str, user: str) -> None:
        monkeypatch.setattr(ownership, "windows_owner", lambda folder: owner)
        monkeypatch.setattr(ownership, "windows_user", lambda: user)

    return identify


ME, ADMINISTRATORS = "S-1-5-21-1-2-3-1001", "S-1-5-32-544"


@pytest.mark.parametrize("owner,used", [(ME, True), (ADMINISTRATORS, True), ("S-1-5-18", True), ("S-1-5-21-1-2-3-1002", False)])
def test_on_windows_the_owner_decides(store: GraphStore, windows: Callable[..., None], owner: str, used: bool) -> None:
    windows(owner, ME)
    assert (store.get(KEY) == FILES) is used
    assert (ownership.folder_problem(store.folder) == "") is used


@pytest.mark.parametrize("inside", [True, False])
def test_on_windows_without_an_owner_the_profile_decides(
    store: GraphStore, windows: Callable[..., None], inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows("", "")
    home = store.folder.parent if inside else store.folder.parent / "elsewhere"
    monkeypatch.setattr(Path, "home", lambda: home)
    assert (store.get(KEY) == FILES) is inside
    assert ("lies outside of" in ownership.folder_problem(store.folder)) is not inside


def test_windows_owners_are_unknown_on_other_systems(tmp_path: Path) -> None:
    ownership.windows_user.cache_clear()
    assert (ownership.windows_owner(tmp_path), ownership.windows_user()) == ("", "")
