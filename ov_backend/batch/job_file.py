"""Reads the rows of a job file: JSON Lines, CSV or Parquet. Nothing in it is executed, and its size is bounded."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ov_backend.batch.columns import column_of
from ov_backend.batch.parquet_file import Bounds, read_parquet
from ov_backend.core.errors import JobError, first_line, short_repr

#: Bounds of a job file: bytes, bytes of a line, rows after grids are multiplied, and columns of a row.
MAX_BYTES, MAX_LINE_BYTES, MAX_ROWS, MAX_COLUMNS = 256 << 20, 1 << 20, 250_000, 100

_KINDS = "JSON Lines (.jsonl), CSV (.csv) or Parquet (.parquet)"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row as the file has it.

    Attributes:
        number: counts the rows from 1.
        line: of the file, where it has lines, else 0.
        values: by the names of the file.
        problem: why the row cannot be read, or "".
    """

    number: int
    line: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def label(self) -> str:
        """For messages: "Row 3", and its line where that differs."""
        return f"Row {self.number}" + (f" (line {self.line})" if self.line not in (0, self.number) else "")


def read_job_file(path: Path) -> Iterator[SourceRow]:
    """The rows of a job file, one at a time.

    Raises:
        JobError: the file cannot be read, is too large, or is of another kind.
    """
    check_job_file(path)
    try:
        yield from _READERS[path.suffix.lower()](path)
    except OSError as error:
        raise JobError([f"{path} cannot be read ({error.strerror or error}); check its permissions."]) from error
    except UnicodeDecodeError:
        raise JobError([f"{path.name} is not UTF-8; write it in that encoding."]) from None


def check_job_file(path: Path) -> None:
    """Check that there is a job file of a known kind and size.

    Raises:
        JobError: there is none.
    """
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no file"
        raise JobError([f"{short_repr(str(path))} is {what}; give the path of a job file: {_KINDS}."])
    if path.suffix.lower() not in _READERS:
        raise JobError([f"{path.name} ends in {short_repr(path.suffix)}; a job file must be {_KINDS}."])
    size = path.stat().st_size
    if size > MAX_BYTES:
        most = f"at most {MAX_BYTES >> 20} MiB are read, so make several files of it"
        raise JobError([f"{path.name} has {size >> 20} MiB; {most}."])


def _read_json_lines(path: Path) -> Iterator[SourceRow]:
    number = line = 0
    with path.open("rb") as file:
        while data := file.readline(MAX_LINE_BYTES + 1):
            line += 1
            if len(data) > MAX_LINE_BYTES:
                raise JobError([f"Line {line} of {path.name} is longer than {MAX_LINE_BYTES >> 10} KiB; make more rows of it."])
            text = data.decode("utf-8-sig" if line == 1 else "utf-8").strip()
            if text:
                number += 1
                yield _json_row(number, line, text)


def _json_row(number: int, line: int, text: str) -> SourceRow:
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except _Repeated as error:
        return SourceRow(number, line, problem=f"it has {str(error)!r} twice; leave one of them")
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else first_line(error)
        is_part = text[0] in "[]" or (text[0] == "{" and text[-1] != "}") or getattr(error, "msg", "") == "Extra data"
        hint = "; a job file has one object on each line, without a list around them" if is_part else ""
        return SourceRow(number, line, problem=f"it is no JSON ({reason}){hint}; correct this line")
    if not isinstance(value, dict):
        return SourceRow(number, line, problem=f'it is {text[:40]!r}; write an object, {{"prompt": "a lighthouse"}}')
    return SourceRow(number, line, value)


class _Repeated(ValueError):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1)[:80])
    return values


def _read_csv(path: Path) -> Iterator[SourceRow]:
    with path.open("r", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(_bounded_lines(file, path), strict=True)
        header: list[str] = []
        number = 0
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                number += bool(header)
                problem = f"it is no CSV ({first_line(error)}); correct the quotes and commas of this line"
                yield SourceRow(number or 1, reader.line_num, problem=problem)
                return  # what follows cannot be told apart
            if not header:
                header = _checked_header(path, cells)
            elif any(cell.strip() for cell in cells):  # an empty line is none, nor is one of commas as spreadsheets write it
                number += 1
                yield _csv_row(number, reader.line_num, header, cells)


def _bounded_lines(file: io.TextIOBase, path: Path) -> Iterator[str]:
    line = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        line += 1
        if len(text) > MAX_LINE_BYTES:
            raise JobError([f"Line {line} of {path.name} is longer than {MAX_LINE_BYTES >> 10} KiB; make it shorter."])
        yield text


def _checked_header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if not any(names):
        raise JobError([f"{path.name} begins with an empty line; write the names of the columns there, as prompt,seed."])
    if not any(column_of(name) for name in names):
        what = f"The first line of {path.name} holds {short_repr(','.join(names), 80)}, where no name of a column is"
        raise JobError([f"{what}; write the names there, and divide columns by commas, as prompt,seed."])
    if "" in names:
        raise JobError([f"Column {names.index('') + 1} of {path.name} has no name; write one or remove the column."])
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise JobError([f"{path.name} has the column {repeated[:80]!r} twice; remove one of them."])
    return names


def _csv_row(number: int, line: int, header: list[str], cells: list[str]) -> SourceRow:
    if len(cells) != len(header):
        what = f"it has {len(cells)} cells, and the first line has {len(header)} names"
        return SourceRow(number, line, problem=f'{what}; write "..." around texts with commas')
    return SourceRow(number, line, {name: cell for name, cell in zip(header, cells) if cell.strip()})


def _read_parquet(path: Path) -> Iterator[SourceRow]:
    for number, values in enumerate(read_parquet(path, Bounds(MAX_ROWS, MAX_COLUMNS, MAX_BYTES)), 1):
        yield SourceRow(number, 0, values)


_READERS = {".jsonl": _read_json_lines, ".ndjson": _read_json_lines, ".csv": _read_csv, ".parquet": _read_parquet}
