import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.app_reports.exposure import Exposure, ExposureWatch, exposure_of, said_all_at_once
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Record
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.matrix.programs import LINES, STDOUT, Program

MakeRecord = Callable[..., Record]
MEMORY = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}


def line(phase: str, done: int, monotonic: float = 0.0, rank: int = 0) -> Progress:
    values: dict[str, Any] = {"schema": 2, "wall": 0.0, "monotonic": monotonic, "rank": rank, "pid": 1, "phase": phase}
    values |= {"done": done, "total": None, "max_step_s": None, "loss": None, "gradient_norm": None, "memory": MEMORY}
    return Progress.model_validate(values)


def seen(*lines: tuple[float, str, int]) -> Exposure:
    watch = ExposureWatch()
    for now, phase, done in lines:
        watch.saw(line(phase, done), now)
    return watch.exposure


def test_it_counts_from_the_end_of_the_first_step_to_the_last_advance() -> None:
    lines = [(5, "import", 0), (9, "data", 0), (20, "first-step", 0), (50, "step", 1), (110, "step", 40)]
    assert seen(*lines) == Exposure(True, 60)
    assert seen(*lines, (140, "validate", 0), (150, "checkpoint", 40), (151, "teardown", 0)) == Exposure(True, 101)


def test_time_without_an_advance_at_the_end_is_a_stall_and_no_exposure() -> None:
    lines = [(20, "first-step", 0), (50, "step", 1), (110, "step", 40)]
    assert seen(*lines, (170, "step", 40), (230, "step", 40)) == Exposure(True, 60)


@pytest.mark.parametrize("last", ["import", "init", "data", "features", "first-step"])
def test_before_the_end_of_the_first_step_there_is_none(last: str) -> None:
    assert seen((5, "import", 0), (60, last, 0), (300, last, 0)) == Exposure(False, 0)
    assert seen() == Exposure(False, 0)


def test_what_resumes_has_done_steps_before_its_first_one() -> None:
    assert seen((20, "step", 400), (60, "step", 400)) == Exposure(False, 0)
    assert seen((20, "step", 400), (60, "step", 401), (90, "step", 500)) == Exposure(True, 30)


def test_the_second_model_goes_on_with_the_time_of_the_first() -> None:
    first = [(20, "first-step", 0), (50, "step", 1), (80, "checkpoint", 9)]
    assert seen(*first, (100, "first-step", 0), (120, "step", 1)) == Exposure(True, 70)


@pytest.mark.parametrize(
    ("progress", "seconds", "expected"),
    [(STDOUT, None, True), (STDOUT, 0.4, True), (STDOUT, 5.0, False), (LINES, 0.4, False)],
)
def test_what_a_program_prints_within_a_moment_may_be_a_traceback(
    progress: str, seconds: float | None, expected: bool
) -> None:
    program = Program.model_validate({"command": "python train.py", "source": "/code", "progress": progress})
    assert said_all_at_once(program, Exposure(True, seconds)) is expected


def test_any_rank_that_advances_does() -> None:
    watch = ExposureWatch()
    for now, rank, done in ((1, 0, 0), (1, 1, 0), (9, 1, 1), (10, 0, 1), (30, 1, 5), (60, 0, 1)):
        watch.saw(line("step" if done else "first-step", done, rank=rank), now)
    assert watch.exposure == Exposure(True, 21)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def kept(results: Results, record: Record, *lines: Progress) -> Exposure:
    results.begin(record.intent)
    file = results.run_folder(record.intent.run_id) / "work/progress-0.jsonl"
    file.write_text("".join(one.model_dump_json(by_alias=True) + "\n" for one in lines), encoding="utf-8")
    results.finish(record)
    return exposure_of(record, results.folder_of(record.intent.run_id))


SHOWN = (line("first-step", 0, 20.0), line("step", 1, 30.0), line("step", 60, 90.0))


def test_a_record_of_an_earlier_harness_has_that_of_its_progress(results: Results, make_record: MakeRecord) -> None:
    values = json.loads(make_record("old", "hung").model_dump_json(by_alias=True))
    for name in ("first_step", "exposure_seconds", "interrupted_by", "idle_seconds", "idle_limit"):
        del values[name]
    values["finished"] = values["intent"]["started"] + 120.0
    old = Record.model_validate(values)
    assert kept(results, old, *SHOWN) == Exposure(True, 60.0)
    (row,) = Index(results).rows()
    assert (row.first_step, row.exposure_seconds) == (True, 60.0)


def test_where_its_progress_is_gone_a_run_that_completed_started(results: Results, make_record: MakeRecord) -> None:
    unknown = {"first_step": None, "exposure_seconds": None}
    assert kept(results, make_record("a").model_copy(update=unknown)) == Exposure(True, None)
    assert kept(results, make_record("b", "failed").model_copy(update=unknown)) == Exposure(None, None)


def test_what_the_harness_saw_itself_goes_before_what_the_app_wrote(results: Results, make_record: MakeRecord) -> None:
    assert kept(results, make_record("a"), *SHOWN) == Exposure(True, 3600.0)


@pytest.mark.parametrize(("at", "seconds"), [(1e9, 3600.0), (-1e9, 0.0)])
def test_what_an_app_wrote_is_no_longer_than_the_run(
    at: float, seconds: float, results: Results, make_record: MakeRecord
) -> None:
    record = make_record("a", "hung")
    old = record.model_copy(
        update={"first_step": None, "exposure_seconds": None, "finished": record.intent.started + 3600.0}
    )
    assert kept(results, old, *SHOWN, line("step", 61, at)) == Exposure(True, seconds)
