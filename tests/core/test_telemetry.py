"""Nothing of this project starts telemetry: a fresh process asks for no name and leaves nothing in the home folder."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ov_backend.core.settings import _NO_ANALYTICS
from ov_backend.core.telemetry import absent
from tests.helpers.extent import only_in_full, some
from tests.test_architecture import FILES, PACKAGE

ROOT = Path(__file__).parents[2]
#: Watches from the first line on. A child process that is started inherits the watch, because it starts with the same module.
WATCH = """
import os, socket, sys, atexit
from pathlib import Path
_log = Path(os.environ["WATCHED"])
def _refuse(name):
    def lookup(*args, **kwargs):
        with _log.open("a") as file:
            file.write(f"{name} {args[:1]}\\n")
        raise OSError("no network")
    return lookup
for _name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex"):
    setattr(socket, _name, _refuse(_name))
_connect = socket.socket.connect
def _watched(self, address):
    if self.family != socket.AF_UNIX:
        _refuse("connect")(address)
    return _connect(self, address)
socket.socket.connect = _watched
"""
USE = """
import torch, ov_backend
from ov_backend.core import devices
model = torch.nn.Linear(3, 3)
with torch.no_grad(), ov_backend.accelerate({"net": model}):
    model(torch.zeros(1, 3))
torch.compile(lambda x: x + 1, backend="openvino_fx")(torch.zeros(3))
assert devices.list_devices()
"""
COMMAND = "import sys; from ov_backend.cli.main import main; assert main({!r}) == 0"
SERVE = """
import pathlib, sys
from ov_backend.hosts.standalone import serve
from fastapi.testclient import TestClient
app = serve.application(serve.load(serve.Options(out=pathlib.Path("out"), cache_dir="graphs")))
with TestClient(app, base_url="http://127.0.0.1") as client:
    assert client.get("/").status_code == 200
    assert client.get("/openvino/devices").status_code == 200
import gradio.analytics
assert not gradio.analytics.analytics_enabled()
"""
#: What the page does with Gradio, in a command that has not come to PyTorch yet.
GRADIO = """
import sys
sys.argv[0] = "ov-backend"
import ov_backend.hosts.standalone
assert "torch" not in sys.modules
import gradio, gradio.analytics
assert not gradio.analytics.analytics_enabled()
with gradio.Blocks():
    gradio.Textbox()
"""
LATER = """
import ov_backend.core.devices, sys
assert "openvino_telemetry" not in sys.modules
import openvino_telemetry
assert openvino_telemetry.Telemetry
"""


def watched(program: str, folder: Path, **environment: str) -> None:
    """Run a program in a fresh process with a home of its own; it must look up nothing and leave nothing of others there."""
    home, site = folder / "home", folder / "site"
    home.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(WATCH)
    kept = {name: value for name, value in os.environ.items() if name not in {"CI", "TF_BUILD", "JENKINS_URL", *_NO_ANALYTICS}}
    variables = {"HOME": str(home), "USERPROFILE": str(home), "XDG_CACHE_HOME": str(folder / "cache")}
    variables["WATCHED"] = str(folder / "log")
    paths = os.pathsep.join([str(site), str(ROOT)])
    child = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**kept, **variables, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    log = folder / "log"
    assert not log.exists(), log.read_text()
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_using_a_network_asks_for_no_name_and_writes_nothing_home(tmp_path: Path) -> None:
    watched(USE, tmp_path)


@pytest.mark.parametrize("arguments", some([["devices"]], [["devices"], ["cache", "info"]]), ids=lambda arguments: arguments[0])
def test_a_command_asks_for_no_name(tmp_path: Path, arguments: list[str]) -> None:
    watched(COMMAND.format(arguments), tmp_path)


def test_gradio_asks_for_no_name_in_a_command(tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    watched(GRADIO, tmp_path, MPLCONFIGDIR=str(tmp_path / "matplotlib"))


@only_in_full
def test_the_standalone_page_asks_for_no_name(tmp_path: Path) -> None:
    gradio = pytest.importorskip("gradio")
    if int(gradio.__version__.split(".")[0]) < 5:
        pytest.skip("the standalone page needs current Gradio")
    watched(SERVE, tmp_path, MPLCONFIGDIR=str(tmp_path / "matplotlib"))


def test_a_watched_process_that_asks_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"getaddrinfo \('nowhere\.example',\)"):
        watched("import socket\ntry: socket.getaddrinfo('nowhere.example', 80)\nexcept OSError: pass", tmp_path)


def test_openvino_itself_would_write_into_the_home_folder(tmp_path: Path) -> None:
    if importlib.util.find_spec("openvino_telemetry") is None:
        pytest.skip("OpenVINO's telemetry is not installed here")
    with pytest.raises(AssertionError):
        watched("import openvino", tmp_path)


@only_in_full
def test_others_find_the_telemetry_package_as_before(tmp_path: Path) -> None:
    if importlib.util.find_spec("openvino_telemetry") is None:
        pytest.skip("OpenVINO's telemetry is not installed here")
    watched(LATER, tmp_path)


def test_an_absent_package_is_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = ModuleType("some_package"), ModuleType("some_package.part")
    monkeypatch.setitem(sys.modules, "some_package", whole)
    monkeypatch.setitem(sys.modules, "some_package.part", part)
    for name in ("some_package", "some_package.part"):
        with absent("some_package"), pytest.raises(ImportError):
            importlib.import_module(name)
    assert (sys.modules["some_package"], sys.modules["some_package.part"]) == (whole, part)


def test_every_file_that_imports_openvino_comes_after_the_guard() -> None:
    """A package's ``__init__`` runs before its files, so one line in it covers all of them."""
    for path in FILES:
        names = _imports_in_order(path)
        at = next((i for i, name in enumerate(names) if name.split(".")[0] == "openvino"), None)
        if at is None:
            continue
        init = path.parent / "__init__.py"
        covered = path.parent != PACKAGE and "ov_backend.core.telemetry" in _imports_in_order(init)
        assert "ov_backend.core.telemetry" in names[:at] or covered, path


def _imports_in_order(path: Path) -> list[str]:
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names
