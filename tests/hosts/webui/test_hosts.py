"""Which WebUI a process is, and what is said where it is none that is known."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from ov_backend.core.errors import OVBackendError

ROOT = Path(__file__).parents[3]
FOLDERS = sorted(path for path in (ROOT / "ov_backend" / "hosts" / "webui").iterdir() if (path / "__init__.py").is_file())


def test_the_stand_in_is_recognised(host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui.detect import find_host

    assert find_host().name == "AUTOMATIC1111's WebUI"


def test_a_program_that_is_no_known_webui_is_told_so(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = importlib.import_module("ov_backend.hosts.webui.detect")
    monkeypatch.setattr(hosts, "_KNOWN", {"a1111": "modules.nowhere", "other": "no_such_package.part"})
    with pytest.raises(OVBackendError, match=r"none of modules\.nowhere, no_such_package\.part can be imported here\. Install"):
        hosts.find_host()


def test_an_old_forge_is_not_taken_for_another_webui(host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = importlib.import_module("ov_backend.hosts.webui.detect")
    there = {"modules.sd_hijack_optimizations", "modules_forge", "ldm_patched.modules.clip_model"}
    monkeypatch.setattr(hosts, "_is_there", there.__contains__)
    with pytest.raises(OVBackendError, match="or an old one"):
        hosts.find_host()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_host_is_a_small_folder_that_imports_no_other(folder: Path) -> None:
    files = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    assert sum(len(text.splitlines()) for text in files) <= 600
    nodes = [node for text in files for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    others = {f"ov_backend.hosts.webui.{other.name}" for other in FOLDERS if other != folder}
    assert not {node.module for node in nodes if any((node.module or "").startswith(other) for other in others)}
