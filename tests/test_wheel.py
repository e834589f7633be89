"""What pip installs: the wheel, built from the project's folder and from the source distribution, runs outside of both."""

from __future__ import annotations

import os
import shutil
import signal
import site
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("setuptools", minversion="70.1")  # older ones need the package wheel too
from tests.helpers.random_checkpoint import write_random_checkpoint

gradio = pytest.importorskip("gradio")

ROOT = Path(__file__).parents[1]
#: What the project's folder holds for a build; nothing is written there.
SOURCES = ["ov_backend", "javascript", "demo_checkpoint", "style.css", "setup.py", "pyproject.toml", "MANIFEST.in"]
SOURCES += ["README.md", "LICENSE"]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the paths and signals are POSIX's")


def run(arguments: Sequence[str | Path], folder: Path) -> str:
    """Run a program without the project's folder on its path; returns what it prints."""
    done = subprocess.run(
        [*map(str, arguments)], cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """Those of this process, without what leads to the project's folder or to the user's caches."""
    left_out = ("PYTHONPATH", "OPENVINO_TORCH_CACHE_DIR")
    return {**{name: value for name, value in os.environ.items() if name not in left_out}, "XDG_CACHE_HOME": str(folder)}


def copied(folder: Path) -> Path:
    """A copy of the project's sources."""
    folder.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def wheel(source: Path, folder: Path) -> Path:
    """Build a wheel of a folder or a source distribution, with the setuptools that are installed here."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    run([*pip, "--wheel-dir", folder, source], folder.parent)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel of the project's folder, and that of its source distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    project = copied(folder / "project")
    run([sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"], project)
    (sdist,) = folder.glob("*.tar.gz")
    return [wheel(project, folder / "direct"), wheel(sdist, folder / "of-sdist")]


@pytest.fixture(scope="module")
def python(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment: the wheel, and the packages that are installed here except for the project's folder."""
    folder = tmp_path_factory.mktemp("new") / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))  # whose own .pth files are not read
    install = [sys.executable, "-m", "pip", "--python", folder, "install", "--quiet", "--no-deps", "--no-index", wheels[0]]
    run(install, folder.parent)
    return folder / "bin" / "python"


def test_both_wheels_hold_the_same_files(wheels: list[Path]) -> None:
    contents = []
    for path in wheels:
        with zipfile.ZipFile(path) as file:
            contents.append({name: file.read(name) for name in file.namelist() if not name.endswith("RECORD")})
    assert contents[0].keys() == contents[1].keys()
    assert contents[0] == contents[1]
    assert {"ov_backend/py.typed", "ov_backend/data/style.css"} <= contents[0].keys()
    assert not [name for name in contents[0] if name.endswith(".safetensors") or name.startswith(("tests", "setup"))]


def test_the_installed_package_is_the_wheel_s(python: Path, tmp_path: Path) -> None:
    program = "import ov_backend, ov_backend.core.package_files as files; print(ov_backend.__file__, files.IS_INSTALLED)"
    file, is_installed = run([python, "-c", program], tmp_path).split()
    assert file.startswith(str(python.parents[1]))
    assert is_installed == "True"


@pytest.mark.parametrize("line", ["", "import ov_backend"])
def test_torch_compile_finds_the_backend_with_and_without_an_import(python: Path, tmp_path: Path, line: str) -> None:
    program = f"""
{line}
import torch
double = torch.compile(lambda x: x * 2, backend="openvino_fx")
assert double(torch.ones(3)).tolist() == [2, 2, 2]
import ov_backend
print(sum(values["calls"] for values in ov_backend.stats().values()))
"""
    assert run([python, "-c", program], tmp_path) == "1\n"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint; the wheel has none."""
    return write_random_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small.safetensors")


def test_the_demo_makes_its_sheet(python: Path, checkpoint: Path, tmp_path: Path) -> None:
    options = ["--checkpoint", checkpoint, "--steps", "1", "--size", "64", "--out", "sheet.png"]
    assert "Fallbacks    none" in run([python.parent / "ov-backend", "demo", *options], tmp_path)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


def test_generate_makes_pictures(python: Path, checkpoint: Path, tmp_path: Path) -> None:
    options = ["--checkpoint", checkpoint, "--steps", "1", "--size", "64", "-n", "2", "--seed", "3", "--out", "pictures"]
    assert "seed 4" in run([python.parent / "ov-backend", "generate", "a fox", *options], tmp_path)
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 2


@pytest.mark.skipif(int(gradio.__version__.split(".")[0]) < 5, reason="the standalone page needs current Gradio")
def test_the_page_is_served_with_its_scripts_and_style(python: Path, checkpoint: Path, tmp_path: Path) -> None:
    command = [python.parent / "ov-backend", "serve", checkpoint, "--port", "0", "--no-prepare"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), **output) as server:  # type: ignore[call-overload]
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "http://" in line:
                break
        assert lines, "the server has ended"
        address = next((word for word in lines[-1].split() if word.startswith("http://")), "")
        assert address, "".join(lines)
        with urllib.request.urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
        server.send_signal(signal.SIGINT)
        server.stdout.read()
        assert server.wait(60) in (0, 130)
    for name in ("openvino_view.js", "standalone/page.js"):
        assert (ROOT / "javascript" / name).read_text().strip().splitlines()[-1] in page
    assert (ROOT / "style.css").read_text().partition("{")[0].split()[-1] + " {" in page
