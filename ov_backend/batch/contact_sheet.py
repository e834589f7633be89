"""Contact sheets: pages of thumbnails with what they were made from."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ov_backend.batch.row import Row
from ov_backend.core.atomic_file import atomic_write

_COLUMNS, _ROWS, _SIDE, _GAP, _LINES, _LINE = 6, 5, 176, 12, 3, 12
PAGE = _COLUMNS * _ROWS
#: Of more pictures than fit on so many pages, the first are shown.
MAX_PAGES = 100
_NAME = re.compile(r"contact-\d{3}\.jpg")


def write_sheets(folder: Path, rows: Iterable[Row]) -> list[Path]:
    """Write the pictures of rows as ``contact-001.jpg`` and so on; pictures that are not there are left out.

    Returns:
        the pages.
    """
    tiles = ((folder / name, row, i) for row in rows for i, name in enumerate(row.files) if (folder / name).is_file())
    old = present(folder)
    pages = []
    for number, page in enumerate(itertools.islice(_pages(tiles), MAX_PAGES), 1):
        path = folder / f"contact-{number:03d}.jpg"
        with atomic_write(path) as file:
            _draw(page).save(file, format="JPEG", quality=85)
        pages.append(path)
    for path in set(old) - set(pages):
        path.unlink(missing_ok=True)
    return pages


def is_complete(folder: Path, rows: Iterable[Row]) -> bool:
    """Whether a folder has as many pages as the pictures of these rows need."""
    there = ((folder / name).is_file() for row in rows for name in row.files)
    count = sum(1 for _ in itertools.islice(filter(None, there), MAX_PAGES * PAGE))
    return len(present(folder)) == -(-count // PAGE)


def present(folder: Path) -> list[Path]:
    """The pages that are in a folder."""
    return sorted(path for path in folder.glob("contact-*.jpg") if _NAME.fullmatch(path.name) and path.is_file())


def _pages(tiles: Iterator[tuple[Path, Row, int]]) -> Iterator[list[tuple[Path, Row, int]]]:
    while page := list(itertools.islice(tiles, PAGE)):
        yield page


def _draw(tiles: list[tuple[Path, Row, int]]) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    cell = _SIDE + _LINES * _LINE + _GAP
    sheet = Image.new("RGB", (_COLUMNS * (_SIDE + _GAP) + _GAP, -(-len(tiles) // _COLUMNS) * cell + _GAP), (255, 255, 255))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for i, (path, row, index) in enumerate(tiles):
        left, top = _GAP + i % _COLUMNS * (_SIDE + _GAP), _GAP + i // _COLUMNS * cell
        with contextlib.suppress(OSError, ValueError, SyntaxError), Image.open(path) as picture:  # a damaged one is left blank
            thumbnail = picture.convert("RGB")
            thumbnail.thumbnail((_SIDE, _SIDE))
            sheet.paste(thumbnail, (left + (_SIDE - thumbnail.width) // 2, top + (_SIDE - thumbnail.height) // 2))
        for line, text in enumerate(_caption(row, index)):
            draw.text((left, top + _SIDE + line * _LINE), _cut(text, font), fill=(20, 20, 20), font=font)
    return sheet


def _caption(row: Row, index: int) -> tuple[str, str, str]:
    chosen = row.parameters.of_picture(index)
    figures = f"{chosen.sampler} {chosen.steps}, CFG {chosen.guidance:g}, {row.precision}"
    return f"{row.number}: seed {chosen.seed}", row.parameters.prompt, figures


def _cut(text: str, font: Any) -> str:
    """As much of a text as fits below a thumbnail, in characters that every font has."""
    text = " ".join(text.split())[:200].encode("latin-1", "replace").decode("latin-1")
    while text and font.getlength(text) > _SIDE:
        text = text[:-1]
    return text
