"""Tests of the section on failures by the age of the run, in words and as a picture."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.evidence.verdicts.survival import survival
from harness.evidence.verdicts.totals import Life
from harness.evidence.verdicts.verdict import judge
from harness.matrix.cells import Matrix, Verdicts
from harness.report.build import build_report
from harness.report.markdown import to_markdown
from harness.report.model import Report
from harness.report.page import to_html
from harness.report.reader import Reader
from harness.report.sections.ages import failure_ages
from harness.report.sections.grid import group_ids

MakeRows = Callable[..., list[Row]]
Reported = Callable[[list[Row]], Report]


@pytest.fixture
def reported(tmp_path: Path, matrix: Matrix) -> Reported:
    def make(rows: list[Row]) -> Report:
        return build_report(Results(tmp_path), rows, matrix, {}, count_runs(rows), Reader(1e9))

    return make


def lasting(rows: list[Row], *hours: float) -> list[Row]:
    aged = [row._replace(exposure_seconds=age * 3600) for row, age in zip(rows, hours, strict=True)]
    return [row._replace(first_step=True) for row in aged]


def test_without_a_failure_it_is_a_sentence(make_rows: MakeRows, reported: Reported) -> None:
    rows = lasting(make_rows("cpu-plain", 14), *[0.51] * 13, 0.5)
    (ages,) = reported(rows).failure_ages
    # The sentence also says what distinguishes two workloads of one name.
    verdicts, ids = judge(rows, {}, Verdicts()), group_ids(rows)
    (apart,) = failure_ages(verdicts, ids, dict.fromkeys(ids.values(), "quick (--lookback 46)"), 0.95)
    assert "(cpu, workload quick (--lookback 46), process)" in apart.said
    assert ages.said.startswith(
        "`cpu-plain` (cpu, workload quick on merged.csv, process): no failure in 7.1 h, 14 runs, the longest "
    )
    assert ages.said.endswith("; 100 % (75 % to 100 %, with 95 %) reach 30 min.")
    assert ages.hours == ()


def test_failures_are_reported_by_their_ages_with_a_curve(make_rows: MakeRows, reported: Reported) -> None:
    rows = lasting(make_rows("cpu-plain", 6, 2), *[2.0] * 6, 0.5, 1.5)
    report = reported(rows)
    (ages,) = report.failure_ages
    assert "2 failures in 14.0 h, between 30 min and 1.5 h of training; 8 runs, the longest 2.0 h; 75 % (" in ages.said
    points = survival([*[Life(2.0)] * 6, Life(0.5, failed=True), Life(1.5, failed=True)], 0.95)
    assert ages.hours == (0.0, 0.5, 1.5, 2.0)
    assert ages.low == tuple(round(point.low, 4) for point in points)
    page = to_html(report)
    assert '<h2 id="ages">' in page
    # The first of eight runs fails at a quarter of the width; the picture is 120 high.
    assert re.search(r'<polyline points="0\.0,0\.0 80\.0,0\.0 80\.0,15\.0 240\.0,15\.0 240\.0,30\.0 ', page)
    assert "## Failures by age of the run" in to_markdown(report)


def test_seconds_of_training_are_shown_in_seconds_everywhere(make_rows: MakeRows, reported: Reported) -> None:
    seconds = (9 / 3600, 9 / 3600, 8 / 3600, 0.5 / 3600, 7 / 3600)
    report = reported(lasting(make_rows("cpu-plain", 3, 2), *seconds))
    (ages,), (line,) = report.failure_ages, report.verdicts
    assert "2 failures in 33 s, between under 1 s and 7 s of training; 5 runs, the longest 9 s; 60 % (" in ages.said
    assert (line.trained, line.mtbf) == ("33 s", "no MTBF yet: 2 failures in 33 s of training")
    page = to_html(report)
    assert ">4 s</text>" in page
    assert ">9 s</text>" in page
    assert re.search(r'data-value="[\d.e-]+">33 s</td>.*data-value="[\d.e-]+">none yet</td>', page)
    assert " 0 min" not in page.partition("<script")[0]


def test_cells_that_fail_come_first_and_only_some_are_drawn(make_rows: MakeRows, reported: Reported) -> None:
    rows = lasting(make_rows("cpu-plain", 3), 9.0, 9.0, 9.0)
    for number in range(8):
        failing = lasting(make_rows("cpu-no-sdma", 2, 1), 1.0, 1.0, number + 0.5)
        rows += [row._replace(family=f"{number}" * 64) for row in failing]
    ages = reported(rows).failure_ages
    assert [one.failures > 0 for one in ages] == [True] * 8 + [False]
    assert [bool(one.hours) for one in ages] == [True] * 6 + [False] * 3


def test_where_nothing_was_trained_there_is_no_section(make_rows: MakeRows, reported: Reported) -> None:
    report = reported([row._replace(exposure_seconds=None) for row in make_rows("cpu-plain", 3)])
    assert report.failure_ages == ()
    assert 'id="ages"' not in to_html(report)
