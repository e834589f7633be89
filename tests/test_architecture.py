"""Who may import whom: read from the code, so that the house stays as docs/ARCHITECTURE.md draws it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ov_backend"

#: Rooms that know of nothing else in the house but errors (and each other's leaves).
LEAVES = {"errors", "version", "settings", "dtypes", "devices", "cache_key", "structure", "signature"}
LEAVES |= {"graph_store", "graph_file"}
STAGES = {"capture", "lowering", "partition", "convert", "compiled", "cpu_forms", "cpu_angles", "program", "fingerprint"}
STAGES |= {"side_effects", "integers", "fx_values", "claims", "cpu_types", "frontend", "lazy_code"}
MAY_IMPORT_OPENVINO = {"dtypes", "devices", "convert", "frontend", "compiled", "cpu_forms", "cpu_angles", "cpu_types"}
HOST = {"webui"}


def rooms() -> list[tuple[str, Path]]:
    """(room, file) for every file of the package; a folder is one room."""
    return [(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path) for path in sorted(PACKAGE.rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Every module that a file imports anywhere in it, dotted."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.update({f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""})
    return names


def own(path: Path) -> set[str]:
    """The rooms of the house that a file imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("ov_backend.")} & {room for room, _ in rooms()}


def test_the_walk_sees_the_house() -> None:
    assert {"engine", "lowering", "webui", "dtypes"} <= {room for room, _ in rooms()}
    assert "openvino" in imported(PACKAGE / "convert.py")
    assert "convert" in own(PACKAGE / "graphs.py")


@pytest.mark.parametrize("room,path", rooms(), ids=lambda value: str(value.name) if isinstance(value, Path) else None)
def test_imports_point_one_way(room: str, path: Path) -> None:
    heads = {name.split(".")[0] for name in imported(path)}
    if "openvino" in heads:
        assert room in MAY_IMPORT_OPENVINO
    if "modules" in heads:
        assert room in HOST
    assert not own(path) & HOST or room in HOST, "only the host's own folder knows the host"
    if room in LEAVES:
        assert own(path) <= LEAVES
    if room in STAGES:
        assert own(path) <= LEAVES | STAGES
    if room == "graph_store":
        assert not heads & {"torch", "openvino"}, "the store knows files, not compilers"


def attributes(path: Path) -> set[str]:
    """Every dotted attribute that a file uses, e.g. ``ov.Type.f32``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_trap_24_one_dtype_map_and_one_place_that_reads_the_environment() -> None:
    mapping = {room for room, path in rooms() if any(name.startswith("ov.Type.") for name in attributes(path))}
    assert mapping == {"dtypes"}
    readers = {room for room, path in rooms() if attributes(path) & {"os.environ.get", "os.getenv"}}
    assert readers <= {"settings", "options"}


def test_scripts_hold_one_thin_file() -> None:
    files = sorted((ROOT / "scripts").glob("*.py"))
    assert [file.name for file in files] == ["openvino_accelerate.py"]
    assert len(files[0].read_text(encoding="utf-8").splitlines()) <= 150
