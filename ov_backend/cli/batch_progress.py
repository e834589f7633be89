"""Progress of a batch on standard error, or its events as lines of JSON on standard output."""

from __future__ import annotations

import json
import sys
import time
from types import TracebackType
from typing import Any

from ov_backend.torch_compile.report.amounts import counted

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
