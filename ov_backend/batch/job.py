"""Reads a job: every row is checked before anything runs, and each bad one is reported in one sentence with its number."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ov_backend.batch.columns import read_columns, read_value
from ov_backend.batch.job_file import MAX_COLUMNS, MAX_ROWS, SourceRow
from ov_backend.batch.row import Row
from ov_backend.batch.row_files import Places
from ov_backend.core.errors import JobError, OVBackendError, SettingsError, first_line
from ov_backend.hosts.standalone import samplers
from ov_backend.hosts.standalone.limits import check
from ov_backend.hosts.standalone.lora_tags import loras_of, named_twice
from ov_backend.hosts.standalone.suggestions import suggestions_for
from ov_backend.pipelines.sizes import MAX_BATCH, check_guidance
from ov_backend.ui.infotext import Parameters

#: Bad rows that are reported one by one; of more only the number is told.
_MOST_REPORTED = 100
_SCHEDULERS = {"": "", "automatic": "", "karras": " Karras"}
_STRENGTH = 0.75


@dataclass(frozen=True)
class Job:
    """Rows that can be run.

    Attributes:
        rows: in the order of the job.
        sources: number of rows in the job file.
        grids: number of these that are grids.
        left_out: number of rows in the job file that are bad and left out.
        problems: a sentence for each reason for that.
    """

    rows: list[Row]
    sources: int
    grids: int
    left_out: int = 0
    problems: tuple[str, ...] = ()

    @property
    def pictures(self) -> int:
        """The number of pictures of all rows."""
        return sum(row.parameters.batch for row in self.rows)


@dataclass
class _Bad:
    """The rows that one sentence is true of: their number, and the first two."""

    count: int = 0
    first: list[SourceRow] = field(default_factory=list)

    def add(self, source: SourceRow) -> None:
        self.count += 1
        if self.count <= 2:
            self.first.append(source)

    @property
    def label(self) -> str:
        """For messages: "Row 3", "Rows 1 and 2", "Rows 1, 2 and 398 more"."""
        if self.count == 1:
            return self.first[0].label
        rows = [source.label.removeprefix("Row ") for source in self.first]
        return f"Rows {' and '.join(rows)}" if self.count == 2 else f"Rows {', '.join(rows)} and {self.count - 2} more"


@dataclass
class _Problems:
    """The bad rows of a job file by the sentences that are true of them."""

    bad: dict[str, _Bad] = field(default_factory=dict)
    #: Numbers of the bad rows.
    sources: set[int] = field(default_factory=set)
    untold: int = 0

    def add(self, source: SourceRow, error: OVBackendError) -> None:
        self.sources.add(source.number)
        sentence = _uncapitalized(first_line(error))
        if sentence in self.bad or len(self.bad) < _MOST_REPORTED:
            self.bad.setdefault(sentence, _Bad()).add(source)
        else:
            self.untold += 1

    def told(self) -> list[str]:
        """A sentence for each reason."""
        told = [f"{rows.label}: {sentence}" for sentence, rows in self.bad.items()]
        if self.untold:
            told.append(f"{self.untold} more {'row is' if self.untold == 1 else 'rows are'} bad; correct these first.")
        return told


def read_job(
    sources: Iterable[SourceRow], places: Places, precision: Callable[[str | None], str], skip_bad_rows: bool = False
) -> Job:
    """Check all rows; what needs PyTorch, which takes seconds to import, is checked where nothing else is wrong.

    Args:
        sources: the rows as they are given.
        places: finds the files that they name.
        precision: takes a row's precision, or None, and returns what the device then computes in.
        skip_bad_rows: leave bad rows out, if there are others. The number of each other row is as if they were right.

    Raises:
        JobError: rows are bad; the error has a sentence for each.
    """
    rows: list[Row] = []
    problems, whole = _Problems(), ""
    lines: dict[int, int] = {}
    count = grids = skipped = 0
    for source in sources:
        count += 1
        if count > MAX_ROWS:
            whole = f"The job has more than {MAX_ROWS} rows; divide it into several files."
            break
        try:
            grids += any(isinstance(value, list) for value in source.values.values())
            rows += _made(source, len(rows) + skipped, places, precision)
            lines[source.number] = source.line
        except OVBackendError as error:
            skipped += _count(source)
            problems.add(source, error)
    if not count:
        whole = 'The job has no rows; write one for each picture, as {"prompt": "a lighthouse"}.'
    may_go_on = not problems.sources or skip_bad_rows
    if may_go_on and not whole:
        rows = _completed(rows, lines, places, problems)
    told = [*problems.told(), *([whole] if whole else [])]
    if told and not (skip_bad_rows and rows and not whole):
        raise JobError(told)
    return Job(rows, count, grids, len(problems.sources), tuple(told))


def _completed(rows: list[Row], lines: Mapping[int, int], places: Places, problems: _Problems) -> list[Row]:
    """The rows of whose checkpoints every weight is there, and which know in how many chunks their prompts are read."""
    completed = []
    for row in rows:
        if row.source in problems.sources:
            continue
        try:
            places.check_weights(row.checkpoint)
            texts = (row.plain_prompt, row.parameters.negative_prompt if row.parameters.guidance > 1 else "")
            chunks = max(places.chunks(row.checkpoint, text) for text in texts)
            completed.append(replace(row, chunks=chunks) if chunks != row.chunks else row)
        except OVBackendError as error:
            problems.add(SourceRow(row.source, lines[row.source]), error)
    return [row for row in completed if row.source not in problems.sources]


def grid_size(values: Mapping[str, Any]) -> int:
    """How many rows the lists in a row make of it; 0 if one of them is empty."""
    return math.prod(len(value) for value in values.values() if isinstance(value, list))


def expand(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values in a row's lists; the last list varies fastest."""
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    for combination in itertools.product(*choices):
        yield dict(zip(values, combination))


def _count(source: SourceRow) -> int:
    """How many rows a bad one would make if it were right, as far as can be told."""
    count = grid_size(source.values)
    return count if 1 <= count <= MAX_ROWS else 1


def _made(source: SourceRow, before: int, places: Places, precision: Callable[[str | None], str]) -> list[Row]:
    """The rows that one of the job makes, after so many others."""
    if source.problem:
        raise SettingsError(f"{source.problem}.")
    if len(source.values) > MAX_COLUMNS:
        raise SettingsError(f"it has {len(source.values)} columns; at most {MAX_COLUMNS} are read, so remove some.")
    columns = read_columns(source.values)
    empty = next((name for name, value in columns.items() if isinstance(value, list) and not value), None)
    if empty is not None:
        raise SettingsError(f"{empty} is an empty list; write values into it, or remove it.")
    if before + grid_size(columns) > MAX_ROWS:
        raise SettingsError(f"it makes the job longer than {MAX_ROWS} rows; divide the job into several files.")
    rows = []
    for number, combination in enumerate(expand(columns), before + 1):
        values = {name: read_value(name, value) for name, value in combination.items() if value is not None}
        rows.append(_row(number, source.number, values, places, precision))
    return rows


def _row(number: int, source: int, values: dict[str, Any], places: Places, precision: Callable[[str | None], str]) -> Row:
    checkpoint, configuration = places.checkpoint(values.get("checkpoint"))
    prompt = " ".join(text for text in (values.get("prompt", ""), values.get("loras", "")) if text)
    loras = _loras(prompt, checkpoint, places)
    picture = places.picture(values["init_image"]) if "init_image" in values else None
    width, height = _size(values, configuration.trained_side)
    own = suggestions_for(checkpoint.stem)
    parameters = Parameters(
        prompt=prompt,
        negative_prompt=values.get("negative_prompt", ""),
        steps=values.get("steps", own.steps),
        guidance=values.get("cfg_scale", own.guidance),
        seed=values.get("seed", -1),
        width=width,
        height=height,
        batch=values.get("batch_size", 1),
        strength=_strength(values),
        sampler=_sampler(values.get("sampler_name", samplers.DEFAULT), values.get("scheduler", "")),
    )
    _check_named(parameters)
    check(parameters, configuration.timesteps)
    if parameters.seed + parameters.batch > (1 << 63):
        raise SettingsError(f"seed is {parameters.seed}, too large for a batch of {parameters.batch}; make it smaller.")
    parameters = parameters.with_seed(_chosen_seed(number, parameters))
    return Row(number, source, parameters, checkpoint, precision(values.get("precision")), picture, loras)


def _loras(prompt: str, checkpoint: Path, places: Places) -> tuple[tuple[Path, float], ...]:
    """The LoRAs of a prompt, without those of strength 0: rows with and without these are of one kind."""
    loras: dict[Path, float] = {}
    for name, strength in loras_of(prompt).items():
        path = places.lora(name, checkpoint)
        if path in loras:
            raise named_twice(path, name)
        loras[path] = strength
    return tuple((path, strength) for path, strength in loras.items() if strength)


def _check_named(parameters: Parameters) -> None:
    """Check the values whose columns have other names than the page's fields; below 1 the guidance would be ignored."""
    check_guidance(parameters.guidance, "cfg_scale")
    if not 1 <= parameters.batch <= MAX_BATCH:
        raise SettingsError(f"batch_size is {parameters.batch}; it must be a whole number from 1 to {MAX_BATCH}.")
    if parameters.strength is not None and not 0 < parameters.strength <= 1:
        raise SettingsError(f"denoising_strength is {parameters.strength:g}; it must be above 0 and at most 1, as 0.75.")


def _size(values: Mapping[str, Any], side: int) -> tuple[int, int]:
    sides = [name for name in ("width", "height") if name in values]
    if "size" in values and sides:
        raise SettingsError(f"it has size and {sides[0]}; leave one of them.")
    if len(sides) == 1:
        missing = "height" if sides == ["width"] else "width"
        raise SettingsError(f"it has {sides[0]} and no {missing}; give both, or size.")
    if sides:
        return values["width"], values["height"]
    size: tuple[int, int] = values.get("size", (side, side))
    return size


def _sampler(name: str, scheduler: str) -> str:
    """The sampler by this project's name, which is the WebUI's of before its version 1.9: with the schedule in it."""
    suffix = _SCHEDULERS.get(scheduler.strip().lower())
    if suffix is None:
        raise SettingsError(f"scheduler is {scheduler[:80]!r}; it must be Automatic or Karras.")
    wanted = name.strip() if name.lower().strip().endswith("karras") else f"{name.strip()}{suffix}"
    sampler = samplers.sampler_named(wanted)
    if not sampler:
        raise SettingsError(f"sampler_name is {wanted[:80]!r}; it must be one of {', '.join(samplers.NAMES)}.")
    return sampler


def _strength(values: Mapping[str, Any]) -> float | None:
    strength: float | None = values.get("denoising_strength")
    if "init_image" not in values and strength is not None:
        raise SettingsError("it has a denoising_strength and no init_image; give both or neither.")
    return _STRENGTH if "init_image" in values and strength is None else strength


def _chosen_seed(number: int, parameters: Parameters) -> int:
    """A seed for a row that has none: the same whenever the job is run, so that an interrupted one can go on."""
    fields = [value for name, value in vars(parameters).items() if name not in ("hires", "upscaler")]  # no job has these
    text = json.dumps([number, *fields])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _uncapitalized(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:] if sentence.startswith(("The ", "A ")) else sentence
