"""The documents: links and paths lead to files, every page can be reached, and the tables agree with the package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import MAY_IMPORT

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ov_backend"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(ROOT / name / "README.md" for name in ("training", "demo_checkpoint")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "reference" / "rewrites.md",
]
#: ``[text](target)``, ``![text](target)`` and ``<img src="target">``.
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
PATH = re.compile(r"[\w./-]+\.py")
#: A span of code begins and ends with equally many backticks.
SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
#: Paths are written from the repository's root, from the package, from the tests or from the page's own folder.
FOLDERS = (ROOT, PACKAGE, ROOT / "tests")
#: Words of an earlier layout, and idioms that a reader who learnt English elsewhere stumbles over.
AVOIDED = re.compile(
    r"\b(rehears\w*|t(ake[ns]?|aking|ook) apart|le(t|ts|tting) go of|(held|holds?) against|gone round|made good|in a word|whoever"
    r"|stand-ins?|in reach|hazards?|claims|desk|studio|baked|the house|the one of this process)\b",
    re.IGNORECASE,
)

by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def links(page: Path) -> list[str]:
    """The targets of a page's links, without those to other sites."""
    targets = [first or second for first, second in LINK.findall(page.read_text(encoding="utf-8"))]
    return [target for target in targets if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """A page without its code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("    "))


def spans_over_lines(text: str) -> list[str]:
    """The spans of code that begin on one line and end on another, as a rewrap leaves them; nobody can search for these."""
    return [span for _, span in SPAN.findall(text) if "\n" in span]


def code_paths(page: Path) -> Iterator[str]:
    """Every ``path/file.py`` that a page names in its text."""
    for span in re.findall(r"`([^`]+)`", prose(page)):
        yield from (word for word in span.split() if PATH.fullmatch(word))


def levels() -> dict[str, int]:
    """The level of every package in the table of docs/ARCHITECTURE.md."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    names = [(name.strip("/").removesuffix(".py"), int(level)) for level, cell in rows for name in re.findall(r"`([^`]+)`", cell)]
    return dict(names)


@by_name
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@by_name
def test_every_code_path_exists(page: Path) -> None:
    missing = [path for path in code_paths(page) if not any((folder / path).exists() for folder in (*FOLDERS, page.parent))]
    assert not missing


@by_name
def test_every_span_of_code_is_on_one_line(page: Path) -> None:
    assert not spans_over_lines(prose(page))


def test_a_span_over_two_lines_is_found() -> None:
    assert spans_over_lines("`a` and `b\nc` and ``d ` e`` and `f`") == ["b\nc"]


def test_every_page_is_linked_from_the_readme_and_those_outside_docs_from_the_architecture_at_least() -> None:
    from_readme, from_architecture = (
        {(page.parent / link.partition("#")[0]).resolve() for link in links(page)} for page in (ROOT / "README.md", ARCHITECTURE)
    )
    assert set((ROOT / "docs").glob("*.md")) <= from_readme
    assert set(PAGES) - {ROOT / "README.md"} <= from_readme | from_architecture


def test_every_image_is_shown_on_a_page() -> None:
    linked = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    assert set((ROOT / "docs" / "images").iterdir()) <= linked


def test_the_architecture_names_every_package() -> None:
    assert set(levels()) == set(MAY_IMPORT) - {"__init__", "__main__"}


def test_imports_lead_from_a_higher_level_of_the_architecture_to_a_lower_one() -> None:
    level = levels()
    for name, targets in MAY_IMPORT.items():
        higher = {target for target in targets - {name} if name in level and level[target] >= level[name]}
        assert not higher, f"{name} may import {', '.join(sorted(higher))}"


@by_name
def test_the_documents_avoid_private_words(page: Path) -> None:
    assert not [match.group() for match in AVOIDED.finditer(prose(page))]
