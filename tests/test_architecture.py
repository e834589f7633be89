"""Who may import whom, read from the code: the table that docs/ARCHITECTURE.md draws, and no circle anywhere."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ov_backend"

#: What every package may import; it imports none of them.
BASE = {"core", "version"}
STAGES = {"memory", "store", "guards", "trace/capture", "trace/lowering", "trace/partitioning"}
STAGES |= {"model/conversion", "model/transformations", "model/runtime"}
CORE = STAGES | {"model", "engine"}
#: What each package may import beside the base and itself.
MAY_IMPORT: dict[str, set[str]] = {
    **{name: set() for name in BASE},
    "memory": set(),
    "store": {"memory"},
    "guards": {"memory"},
    "trace": set(),
    "trace/lowering": set(),
    "trace/partitioning": set(),
    "trace/capture": {"guards", "trace/lowering"},
    "model/conversion": set(),
    "model/transformations": set(),
    "model/runtime": {"memory", "model/conversion", "model/transformations", "trace/partitioning"},
    "model": STAGES,
    "int8": {"store", "model/transformations"},
    "engine": STAGES | {"model", "int8"},
    "torch_compile/report": STAGES | {"model"},
    "torch_compile": CORE | {"torch_compile/report"},
    "pipelines": {"engine", "model/runtime", "trace/capture"},
    "checkpoint": set(),
    "ui": {"engine", "model/runtime", "pipelines", "store"},
    "hosts": set(),
    "hosts/standalone": {"checkpoint", "engine", "memory", "pipelines", "ui"},
    "hosts/webui": {"engine", "guards", "memory", "pipelines", "ui"},
    "batch": {"checkpoint", "engine", "hosts/standalone", "memory", "pipelines", "store", "ui"},
    "cli": {"batch", "checkpoint", "hosts/standalone", "int8", "memory", "model", "pipelines", "store", "torch_compile"}
    | {"torch_compile/report", "ui"},
    "__init__": {"batch", "pipelines", "torch_compile"},
    "__main__": {"cli"},
}
MAY_IMPORT_OPENVINO = {"core", "model/conversion", "model/transformations", "model/runtime"}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """The dotted name of a file, ``ov_backend.store.store``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of_name(name: str) -> str:
    """The package of a module: ``engine``, or ``model/runtime``, which is a package in another."""
    parts = name.split(".")[1:]
    inner = "/".join(parts[:2])
    return inner if inner in MAY_IMPORT else parts[0] if parts else "__init__"


def package_of(path: Path) -> str:
    """The package, or the top-level module, that a file belongs to."""
    return package_of_name(module_name(path))


MODULES = {module_name(path): path for path in FILES}


def imported(path: Path, everywhere: bool = True) -> set[str]:
    """Every dotted name that a file imports; those under TYPE_CHECKING too. Not ``everywhere``: at the top level only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree) if everywhere else _top_level(tree.body):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.update({f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""})
    return names


def _top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    found = []
    for node in body:
        found.append(node)
        if isinstance(node, (ast.If, ast.Try)):
            found += _top_level(node.body)
    return found


def imported_modules(path: Path, everywhere: bool = True) -> set[str]:
    """The modules of this package that a file imports, each by its own name, a name in a package's ``__init__`` by that."""
    names = {name for name in imported(path, everywhere) if name in MODULES}
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)} - {"ov_backend"}


def lazily_imported(path: Path) -> set[str]:
    """The modules of this package that a file names in strings, for ``import_module``."""
    strings = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    return {text for text in strings if isinstance(text, str) and text in MODULES}


def test_the_table_names_every_package() -> None:
    assert {package_of(path) for path in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path))
def test_a_package_imports_only_what_the_table_allows(path: Path) -> None:
    own = package_of(path)
    packages = {package_of_name(name) for name in imported_modules(path) | lazily_imported(path) if name != "ov_backend"}
    refused = packages - MAY_IMPORT[own] - BASE - {own}
    assert not refused, f"{path.relative_to(ROOT)} imports {', '.join(sorted(refused))}"


def test_the_table_has_no_circle() -> None:
    order = list(TopologicalSorter({name: allowed - {name} for name, allowed in MAY_IMPORT.items()}).static_order())
    assert order.index("guards") < order.index("trace/capture") < order.index("model") < order.index("engine")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """A package's ``__init__`` may gather names of its modules, which import each other by their own names."""
    graph = {}
    for name, path in MODULES.items():
        targets = imported_modules(path)
        own_package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        graph[name] = targets - {name, own_package}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


def test_a_planted_circle_is_found() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path))
def test_openvino_the_webui_and_ray_are_imported_in_few_packages(path: Path) -> None:
    heads = {name.split(".")[0] for name in imported(path)}
    assert "openvino" not in heads or package_of(path) in MAY_IMPORT_OPENVINO
    assert "modules" not in heads or package_of(path) == "hosts/webui"
    assert "ray" not in heads or module_name(path) == "ov_backend.batch.cluster"


def test_a_host_is_one_short_protocol_and_another_webui_one_folder() -> None:
    assert len((PACKAGE / "ui" / "host.py").read_text(encoding="utf-8").splitlines()) <= 120
    for name in ("forge", "reforge"):
        files = (PACKAGE / "hosts" / "webui" / name).glob("*.py")
        assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 600


def test_the_store_knows_files_and_not_compilers() -> None:
    for name in ("store", "entry_file", "key"):
        heads = {each.split(".")[0] for each in imported(PACKAGE / "store" / f"{name}.py")}
        assert not heads & {"torch", "openvino"}


def attributes(path: Path) -> set[str]:
    """Every dotted attribute that a file uses, e.g. ``ov.Type.f32``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_there_is_one_map_of_dtypes_and_one_place_that_reads_the_environment() -> None:
    assert {package_of(path) for path in FILES if any(name.startswith("ov.Type.") for name in attributes(path))} == {"core"}
    assert {package_of(path) for path in FILES if attributes(path) & {"os.environ.get", "os.getenv"}} <= {"core"}


#: Replaced for the whole process, these would change torch or the host behind everybody's back.
PROCESS_WIDE = re.compile(r"^(torch|sys|builtins|os|modules)\.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_name(path))
def test_nothing_of_torch_or_python_is_replaced(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        for target in targets:
            if isinstance(target, ast.Attribute):
                assert not PROCESS_WIDE.match(ast.unparse(target)), f"{path}:{node.lineno} replaces {ast.unparse(target)}"


COMPUTING = BASE | CORE | {"torch_compile", "torch_compile/report", "pipelines"}


@pytest.mark.parametrize("path", [path for path in FILES if package_of(path) in COMPUTING])
def test_what_catches_any_exception_asks_whose_it_is(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught = {each.id for each in ast.walk(node.type) if isinstance(each, ast.Name)}
            asks = re.search(r"pass_on_signals\(|is_failure\(|is_of_callback\(|raise$", ast.unparse(node), re.MULTILINE)
            assert asks or not caught & {"Exception", "RuntimeError"}, f"{path}:{node.lineno} may swallow the program's exception"


def test_scripts_hold_one_thin_file() -> None:
    files = sorted((ROOT / "scripts").glob("*.py"))
    assert [file.name for file in files] == ["openvino_accelerate.py"]
    assert len(files[0].read_text(encoding="utf-8").splitlines()) <= 150


def test_tests_stand_in_folders_named_like_the_packages() -> None:
    packages = {path.relative_to(PACKAGE).parts[0] for path in FILES}
    beside = {"helpers", "integration", "javascript", "matrix", "soundness", "training"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - beside <= packages, "a folder of tests is named after no package"
