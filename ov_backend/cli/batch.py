"""``python -m ov_backend batch``: the pictures of a job file."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ov_backend.batch.job_file import check_job_file
from ov_backend.batch.journal import check_folder
from ov_backend.batch.options import Options
from ov_backend.cli import arguments
from ov_backend.core import interrupts
from ov_backend.core.amounts import counted
from ov_backend.core.errors import JobError, OVBackendError, SettingsError
from ov_backend.core.settings import without_ray_messages

if TYPE_CHECKING:
    from ov_backend.batch.api import Batch
    from ov_backend.batch.plan import Plan

_GROUPS_SHOWN = 20


def add(commands: Any) -> None:
    """Add the subcommand to the command line."""
    text = "Make the pictures of a job file; an interrupted or killed run goes on where it was."
    parser = arguments.add_command(commands, "batch", run, text)
    what = "a file with a picture in each row: JSON Lines (.jsonl), CSV (.csv) or Parquet (.parquet)"
    parser.add_argument("jobs", type=arguments.file, metavar="JOBS", help=what)
    what = "folder of the pictures and their manifest"
    parser.add_argument("--out", type=arguments.folder, required=True, metavar="FOLDER", help=what)
    what = f"of rows that name none: {arguments.CHECKPOINT_HELP}; default: the project's own"
    parser.add_argument("--checkpoint", type=arguments.file, metavar="FILE", help=what)
    what = "folder of LoRAs, default: the job file's folder, and the folder lora beside a checkpoint"
    parser.add_argument("--lora-dir", type=arguments.folder, metavar="FOLDER", help=what)
    arguments.add_device_options(parser, arguments.UNCALIBRATED)
    arguments.add_cache_dir(parser)
    what = "make the pictures in processes on Ray: the address of a cluster as HOST:PORT, auto for one that runs here, or local"
    parser.add_argument("--ray", metavar="ADDRESS", help=what)
    what = "number of these processes, on this machine where --ray is not given; default, or auto: one for each machine"
    parser.add_argument("--workers", type=_workers, metavar="N", help=what)
    what = "replace pictures in the folder that are of other values: of another job, or of rows that have changed"
    parser.add_argument("--replace", action="store_true", help=what)
    parser.add_argument("--skip-bad-rows", action="store_true", help="make the pictures of the other rows")
    parser.add_argument("--dry-run", action="store_true", help="check the job, and say what would run in which order")
    what = "with --dry-run: make the first picture in two steps, for an estimate of the time"
    parser.add_argument("--measure", action="store_true", help=what)
    parser.add_argument("--no-contact-sheet", action="store_true", help="draw no pages of thumbnails at the end")


def run(options: argparse.Namespace) -> int:
    """Make the pictures; the exit code is 0, or 1 where rows failed or were left out, or 2 where rows are bad."""
    settings = arguments.settings_of(options)  # refuses what makes no sense before packages are imported
    arguments.check_uncalibrated(settings)
    if options.measure and not options.dry_run:
        raise SettingsError("--measure goes with --dry-run; give both or neither.")
    arguments.check_folder(options.out, "--out")
    names = ("checkpoint", "lora_dir", "precision", "device", "low_memory", "ray", "workers", "replace", "skip_bad_rows")
    given = {name: getattr(options, name) for name in names}
    chosen = Options(**given, cache_dir=settings.cache_dir, contact_sheet=not options.no_contact_sheet)
    chosen.check()
    check_folder(options.out)
    check_job_file(options.jobs)
    arguments.check_device(settings)
    from ov_backend.batch.api import Batch

    without_ray_messages()
    interrupts.install_for_termination()
    with interrupts.work():
        try:
            batch = Batch(options.jobs, options.out, chosen)
        except JobError as error:
            _print_problems(error.problems)
            return 2
        _print_problems(batch.job.problems)
        return _dry_run(batch, options) if options.dry_run else _run(batch, options.json)


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print(" ".join(problem.split()), file=sys.stderr)


def _run(batch: Batch, as_json: bool) -> int:
    with BatchProgress(as_json) as progress:
        try:
            result = batch.run(progress.report)
        except KeyboardInterrupt:
            progress.close()
            print(f"{progress.count} Run the same command again to go on.", file=sys.stderr)
            raise
        except OSError as error:
            what = f"A file in {batch.folder} cannot be written ({error.strerror or error})"
            advice = "check the disk, then run the same command again to go on"
            raise OVBackendError(f"{progress.count} {what}; {advice}.") from error
    if not as_json:
        print(progress.count)
        print(f"The pictures and {result.manifest.name} are in {batch.folder}.")
    return 1 if result.failed or batch.job.problems else 0


def _dry_run(batch: Batch, options: argparse.Namespace) -> int:
    from ov_backend.batch.plan import groups, summary

    plan = batch.plan()
    if options.measure:
        plan = batch.measured(plan)
    if options.json:
        told = [{"label": each.label, "rows": len(each.rows), "pictures": each.pictures} for each in groups(plan.pending)]
        arguments.print_json({**summary(plan), "groups": told})
    else:
        print(text_of(plan))
    return 0


def text_of(plan: Plan) -> str:
    """What would run, in which order."""
    from ov_backend.batch.plan import groups, summary

    job, found = plan.job, groups(plan.pending)
    grids = f", {job.grids} of them grids," if job.grids else ""
    lines = [f"{counted(job.sources, 'row')}{grids} {'make' if job.sources > 1 else 'makes'} {counted(job.pictures, 'picture')}."]
    lines += [f"There already: {counted(plan.skipped, 'picture')}."] if plan.skipped else []
    lines += [replacement(plan.replaced, plan.is_other)] if plan.replaced else []
    if found:
        lines.append("In this order:")
        lines += [f"  {counted(group.pictures, 'picture'):>16}  {group.label}" for group in found[:_GROUPS_SHOWN]]
        rest = found[_GROUPS_SHOWN:]
        more = counted(sum(group.pictures for group in rest), "picture")
        lines += [f"  {more:>16}  in {counted(len(rest), 'more group')}"] if rest else []
        lines.append(_preparations(summary(plan)))
        lines.append(_estimate(plan))
    return "\n".join(lines)


def _preparations(plan: dict[str, Any]) -> str:
    """How often checkpoints are loaded, LoRAs added and networks compiled."""
    if plan["processes"] not in (None, 1):
        least, most = plan["compiles"], plan["most_compiles"]
        times = counted(most, "time") if least == most else f"{least} to {counted(most, 'time')}"
        return f"In {plan['processes']} processes together: networks compiled {times}."
    counts = [
        f"{counted(plan['checkpoints'], 'checkpoint')} loaded",
        f"{counted(plan['lora_mixes'], 'mix', 'mixes')} of LoRAs added",
        f"networks compiled {counted(plan['compiles'], 'time')}",
    ]
    if plan["processes"] == 1:
        return f"{', '.join(counts)}."
    return f"In one process: {', '.join(counts)}. It is more often in several, whose number the cluster decides."


def _estimate(plan: Plan) -> str:
    if plan.seconds is None:
        return "How long it takes is not known: no picture is there to judge by; --measure makes one in two steps."
    shared = "" if plan.processes == 1 else " in one process"
    return f"Sampling takes some {duration(plan.seconds)}{shared}, and preparing the networks comes on top."


def _workers(text: str) -> int | str:
    """Read a number, or auto."""
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no number; give one, or auto") from None


#: Seconds between two lines where there is no terminal.
_EVERY_S = 30.0


class BatchProgress:
    """Takes the events of a batch: prints each as a line of JSON, or shows a bar; without a terminal a line now and then."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._bar: Any = None
        self._told = time.monotonic()
        #: The newest events: what is to be made, and how far that is.
        self._plan: dict[str, Any] | None = None
        self._reached: dict[str, Any] = {"made": 0, "otherwise": 0, "failed": 0}

    @property
    def count(self) -> str:
        """How many pictures are there and how many rows failed, as a sentence."""
        if self._plan is None:
            return "No picture was made."
        pictures, skipped = self._plan["pictures"], self._plan["skipped"]
        if pictures == skipped:
            return "The picture is there already." if pictures == 1 else f"All {pictures} pictures are there already."
        made, otherwise, failed = (self._reached[name] for name in ("made", "otherwise", "failed"))
        before = f", {skipped} {'was' if skipped == 1 else 'were'} there already" if skipped else ""
        where = "in part of PyTorch or f32, as \"answered\" in the manifest says"
        elsewhere = f"; {otherwise} {'is' if otherwise == 1 else 'are'} {where}" if otherwise else ""
        failures = f", {counted(failed, 'row')} failed" if failed else ""
        return f"{made} of {counted(pictures - skipped, 'picture')} made{before}{failures}{elsewhere}."

    def report(self, event: dict[str, Any]) -> None:
        """Take one event."""
        kind = event["event"]
        if kind == "plan":
            self._plan = event
        elif kind in ("picture", "failure"):
            self._reached = event
        if self._as_json:
            print(json.dumps(event), flush=True)
        else:
            self._show(kind, event)

    def _show(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "plan":
            self._begin(event)
        elif kind == "failure":
            name = f" (number {event['row']:06d})" if event["row"] != event["source"] else ""  # of a grid, or after one
            self._say(f"Row {event['source']}{name} failed: {event['error']}")
        elif kind == "picture":
            self._advance(event)
        elif kind == "end":
            self.close()

    def _begin(self, event: dict[str, Any]) -> None:
        from tqdm import tqdm

        if event["grids"]:
            verb = "makes" if event["sources"] == 1 else "make"
            self._say(f"{counted(event['sources'], 'row')} {verb} {counted(event['pictures'], 'picture')}.")
        if event["replaced"]:
            self._say(replacement(event["replaced"], event["is_other"]))
        self._bar = tqdm(total=event["to_make"], unit="picture", disable=None, leave=False)  # None: only in a terminal

    def _advance(self, event: dict[str, Any]) -> None:
        left = duration(event["seconds_left"])
        state = f"{event['pictures_per_hour']:.0f} an hour, {left} left, {event['failed']} failed"
        if not self._bar.disable:
            self._bar.set_postfix_str(state, refresh=False)
            self._bar.update()
        elif time.monotonic() - self._told > _EVERY_S:
            self._told = time.monotonic()
            self._say(f"{self.count[:-1]}: {state}.")

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> BatchProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def replacement(count: int, is_other: bool) -> str:
    """That pictures of other values go, as a sentence; the user may have given the folder of another job."""
    verb = "is" if count == 1 else "are"
    whose = "of another job" if is_other else "of rows that have changed"
    return f"{counted(count, 'picture')} there {verb} {whose}, and {verb} replaced (--replace)."


def duration(seconds: float) -> str:
    """Seconds in words: "45 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
