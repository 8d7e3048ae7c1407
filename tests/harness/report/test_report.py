from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from harness.app_files import MemoryPeaks, Training
from harness.contracts import Record
from harness.matrix import Matrix
from harness.report import Report, build_report, to_html, to_markdown

Make = Callable[..., Record]


@pytest.fixture
def records(make_record: Make) -> list[Record]:
    return [
        make_record("r1"),
        make_record("r2", outcome="failed", diagnosis="crash", detail="the train process ended with SIGSEGV"),
        make_record("r3", outcome="interrupted"),
        make_record("r4", cell="cpu-no-sdma", preset="no-sdma"),
    ]


@pytest.fixture
def report(records: list[Record], matrix: Matrix) -> Report:
    return build_report(records, matrix, {}, made=1e9)


def test_the_first_line_counts_what_was_run(report: Report) -> None:
    assert report.headline == "4 runs of 2 cells: 2 completed, 1 failed, 1 interrupted."


def test_the_grid_counts_neither_interrupted_runs_nor_host_faults(report: Report) -> None:
    (grid,) = report.grids
    assert grid.cells["cpu", "plain"].text == "1 of 2"
    assert grid.cells["cpu", "plain"].kind == "some"
    assert grid.cells["cpu", "no-sdma"].kind == "all"


@pytest.mark.parametrize("change", [{"workload_hash": "e" * 64}, {"environment_hash": "0" * 64}])
def test_the_grid_never_pools_what_may_not_be_counted_together(
    change: dict[str, str], make_record: Make, matrix: Matrix
) -> None:
    records = [make_record("r1", started=1e9), make_record("r2", started=2e9, **change)]
    grids = build_report(records, matrix, {}, made=1e9).grids
    assert {cell.text for grid in grids for cell in grid.cells.values()} == {"1 of 1"}


def test_stale_runs_are_not_in_the_grid(records: list[Record], matrix: Matrix) -> None:
    report = build_report(records, matrix, {("cpu-plain", "process"): "another hash"}, made=1e9)
    assert report.grids[0].cells["cpu", "plain"].kind == "untested"
    assert any("stale" in caution for caution in report.cautions)


def test_a_run_on_a_cpu_cannot_be_mistaken_for_one_on_a_gpu(report: Report) -> None:
    assert any("No run used a GPU" in caution for caution in report.cautions)
    for text in (to_html(report), to_markdown(report)):
        assert "No run used a GPU" in text


def test_it_says_when_rocm_and_torch_change_together(make_record: Make, matrix: Matrix) -> None:
    def cautions(*stacks: str) -> str:
        runs = [make_record(f"r-{s}", stack=s, cell=f"{s}-plain") for s in stacks]
        return " ".join(build_report(runs, matrix, {}, made=1e9).cautions)

    assert "change together" in cautions("rocm6.2-torch2.5.1", "rocm6.3-torch2.7.1")
    assert "change together" not in cautions("rocm6.3-torch2.7.1", "rocm6.3-torch2.8.0")
    assert "change together" not in cautions("rocm6.3-torch2.9.1", "rocm6.4-torch2.9.1")


def test_every_excluded_cell_is_there_with_its_reason(report: Report, matrix: Matrix) -> None:
    html, markdown = to_html(report), to_markdown(report)
    for cell in matrix.cells.values():
        if cell.excluded:
            assert cell.id in html
            assert cell.excluded in markdown


def test_what_a_program_said_cannot_become_markup(make_record: Make, matrix: Matrix) -> None:
    evil = "<script>alert(1)</script> | a bar"
    report = build_report([make_record(outcome="failed", diagnosis="crash", detail=evil)], matrix, {}, made=1e9)
    assert "<script>" not in to_html(report)
    assert "\\| a bar" in to_markdown(report)


class Checker(HTMLParser):
    """Collects unbalanced tags and places outside the file."""

    VOID = ("meta", "link", "br", "img", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [v for _, v in attributes if v and v.startswith(("http:", "https:", "//"))]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_sound_and_needs_nothing_from_elsewhere(report: Report) -> None:
    checker = Checker()
    checker.feed(to_html(report))
    assert checker.open == []
    assert checker.outside == []


def test_a_markdown_table_has_as_many_cells_in_every_row(report: Report) -> None:
    lines = to_markdown(report).splitlines()
    for above, below in pairwise(lines):
        if above.startswith("|") and below.startswith("|"):
            assert above.replace("\\|", "").count("|") == below.replace("\\|", "").count("|")
    assert sum(line.startswith("|---") for line in lines) == 3


def test_a_report_on_nothing_says_so(matrix: Matrix) -> None:
    report = build_report([], matrix, {}, made=1e9)
    assert "Nothing was run yet." in to_html(report)
    assert "Nothing was run yet." in to_markdown(report)


def with_result(record: Record, **changes: Any) -> Record:
    assert record.result is not None
    return record.model_copy(update={"result": record.result.model_copy(update=changes)})


def test_a_drill_is_shown_and_never_counted(make_record: Make, matrix: Matrix) -> None:
    drilled = with_result(make_record("r5"), drill="flip-gradient@3/1")
    drilled = drilled.model_copy(update={"outcome": "failed", "diagnosis": "drill"})
    report = build_report([make_record("r1"), drilled], matrix, {}, made=1e9)
    assert report.headline == "1 runs of 1 cells: 1 completed."
    assert report.grids[0].cells["cpu", "plain"].text == "1 of 1"
    assert [status.runs for status in report.statuses] == [1]
    assert len(report.runs) == 2
    assert any("1 run was a drill" in caution for caution in report.cautions)
    assert "flip-gradient@3/1" in to_html(report)


def test_every_model_and_what_it_took_is_shown(make_record: Make, matrix: Matrix) -> None:
    plain = make_record()
    assert plain.result is not None
    first = {key: getattr(plain.result, key) for key in Training.model_fields}
    memory = {
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": 2 * 10**9,
        "peak_driver_bytes": None,
        "peak_rss_bytes": 10**9,
        "fragmentation": 0.25,
        "owners": [{"pid": 77, "name": "Xorg", "bytes": 10**8, "source": "kfd"}],
    }
    record = with_result(
        plain,
        model_kind="attention",
        batch_size=64,
        micro_batch_size=16,
        earlier=(Training.model_validate(first),),
        resumed_at=(17, 40),
        memory=MemoryPeaks.model_validate(memory),
        time={"device": 3.0, "loader": 6.0, "copy": 0.01, "validate": 1.0, "checkpoint": 0.0, "bookkeeping": 0.0},
    )
    (run,) = build_report([record], matrix, {}, made=1e9).runs
    assert [told.kind for told in run.trainings] == ["mlp", "attention"]
    assert run.trainings[1].text == "2 epochs, 32 steps of 64 in parts of 16, resumed at step 17, 40, 1000 samples/s"
    assert run.memory == "1.00 GB resident, 2.00 GB reserved, fragmentation 25% (held by Xorg 77: 0.10 GB)"
    assert [told.time for told in run.trainings] == ["", "60% loader, 30% device, 10% validate"]
    html = to_html(build_report([record], matrix, {}, made=1e9))
    for text in (run.memory, run.trainings[1].text, run.trainings[1].time, ">attention<"):
        assert text in html


def test_tainted_runs_are_shown_and_never_counted(records: list[Record], matrix: Matrix) -> None:
    report = build_report(records, matrix, {}, made=1e9, tainted={"r2"})
    assert report.grids[0].cells["cpu", "plain"].text == "1 of 1"
    assert "1 run is tainted: a GPU was sick meanwhile; shown among the runs, and not counted." in report.cautions
    assert len(report.runs) == 4
