"""``ov_backend.batch``: the pictures of a job file, or of rows given as dicts, into a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ov_backend.batch import contact_sheet, pictures
from ov_backend.batch.cluster import LOCAL, Cluster, import_ray
from ov_backend.batch.executor import Renderer, RowResult, execute
from ov_backend.batch.job import read_job
from ov_backend.batch.job_file import MAX_ROWS, SourceRow, read_job_file
from ov_backend.batch.journal import MANIFEST, Journal, Manifest, check_folder, write_parquet
from ov_backend.batch.options import Options
from ov_backend.batch.plan import Plan, in_two_steps, ordered, summary, work
from ov_backend.batch.row import Row
from ov_backend.batch.row_files import Places
from ov_backend.batch.run import Report, Run
from ov_backend.core import devices
from ov_backend.core.amounts import counted
from ov_backend.core.errors import SettingsError, short_repr

#: A job: a job file, or rows as dicts of columns.
Rows = str | Path | Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Result:
    """What a batch has done.

    Attributes:
        made: number of pictures made in this run.
        skipped: number of pictures that were there already.
        failed: number of rows that failed; the manifest has the reasons.
        otherwise: number of made pictures that PyTorch answered in part, or another precision; the manifest says what.
        seconds: of this run.
        manifest: the journal, a line of JSON for each picture.
        sheets: pages of thumbnails.
    """

    made: int
    skipped: int
    failed: int
    otherwise: int
    seconds: float
    manifest: Path
    sheets: tuple[Path, ...]


class Batch:
    """A batch whose rows are checked.

    Args:
        rows: a job file, or rows as dicts of columns, whose paths are relative to the current folder.
        out: folder of the pictures; it is created when the batch runs.
        options: see :class:`Options`.

    Raises:
        JobError: rows are bad; its ``problems`` have a sentence for each.
        OVBackendError: an option cannot be used, or the folder holds files that are not a batch's but have the names of its own.
    """

    def __init__(self, rows: Rows, out: Path, options: Options) -> None:
        self.folder, self._options = out, options
        check_folder(out)
        options.check()
        self._settings = options.settings
        devices.check(self._settings)
        if options.address is not None:
            import_ray()
        folder = Path(rows).parent if isinstance(rows, (str, Path)) else Path()
        places = Places(folder, options.checkpoint, options.lora_dir)
        sources = read_job_file(Path(rows)) if isinstance(rows, (str, Path)) else _sources(rows)
        self.job = read_job(sources, places, self._resolver(), options.skip_bad_rows)
        self._content_of = functools.cache(pictures.sha256)

    def _resolver(self) -> Callable[[str | None], str]:
        @functools.cache
        def resolve(precision: str | None) -> str:
            settings = self._settings.replace(precision=precision or self._settings.precision)
            if settings.precision == "int8":
                what = "precision is 'int8', whose first picture would be computed in another precision"
                raise SettingsError(f"{what}; it must be one of auto, f32, bf16, f16 in a batch.")
            devices.check(settings)
            return devices.resolved_precision(settings)

        return resolve

    @functools.cached_property
    def _digests(self) -> dict[int, str]:
        """Of each row by its number what its pictures depend on; reads all files that rows name."""
        return {row.number: row.digest(self._content_of, self._settings.device) for row in self.job.rows}

    def plan(self, manifest: Manifest | None = None) -> Plan:
        """What is to be done; reads the pictures that are there."""
        manifest, digests = manifest or Manifest(self.folder), self._digests
        pending = ordered(row for row in self.job.rows if not manifest.has(row, digests[row.number]))
        done = self.job.pictures - sum(row.parameters.batch for row in pending)
        replaced = sum(manifest.outdated(row, digests[row.number]) for row in pending)
        is_other = replaced > 0 and not any(manifest.is_of(row, digests[row.number]) for row in self.job.rows)
        workers = self._options.workers
        alone = 1 if self._options.address in (None, LOCAL) else None
        processes = workers if isinstance(workers, int) else alone
        return Plan(self.job, pending, done, replaced, is_other, manifest.seconds_per_work, processes)

    def _refuse_to_replace(self, plan: Plan) -> None:
        """Raise where pictures would be replaced, unless that was asked for."""
        if not plan.replaced or self._options.replace:
            return
        if plan.is_other:
            what = f"{self.folder} holds {counted(plan.replaced, 'picture')} of another job, and none of this one"
            raise SettingsError(f"{what}; give another folder as --out, or --replace to have these replaced.")
        what = f"{self.folder} holds {counted(plan.replaced, 'picture')} of rows that have changed since"
        raise SettingsError(f"{what}; give --replace to have them made again, or another folder as --out.")

    def measured(self, plan: Plan) -> Plan:
        """A plan with an estimate from a measurement: the first picture in two steps, after one that prepares the networks."""
        if not plan.pending:
            return plan
        from ov_backend.batch.renderer import PipelineRenderer

        row = in_two_steps(plan.pending[0])
        with contextlib.closing(PipelineRenderer(self._settings)) as renderer:
            renderer.render(row)
            seconds = renderer.render(row).sampling_seconds
        return dataclasses.replace(plan, seconds_per_work=seconds / work(row))

    def run(self, report: Report = lambda event: None, renderer: Renderer | None = None) -> Result:
        """Make the pictures that are not there yet.

        Args:
            report: called with a dict for each event: "plan", "picture", "failure", "end".
            renderer: makes the pictures; on Ray each process has a copy of it. None is a :class:`PipelineRenderer`.

        Raises:
            OVBackendError: another process writes to the folder, or Ray does not answer.
            OSError: the folder cannot be written, or the disk is full.
            KeyboardInterrupt: the user has interrupted it; the same batch goes on where it was.
        """
        start = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        with Journal(self.folder) as journal:
            pictures.remove_unfinished(self.folder)
            manifest = Manifest(self.folder)
            plan = self.plan(manifest)
            self._refuse_to_replace(plan)
            manifest.remove_stale()
            report({"event": "plan", **summary(plan)})
            if plan.pending:  # a killed run leaves no pages that look as if they were its own
                for page in contact_sheet.present(self.folder):
                    pictures.remove(page)
            run = Run(manifest, journal, self._digests, report)
            with self._results(plan.pending, renderer) as results:
                run.all(plan.pending, results)
            manifest.remove_stale()
            sheets = self._sheets(manifest)
            write_parquet(self.folder)
        seconds, tally = round(time.monotonic() - start, 2), run.tally
        result = Result(tally.made, plan.skipped, tally.failed, tally.otherwise, seconds, self.folder / MANIFEST, tuple(sheets))
        report({"event": "end", **vars(result), "manifest": str(result.manifest), "sheets": [*map(str, sheets)]})
        return result

    def _sheets(self, manifest: Manifest) -> list[Path]:
        """The pages of thumbnails, without the old picture of a row that was changed and then failed."""
        if not self._options.contact_sheet:
            return []
        rows = [row for row in self.job.rows if manifest.is_of(row, self._digests[row.number])]
        if contact_sheet.is_complete(self.folder, rows):
            return contact_sheet.present(self.folder)
        return contact_sheet.write_sheets(self.folder, rows)

    @contextlib.contextmanager
    def _results(self, rows: Sequence[Row], renderer: Renderer | None) -> Iterator[Iterable[tuple[Row, RowResult]]]:
        """The rows with what became of them: of this process, or of processes on Ray if there is anything to make."""
        from ov_backend.batch.renderer import PipelineRenderer, renderer_for

        device, address, workers = self._settings.device, self._options.address, self._options.workers
        if address is None or not rows:
            own = contextlib.closing(PipelineRenderer(self._settings)) if renderer is None else contextlib.nullcontext(renderer)
            with own as here:
                yield ((row, execute(here, row, device)) for row in rows)
            return
        each = functools.partial(renderer_for, self._settings) if renderer is None else lambda processes: renderer
        count = workers if isinstance(workers, int) else None
        with contextlib.closing(Cluster(address, count, each, device, self._content_of)) as cluster:
            yield cluster.results(rows)


def _sources(rows: Iterable[Mapping[str, Any]]) -> Iterable[SourceRow]:
    if hasattr(rows, "to_dict"):
        raise SettingsError(f'rows is a {type(rows).__name__}; give its rows as dicts, rows.to_dict("records").')
    if not isinstance(rows, Iterable) or isinstance(rows, (bytes, Mapping)):
        raise SettingsError(f"rows is a {type(rows).__name__}; give the path of a job file, or a list with a dict for each row.")
    for number, values in enumerate(rows, 1):
        if isinstance(values, Mapping) and all(isinstance(name, str) for name in values):
            yield SourceRow(number, 0, {name: _as_list(value) for name, value in values.items()})
        else:
            yield SourceRow(number, problem=f"it is {type(values).__name__}; give a dict of columns")


def _as_list(value: Any) -> Any:
    """Tuples and ranges as lists, no longer than a job may be."""
    return list(value[: MAX_ROWS + 1]) if isinstance(value, (tuple, range)) else value


def batch(
    rows: Rows,
    out: str | Path,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    lora_dir: str | os.PathLike[str] | None = None,
    precision: str = "auto",
    device: str | None = None,
    low_memory: str = "auto",
    cache_dir: str | None = None,
    replace: bool = False,
    skip_bad_rows: bool = False,
    contact_sheet: bool = True,
    ray: str | None = None,
    workers: int | str | None = None,
    report: Report = lambda event: None,
) -> Result:
    """Make the pictures of a job; an interrupted or killed one goes on where it was.

    Args:
        rows: a job file (.jsonl, .csv, .parquet), or dicts of columns such as ``{"prompt": "a lighthouse", "seed": [1, 2]}``.
        out: folder of the pictures and of their manifest.
        checkpoint: see :class:`ov_backend.batch.options.Options`, as for the next ten.
        report: called with a dict for each event: "plan", "picture", "failure", "end".

    Returns:
        How many pictures were made, were there already or failed, and where the manifest is.

    Raises:
        JobError: rows are bad, found before anything runs; its ``problems`` have a sentence for each.
        OVBackendError: an option cannot be used, another process writes to the folder, pictures there would be replaced, or
            Ray cannot be used.
        OSError: the folder cannot be written, or the disk is full.
    """
    options = Options(
        checkpoint=None if checkpoint is None else _path("checkpoint", checkpoint),
        lora_dir=None if lora_dir is None else _path("lora_dir", lora_dir),
        precision=precision,
        device=device,
        low_memory=low_memory,
        cache_dir=cache_dir,
        replace=replace,
        skip_bad_rows=skip_bad_rows,
        contact_sheet=contact_sheet,
        ray=ray,
        workers=workers,
    )
    rows = _path("rows", rows) if isinstance(rows, (str, Path)) and str(rows).strip() else rows
    return Batch(rows, _path("out", out), options).run(report)


def _path(name: str, value: Any) -> Path:
    """Read a path that a program gives.

    Raises:
        SettingsError: it is none, empty, or longer than paths may be.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise SettingsError(f"{name} is {short_repr(value)}; it must be a path.")
    try:
        Path(text).lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # what reads or writes there reports all others
            raise SettingsError(f"{name} is {short_repr(value)}, which is too long for a path; give a shorter one.") from None
    return Path(text)
