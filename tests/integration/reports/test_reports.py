"""Public reports of two years: what went wrong there holds here. ``docs/guides.md`` has the one that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ov_backend import Settings
from tests.integration.reports import attention, libraries, numbers, programs
from tests.integration.reports.report import Report, Ways

REPORTS = [*numbers.REPORTS, *attention.REPORTS, *programs.REPORTS, *libraries.REPORTS]
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def _parameter(report: Report) -> object:
    marks = [pytest.mark.longest] if report.full else []
    if report.torch > VERSION:
        marks.append(pytest.mark.skip(reason=f"torch {report.torch[0]}.{report.torch[1]} has what it needs"))
    return pytest.param(report, id=str(report), marks=marks)


@pytest.mark.parametrize("report", [_parameter(report) for report in REPORTS])
def test_report(report: Report, strict: Callable[..., Settings]) -> None:
    report.program(Ways(strict))
