"""Reads the rows of a Parquet file. A few bytes can stand for gigabytes, so what a file holds is bounded before it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ov_backend.core.errors import JobError, first_line

_ROWS_AT_ONCE = 1000


@dataclass(frozen=True)
class Bounds:
    """Bounds of a file: rows, columns, and bytes once it is unpacked."""

    rows: int
    columns: int
    bytes: int


def read_parquet(path: Path, bounds: Bounds) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file by the names of its columns, without cells that are null.

    Raises:
        JobError: it is no such file, has other types than texts, numbers and lists of them, or exceeds the bounds.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise JobError([f"{path.name} is Parquet, which needs one more package: pip install pyarrow; or use CSV."]) from error
    try:
        with path.open("rb") as opened, parquet.ParquetFile(opened) as plain:
            _check_columns(path, plain.schema_arrow, bounds)
            _check_size(path, plain.metadata, bounds)
            # a text that is repeated is in memory once, until its row is read
            with parquet.ParquetFile(opened, read_dictionary=_texts(plain.schema), metadata=plain.metadata) as file:
                yield from _rows(path, file, bounds)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.strerror:  # the system's; an Arrow error has no number
            raise
        reason = first_line(error)[:200]
        raise JobError([f"{path.name} is no Parquet file that can be read ({reason}); write it again or use CSV."]) from error


def _check_columns(path: Path, schema: Any, bounds: Bounds) -> None:
    names = schema.names
    if len(names) > bounds.columns:
        raise JobError([f"{path.name} has {len(names)} columns; at most {bounds.columns} are read, so remove some."])
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise JobError([f"{path.name} has the column {repeated[:80]!r} twice; remove one of them."])
    for column in schema:
        if not _is_readable(column.type):
            expected = "it must hold texts, numbers, or lists of them"
            raise JobError([f"The column {column.name[:80]!r} of {path.name} holds {str(column.type)[:80]}; {expected}."])


def _is_readable(kind: Any) -> bool:
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        return _is_readable(kind.value_type)
    if types.is_struct(kind):  # LoRAs with their strengths
        return all(_is_readable(kind.field(i).type) for i in range(kind.num_fields))
    plain = types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean, types.is_null
    return any(is_of(kind) for is_of in plain)


def _check_size(path: Path, metadata: Any, bounds: Bounds) -> None:
    """Check the counts and sizes that the file itself tells. A list makes a row of each of its values, so these count."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [[group.column(i) for group in groups] for i in range(metadata.num_columns)]
    if max((sum(chunk.num_values for chunk in column) for column in columns), default=metadata.num_rows) > bounds.rows:
        raise JobError([f"{path.name} makes the job longer than {bounds.rows} rows; divide it into several files."])
    if sum(chunk.total_uncompressed_size for column in columns for chunk in column) > bounds.bytes:
        raise _too_large(path, bounds)


def _too_large(path: Path, bounds: Bounds) -> JobError:
    return JobError([f"{path.name} holds more than {bounds.bytes >> 20} MiB once it is unpacked; make several files of it."])


def _texts(schema: Any) -> list[str]:
    columns = [schema.column(i) for i in range(len(schema))]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _rows(path: Path, file: Any, bounds: Bounds) -> Iterator[dict[str, Any]]:
    left = bounds.bytes
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
        left -= sum(_text_bytes(column) for column in batch.columns)
        if left < 0:
            raise _too_large(path, bounds)
        for values in batch.to_pylist():
            yield _without_nulls(values)


def _without_nulls(value: Any) -> Any:
    """A value without what is null in its mappings: Parquet gives all rows all columns, and all LoRAs the names of all."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _text_bytes(array: Any) -> int:
    """The bytes of all texts in an array, each as often as it is repeated."""
    from pyarrow import compute, types

    if types.is_dictionary(array.type):
        return compute.sum(compute.binary_length(array.dictionary).cast("int64").take(array.indices)).as_py() or 0
    if types.is_list(array.type) or types.is_large_list(array.type):
        return _text_bytes(array.flatten())
    if types.is_struct(array.type):
        return sum(_text_bytes(each) for each in array.flatten())
    return int(array.nbytes)
