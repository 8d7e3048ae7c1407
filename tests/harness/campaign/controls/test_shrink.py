"""Tests of shrinking the workload of a failed run to the least that still fails. Nothing is really run."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.base.errors import UserError
from harness.campaign.bench.plan import PlannedRun
from harness.campaign.controls.shrink import EnoughSteps, FailedRun, Over, failed_run, require_shrinkable, same_failure
from harness.campaign.controls.shrink_over import Shrunk, shrink, shrinking_runs, smaller_models
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_files import Explanation, Intent, Record
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Cell, Matrix
from harness.matrix.workloads import Workload
from harness.run.workload_data import DataRefusedError
from tests.harness.pretending import RecordingDisplay
from tests.harness.scripted_bench import ScriptedBench

Judge = Callable[[Workload], int | None]
Ends = Callable[[Workload, str | None, int], tuple[str | None, tuple[int, ...]]]
FAILED_AT = 37


class Shaped(ScriptedBench):
    """A bench whose runs fail at a step, unless an observer ends them earlier.

    - `judge`: returns the step at which a workload fails; None if it completes.
    - `ends`: returns the diagnosis of a run and the steps that its record accounts for.
    - `ended_as`: the outcome and diagnosis of a run that an observer ended.
    """

    judge: Judge
    ends: Ends = staticmethod(lambda _, diagnosis, steps: (diagnosis, (steps,)))
    ended_as: tuple[str, str | None] = ("interrupted", None)

    def requested_run(self, planned: PlannedRun, run_id: str, workload: Any, campaign: str | None = None) -> Any:
        return SimpleNamespace(
            **{**vars(super().requested_run(planned, run_id, workload, campaign)), "workload": workload}
        )

    def run_cell(self, run: Any, *observers: Any) -> Record:
        failing = self.judge(run.workload)
        try:
            for done in range(failing or 100):
                observers[0](SimpleNamespace(rank=0, phase="step", done=done))
        except EnoughSteps:
            self._leave(run, *self.ended_as, done)
            raise
        return self._leave(run, "failed" if failing else "completed", "crash" if failing else None, done)

    def _leave(self, run: Any, outcome: str, diagnosis: str | None, steps: int) -> Record:
        changes = {"intent": run.intent(None), "finished": 1e9 + len(self.made)}
        diagnosis, accounted = self.ends(run.workload, diagnosis, steps)
        record = self.make_record(run.run_id, outcome).model_copy(
            update={**changes, "diagnosis": diagnosis, "steps_accounted": accounted, "idle_seconds": None}
        )
        assert len(self.made) < 100, "it goes on for ever"
        self.results.begin(record.intent)
        self.results.finish(record)
        self.made.append(run.run_id)
        return record


@pytest.fixture
def bench(tmp_path: Path, host: HostFacts, make_record: Callable[..., Record]) -> Shaped:
    class Here(Shaped):
        """A class of this test alone, because a search makes further benches of the class and uses its attributes."""

    Here.make_record, Here.made = staticmethod(make_record), []
    return Here(Results(tmp_path / "results"), ProcessExecutor(), host, ())


@pytest.fixture
def failed(make_record: Callable[..., Record], matrix: Matrix, tmp_path: Path) -> FailedRun:
    record = make_record("the-run", "failed").model_copy(
        update={"diagnosis": "crash", "steps_accounted": (FAILED_AT - 1,)}
    )
    workload = matrix.workloads["standard"].model_copy(update={"batch_size": 32})
    return FailedRun(record, matrix.cells["cpu-plain"], workload, tmp_path / "bars.csv")


def search(bench: Shaped, over: Over, failed: FailedRun, judge: Judge, max_runs: int = 100) -> Shrunk:
    type(bench).judge = staticmethod(judge)
    return shrink(over, shrinking_runs(over, bench, failed, max_runs, RecordingDisplay()))


def test_the_least_number_of_steps_is_found(bench: Shaped, failed: FailedRun) -> None:
    found = search(bench, "steps", failed, lambda _: FAILED_AT)
    assert found.conclusion == "found"
    assert (found.smallest or "").startswith(f"{FAILED_AT} steps, as its progress tells")
    assert found.runs <= 6
    made = list(bench.made)
    assert search(bench, "steps", failed, lambda _: FAILED_AT) == found
    assert bench.made == made


def test_a_run_that_fails_after_the_wanted_steps_did_not_fail_within_them(
    bench: Shaped, failed: FailedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bench), "ended_as", ("failed", "crash"))
    found = search(bench, "steps", failed, lambda _: FAILED_AT)
    assert (found.smallest or "").startswith(f"{FAILED_AT} steps, as its progress tells")


def test_what_a_killed_harness_left_is_closed_first(
    bench: Shaped, failed: FailedRun, make_intent: Callable[..., Intent]
) -> None:
    left = make_intent("left", host=bench.host, owner_pid=2**22 + 1)
    bench.results.begin(left)
    search(bench, "steps", failed, lambda _: FAILED_AT)
    assert bench.results.has_record("left")


def test_a_run_that_failed_before_its_first_step_has_that_in_words(
    bench: Shaped, failed: FailedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bench), "ends", staticmethod(lambda _, diagnosis, __: (diagnosis, (0,))))
    record = failed.record.model_copy(update={"steps_accounted": (0,)})
    found = search(bench, "steps", replace(failed, record=record), lambda _: 1)
    assert found.whole == "a run that failed before a step was reported"
    assert (found.smallest or "").startswith("1 step, as its progress tells")


def test_the_smallest_batch_and_model_are_found(bench: Shaped, failed: FailedRun) -> None:
    found = search(
        bench, "shape", failed, lambda work: 5 if work.batch_size >= 8 and "attention" in work.model else None
    )
    assert found.conclusion == "found"
    assert dict(found.options) == {"batch_size": 8, "model": ["attention"]}
    assert found.smallest == "batches of 8, model attention"
    assert found.whole.startswith("batches of 32, model mlp then attention")


def test_a_shape_that_the_app_refuses_is_left_and_not_tried_for_ever(
    bench: Shaped, failed: FailedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(work: Workload, diagnosis: str | None, steps: int) -> tuple[str | None, tuple[int, ...]]:
        return ("refused", (0,)) if work.batch_size < 8 else (diagnosis, (steps,))

    monkeypatch.setattr(type(bench), "ends", staticmethod(ends))
    found = search(bench, "shape", failed, lambda _: 5)
    assert dict(found.options) == {"batch_size": 8, "model": ["attention-small"]}
    assert found.others


def test_progress_that_accounts_for_no_steps_ends_a_search_by_steps(
    bench: Shaped, failed: FailedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bench), "ends", staticmethod(lambda _, diagnosis, __: (diagnosis, ())))
    with pytest.raises(UserError, match="its progress does not account for them"):
        search(bench, "steps", failed, lambda _: FAILED_AT)
    assert len(bench.made) == 1


def test_runs_of_a_search_are_no_evidence_of_the_cell(bench: Shaped, failed: FailedRun) -> None:
    found = search(bench, "steps", failed, lambda _: FAILED_AT)
    assert list(bench.results.records()) == []
    assert len(list(Results(found.results).records())) == found.runs


def test_too_few_runs_are_said_and_more_continue(bench: Shaped, failed: FailedRun) -> None:
    few = search(bench, "steps", failed, lambda _: FAILED_AT, 2)
    assert (few.conclusion, few.smallest, few.runs) == ("not-enough-runs", None, 2)
    more = search(bench, "steps", failed, lambda _: FAILED_AT)
    assert more.conclusion == "found"
    assert len(bench.made) == more.runs


@pytest.mark.slow
def test_what_never_fails_again_is_said(bench: Shaped, failed: FailedRun) -> None:
    assert search(bench, "shape", failed, lambda _: None).conclusion == "not-seen-again"


def test_smaller_models(failed: FailedRun) -> None:
    names = [workload.model for workload in smaller_models(failed.workload)]
    assert names == [("attention-small",), ("attention",), ("mlp", "attention")]
    mlp = failed.workload.model_copy(update={"model": ("mlp",), "hidden_layers": (4, 2)})
    assert [workload.hidden_layers for workload in smaller_models(mlp)] == [(1, 1), (2, 1), (4, 2)]


def test_only_the_same_failure_counts(make_record: Callable[..., Record]) -> None:
    def ended(diagnosis: str, class_: str) -> Record:
        found = Explanation.model_validate(
            {"rule": None, "class": class_, "cause": "", "remedy": "", "link": None, "presets": (), "lines": ()}
        )
        return make_record("r", "failed").model_copy(update={"diagnosis": diagnosis, "explanation": found})

    assert same_failure(ended("crash", "segv"), ended("crash", "abort"))
    assert not same_failure(ended("app-error", "oom-gpu"), ended("crash", "oom-gpu"))
    assert not same_failure(ended("app-error", "oom-gpu"), ended("app-error", "unknown"))


def test_what_did_not_fail_by_itself_is_refused(make_record: Callable[..., Record]) -> None:
    with pytest.raises(UserError, match="no failure to look for"):
        require_shrinkable(make_record("r", "completed"))
    with pytest.raises(UserError, match="program of your own"):
        require_shrinkable(make_record("r", "failed", program={"command": ("x",), "source": "/srv/code"}))
    with pytest.raises(UserError, match="on purpose"):
        require_shrinkable(make_record("r", "failed", injected_fault="segv@3/0"))


def test_fewer_steps_are_refused_where_the_failure_was_found_after_the_last(
    make_record: Callable[..., Record],
) -> None:
    found_later = make_record("r", "failed", "wrong-result")
    found_later = found_later.model_copy(update={"result": make_record("s", "completed").result})
    assert found_later.result is not None
    with pytest.raises(UserError, match=r"trained to its end, and failed \(wrong-result\) was found after it"):
        require_shrinkable(found_later, "steps")
    require_shrinkable(found_later, "shape")
    require_shrinkable(make_record("r", "failed", "crash"), "steps")


def test_other_data_is_refused(make_record: Callable[..., Record], matrix: Matrix, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("other", encoding="utf-8")
    os.mkfifo(tmp_path / "pipe.csv")
    cell: Cell = matrix.cells["cpu-plain"]
    for file in ("other.csv", "none.csv", "pipe.csv"):
        with pytest.raises(UserError, match="does not hold its data"):
            failed_run(make_record("r", "failed"), cell, dict(matrix.workloads), tmp_path / file)


@pytest.mark.parametrize("refused", [True, False])
def test_only_data_that_the_app_refuses_say_something(
    bench: Shaped, failed: FailedRun, monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    failed.data.write_text("ts,close\n" + "".join(f"{row},1\n" for row in range(8)), encoding="utf-8")

    def data_of(self: Shaped, *_: object) -> Any:
        if self.data and len(self.data.read_text(encoding="utf-8").splitlines()) < 9:
            raise DataRefusedError("too few") if refused else UserError("no Docker engine answers")
        return SimpleNamespace(sha256="d")

    monkeypatch.setattr(type(bench), "data_of", data_of)
    if refused:
        assert search(bench, "data", failed, lambda _: 5).smallest == "8 parts of the rows (row 1 to row 8)"
    else:
        with pytest.raises(UserError, match="no Docker engine answers"):
            search(bench, "data", failed, lambda _: 5)
