"""Each marked table, number and plot of the documents is what the files of runs give, and a file says what it is of."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import figures, results, tables
from benchmarks.figures import MARK, ROOT, made
from benchmarks.plot import Line, plot
from benchmarks.results import RESULTS, Machine, Run, committed_blobs, git, sources, without_unit

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = sorted(RESULTS.glob("*.json"))
#: Headings of docs/measurements.md and docs/peers.md whose tables no benchmark makes.
TYPED = {"peers.md: Other ways to run Stable Diffusion on a CPU"}
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
OFF = re.compile(r"<!-- figures off: ([^>]+?) -->.*?<!-- end -->", re.DOTALL)

MACHINE = Machine("Intel(R) Xeon(R) Processor @ 2.60GHz", 16, 128, ("AMX", "bf16", "VNNI", "AVX-512", "AVX2"))
STEPS = {"PyTorch f32": {"first_call_s": 1.9, "step_s": 1.8046, "slowest_step_s": 1.91, "relative_error": 0.0}}
VERSIONS = {"torch": "2.13.0", "openvino": "2026.4.1"}
RUN = Run("precisions", (), "a" * 40, "b" * 64, "2026-11-28", MACHINE, VERSIONS, (0.1, 1.2), STEPS)
PAGE = "# A page\n\n<!-- figures: precisions intel-amx-16 -->\n| typed | 1.70 |\n<!-- end -->\nEnd.\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "README.md").write_text(PAGE)
    return tmp_path


def filled(root: Path) -> str:
    """The README with its marks filled."""
    return made(root, root)[root / "README.md"]


def test_the_documents_are_what_the_files_of_runs_give() -> None:
    differing = [path.name for path, text in made().items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    assert not differing, "run make figures"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_names_its_machine_date_and_a_commit_that_has_its_sources(path: Path) -> None:
    run = Run.read(path)
    assert path.stem == run.name
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", run.date)
    assert run.machine.cpu
    assert run.machine.cores
    assert {"python", "torch", "openvino"} <= run.versions.keys()
    assert not list(without_unit(run.figures))
    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("the commits before this one are not here")
    assert sources(committed_blobs(run.commit)) == run.sources, "no commit has the sources that were measured"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_comment_belongs_to_a_mark_and_a_mark_that_waits_could_be_filled(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    marks = [match.group() for match in (*MARK.finditer(text), *OFF.finditer(text))]
    assert len(COMMENT.findall(text)) == 2 * len(marks)
    assert all("\n" in mark or not re.search(f"^{re.escape(mark)}", text, re.MULTILINE) for mark in marks), "it begins a line"
    for match in OFF.finditer(text):
        figures.content(match.group(1), figures.Files(tmp_path))


def test_a_file_is_shown_on_a_page() -> None:
    shown = figures.Files(RESULTS)
    for page in PAGES:
        for pattern in (MARK, OFF):
            for match in pattern.finditer(page.read_text(encoding="utf-8")):
                figures.content(match.group(1), files := figures.Files(RESULTS))
                shown.used |= files.used
    assert {path.stem for path in FILES} == shown.used.keys()


@pytest.mark.parametrize("name", ["measurements.md", "peers.md"])
def test_a_table_of_measurements_has_a_mark(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    sections = re.split(r"^#+ ", OFF.sub("", MARK.sub("", text)), flags=re.MULTILINE)[1:]
    typed = {f"{name}: {section.splitlines()[0]}" for section in sections if re.search(r"^\|.*\d", section, re.MULTILINE)}
    assert typed <= TYPED


def test_a_table_is_filled_with_machine_versions_and_commit(root: Path) -> None:
    RUN.write(root)
    text = filled(root)
    assert "| PyTorch f32 | 1.90 | 1.80 | 1.91 | - |" in text
    machine = "16 cores of an Intel Xeon with AMX (torch 2.13.0, OpenVINO 2026.4.1)"
    assert f"{machine}; load 0.1 to 1.2; 2026-11-28, commit aaaaaaaaa." in text.replace("\n", " ")
    assert "typed" not in text
    (root / "README.md").write_text(text)
    assert filled(root) == text, "a second time leaves no difference"


def test_a_figure_that_was_typed_is_replaced_and_one_without_a_run_is_not_measured(root: Path) -> None:
    RUN.write(root)
    text = filled(root)
    (root / "README.md").write_text(text.replace("1.80", "1.10"))
    assert filled(root) == text
    (root / "README.md").write_text(PAGE.replace("precisions intel", "limited intel"))
    assert "| Intel, AMX, 16 cores | 1.80 | not measured | not measured | not measured |" in filled(root)


def test_a_figure_in_a_sentence_is_filled_with_its_unit(root: Path) -> None:
    RUN.write(root)
    step = "<!-- figures: value precisions-intel-amx-16 PyTorch f32/step_s -->9 h<!-- end -->"
    (root / "README.md").write_text(f"It takes {step} on <!-- figures: machine precisions-intel-amx-16 -->mine<!-- end -->.")
    assert re.sub("<!--.*?-->", "", filled(root)) == "It takes 1.80 s on 16 cores of an Intel Xeon with AMX."


def changed_by_hand(fields: dict[str, Any]) -> None:
    fields["figures"]["PyTorch f32"]["step_s"] = 1.1


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda fields: fields.pop(name)


NEEDED = ("commit", "machine", "date", "load")


@pytest.mark.parametrize(
    ("change", "said"), [(changed_by_hand, "was changed after"), *((without(name), f"has no {name}") for name in NEEDED)]
)
def test_a_file_that_was_changed_is_refused(change: Callable[[dict[str, Any]], None], said: str, root: Path) -> None:
    path = RUN.write(root)
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=said):
        made(root, root)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"commit": "c" * 40 + "-dirty"}, "changes that are in no commit"),
        ({"arguments": ("--tiny",)}, "small networks"),
    ],
)
def test_a_run_that_is_fit_for_no_document_is_refused(changes: dict[str, Any], said: str, root: Path) -> None:
    dataclasses.replace(RUN, **changes).write(root)
    with pytest.raises(ValueError, match=said):
        made(root, root)


def test_a_table_of_runs_of_different_commits_is_refused(root: Path) -> None:
    RUN.write(root)
    dataclasses.replace(RUN, commit="c" * 40, machine=dataclasses.replace(MACHINE, limit="AVX2_VNNI")).write(root)
    (root / "README.md").write_text(PAGE.replace("precisions intel-amx-16", "limited intel-amx-16 intel-avx2-vnni-16"))
    with pytest.raises(ValueError, match="of different commits"):
        made(root, root)


def test_a_plot_is_made_from_a_file_and_the_same_each_time(root: Path) -> None:
    bounded = {"bounded": {"series_mib": [2048, 4096, 3072], "before_mib": 1024}}
    dataclasses.replace(RUN, benchmark="lifetimes", figures=bounded).write(root)
    (root / "README.md").write_text("<!-- figures: plot lifetimes intel-amx-16 -->\n<!-- end -->")
    svg = made(root, root)[root / "docs" / "images" / "lifetimes.svg"]
    assert "16 cores of an Intel Xeon with AMX" in svg
    assert svg == made(root, root)[root / "docs" / "images" / "lifetimes.svg"]


def test_a_plot_of_large_numbers_has_a_few_marks() -> None:
    assert 5 < plot("a plot", ["1"], [Line("a", "#000000", [(1, 90_000.0)])]).count("<text") < 14


def test_a_figure_without_a_unit_in_its_name_is_refused() -> None:
    assert list(without_unit({"a": {"step_s": [1.0, 2.0]}, "wait_s": {"at once": 1}, "b": [{"peak": 3}], "ok": True})) == [
        "figures.b.0.peak"
    ]
    with pytest.raises(ValueError, match=r"no unit in the name of figures\.step"):
        RUN.ends({"step": 1.0}, "")


def test_a_commit_is_given_where_there_is_no_git_and_the_sources_are_those_that_git_has(monkeypatch: pytest.MonkeyPatch) -> None:
    name = git("rev-parse", "HEAD").strip()
    if name:
        measured = sources(committed_blobs(name))
        assert results.commit(measured) == name
        assert results.commit("other sources") == f"{name}-dirty"
    monkeypatch.setattr(results, "git", lambda *_: "")
    monkeypatch.setenv("COMMIT", "typed")
    with pytest.raises(ValueError, match="set COMMIT to the 40 digits"):
        dataclasses.replace(RUN, commit=results.commit("")).ends({}, "")
    monkeypatch.setenv("COMMIT", "d" * 40)
    assert results.commit("") == "d" * 40


@pytest.mark.parametrize(
    ("machine", "slug", "text"),
    [
        (MACHINE, "intel-amx-16", "16 cores of an Intel Xeon with AMX"),
        (
            dataclasses.replace(MACHINE, limit="AVX2_VNNI"),
            "intel-avx2-vnni-16",
            "16 cores of an Intel Xeon limited to AVX2 with VNNI",
        ),
        (Machine("AMD EPYC", 2, 24, ("bf16", "AVX2")), "amd-bf16-2", "2 cores of an AMD EPYC with bf16, without AMX"),
        (
            Machine("AMD EPYC 9B14 96-Core Processor", 2, 24, ("bf16",), threads="1"),
            "amd-bf16-2-1-threads",
            "2 cores of an AMD EPYC 9B14 with bf16, without AMX, 1 threads",
        ),
        (
            Machine("13th Gen Intel(R) Core(TM) i7-13700H", 20, 16, ("VNNI", "AVX2")),
            "intel-vnni-20",
            "20 cores of an Intel Core i7-13700H with VNNI, without AMX",
        ),
    ],
)
def test_a_machine_is_named_by_what_linux_says_of_it(machine: Machine, slug: str, text: str) -> None:
    assert (machine.slug, machine.text) == (slug, text)


@pytest.mark.parametrize(
    ("slug", "head"),
    [
        ("intel-avx2-vnni-16", "Intel, limited to AVX2 with VNNI, 16 cores"),
        ("amd-bf16-2-1-threads", "AMD, AVX-512 with bf16, 2 cores, 1 threads"),
        ("intel-avx-512-8", "Intel, AVX-512, 8 cores"),
    ],
)
def test_a_machine_heads_a_column_by_the_name_of_its_file(slug: str, head: str) -> None:
    assert tables.machine(slug) == head
