import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.files.app_files import Result, Training
from harness.evidence.files.run_files import Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.files.work_folder import WorkFolder
from harness.report.of_runs.curves import POINTS, loss_curves, read_progress
from harness.report.of_runs.details import detail_of

MEMORY = {"rss_bytes": 10**9, "device_allocated_bytes": None, "device_reserved_bytes": 2 * 10**9}


def write(folder: Path, lines: list[tuple[str, int, float | None]], rank: int = 0) -> None:
    """Write a progress file with a line a second; each of `lines` is the phase, the work done, and the loss."""
    told = [
        {"schema": 2, "wall": 100.0 + n, "monotonic": n, "rank": rank, "pid": 1, "phase": phase, "done": done}
        | {"total": None, "max_step_s": None, "loss": loss, "gradient_norm": None, "memory": MEMORY}
        for n, (phase, done, loss) in enumerate(lines)
    ]
    (folder / f"progress-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told), encoding="utf-8")


def test_phases_follow_each_other_to_the_end_of_the_run(tmp_path: Path) -> None:
    write(tmp_path, [("import", 0, None), ("init", 0, None), ("step", 1, 0.5), ("step", 2, 0.4)])
    phases = read_progress(WorkFolder(tmp_path), 99.0, 110.0).phases
    assert [(p.phase, p.start, p.seconds) for p in phases] == [("import", 1, 1), ("init", 2, 1), ("step", 3, 8)]


def test_of_a_file_with_more_lines_than_any_run_writes_only_the_first_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.of_runs.curves.MOST_LINES", 2)
    write(tmp_path, [("import", 0, None), ("init", 0, None), ("step", 1, 0.5)])
    assert [p.phase for p in read_progress(WorkFolder(tmp_path), 99.0, 110.0).phases] == ["import", "init"]


def test_each_model_has_a_curve_and_a_failed_one_too(tmp_path: Path) -> None:
    lines = [
        ("first-step", 0, None),
        ("step", 5, 0.5),
        ("validate", 0, None),
        ("first-step", 0, None),
        ("step", 7, 0.3),
    ]
    write(tmp_path, lines)
    curves = loss_curves(read_progress(WorkFolder(tmp_path), 100.0, 110.0), ())
    assert [(c.model, c.steps, c.loss) for c in curves] == [("model 1", (5,), (0.5,)), ("model 2", (7,), (0.3,))]


def test_the_first_steps_and_epochs_come_from_the_result(tmp_path: Path, result_values: dict[str, Any]) -> None:
    write(tmp_path, [("first-step", 0, None), ("step", 30, 0.25)])
    (curve,) = loss_curves(
        read_progress(WorkFolder(tmp_path), 100.0, 110.0), Result.model_validate(result_values).trainings
    )
    assert curve.steps == (*range(1, 17), 30)
    assert (curve.loss[0], curve.loss[-1]) == (0.69, 0.25)
    assert (curve.epoch_ends, curve.train, curve.validation) == ((16, 32), (0.6, 0.6), (0.65, 0.65))


def test_numbers_that_are_not_finite_are_null(tmp_path: Path, result_values: dict[str, Any]) -> None:
    write(tmp_path, [("first-step", 0, None), ("step", 30, float("nan"))])
    training = Training.model_validate(
        {name: result_values[name] for name in Training.model_fields if name in result_values}
        | {"first_steps": [{"step": 1, "loss": float("inf"), "gradient_norm": None}]}
    )
    (curve,) = loss_curves(read_progress(WorkFolder(tmp_path), 100.0, 110.0), [training])
    assert curve.loss == (None, None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["step", "validate", "checkpoint"]), st.integers(1, 400)), min_size=2, max_size=6
    )
)
def test_long_files_are_thinned_and_no_phase_is_lost(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    phases = [phase for phase, lines in spans for _ in range(lines)]
    write(folder, [(phase, 0, None) for phase in phases])
    told = read_progress(WorkFolder(folder), 100.0, 100.0)
    changes = [phases[0], *(b for a, b in pairwise(phases) if a != b)]
    assert [span.phase for span in told.phases] == changes
    assert len(told.memory[0].seconds) <= POINTS + 2 * len(changes) + 1


def test_of_phases_without_end_some_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.report.of_runs.curves.MOST_PHASES", 10)
    write(tmp_path, [("step", 1, 0.5), ("validate", 0, None)] * 1000)
    assert len(read_progress(WorkFolder(tmp_path), 99.0, 110.0).memory[0].seconds) <= POINTS + 2 * 10 + 1


def test_many_ranks_share_the_phases_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.report.of_runs.curves.MOST_PHASES", 40)
    for rank in range(8):
        write(tmp_path, [("step", 1, 0.5), ("validate", 0, None)] * 1000, rank)
    told = read_progress(WorkFolder(tmp_path), 99.0, 110.0)
    assert [curve.rank for curve in told.memory] == list(range(8))
    assert all(len(curve.seconds) <= POINTS + 2 * 5 + 1 for curve in told.memory)


def test_damaged_lines_and_missing_files_are_passed_over(tmp_path: Path) -> None:
    assert read_progress(WorkFolder(tmp_path), 0.0, 1.0).phases == ()
    write(tmp_path, [("step", 1, 0.5)])
    with (tmp_path / "progress-0.jsonl").open("a") as stream:
        stream.write('{"phase": "validate", \n\n')
    assert [span.phase for span in read_progress(WorkFolder(tmp_path), 100.0, 101.0).phases] == ["step"]


def test_every_rank_has_its_memory(tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path, [("step", 1, 0.5)], rank)
    told = read_progress(WorkFolder(tmp_path), 100.0, 101.0)
    assert [(curve.rank, curve.rss_mb, curve.reserved_mb) for curve in told.memory] == [
        (rank, (1000.0,), (2000.0,)) for rank in range(2)
    ]


@given(st.integers(1, 2000), st.sampled_from(["validate", "checkpoint"]), st.integers(0, 3))
def test_the_curve_of_a_long_training_goes_up_to_its_last_step(
    tmp_path_factory: pytest.TempPathFactory, steps: int, after: str, lines_after: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    told: list[tuple[str, int, float | None]] = [("first-step", 0, None)]
    told += [("step", step, 0.5) for step in range(1, steps + 1)] + [(after, 0, None)] * lines_after
    write(folder, told)
    (curve,) = loss_curves(read_progress(WorkFolder(folder), 100.0, 110.0), ())
    assert curve.steps[-1] == steps
    assert len(curve.steps) <= POINTS + 3


@pytest.mark.parametrize("wall", ["NaN", "Infinity", '"NaN"'])
def test_a_line_without_a_time_is_left_out(tmp_path: Path, wall: str) -> None:
    write(tmp_path, [("import", 0, None), ("step", 1, 0.5), ("step", 2, 0.4)])
    file = tmp_path / "progress-0.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace('"wall": 101.0', f'"wall": {wall}'), encoding="utf-8")
    phases = read_progress(WorkFolder(tmp_path), 100.0, 110.0).phases
    assert [(p.phase, p.start, p.seconds) for p in phases] == [("import", 0, 2), ("step", 2, 8)]


@pytest.mark.parametrize(("strategy", "ranks"), [("single", [0]), ("ddp", [0, 1])])
def test_progress_of_ranks_that_the_run_does_not_have_is_not_read(
    tmp_path: Path, make_record: Callable[..., Record], strategy: str, ranks: list[int]
) -> None:
    """Eight files of 126 MB, in five runs, made a report take a minute."""
    (tmp_path / "work").mkdir()
    for rank in range(4):
        write(tmp_path / "work", [("import", 0, None), ("init", 0, None)], rank)
    record = make_record(options={"strategy": strategy, "devices": 2})
    assert sorted({span.rank for span in detail_of(record, RunFolder(tmp_path)).phases}) == ranks
