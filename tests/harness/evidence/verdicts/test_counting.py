from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.evidence.files.run_files import HealthStep, Record
from harness.evidence.gpus.health_log import LOCK_HELD_DETAIL, append_steps, machines_with_bad_signs
from harness.evidence.gpus.strikes import strike
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import NOT_BEGUN, REFUSED, CountName, RunCount, count_runs, counts_of
from harness.evidence.verdicts.verdict import Verdict, judge
from harness.host.facts import HostFacts
from harness.matrix.cells import Verdicts

MakeRecord = Callable[..., Record]
MakeStep = Callable[..., HealthStep]


class History:
    """Runs on GPU 0 and probes of it, one after the other, a minute each."""

    def __init__(self, make_record: MakeRecord, make_step: MakeStep, host: HostFacts) -> None:
        self._make_record, self._make_step, self._host = make_record, make_step, host
        self._at = 1e9
        self.records: list[Record] = []
        self.steps: list[HealthStep] = []

    def run(
        self, run_id: str, outcome: str = "completed", boot: str = "boot", gpus: tuple[int, ...] = (0,), **changes: Any
    ) -> "History":
        """Add a run of a minute; `changes` are values of its record or its intent."""
        self._at += 60
        host = self._host.model_copy(update={"boot_id": boot})
        of_intent: dict[str, Any] = {
            name: changes.pop(name)
            for name in ("injected_fault", "rehearsal", "cell", "program", "resumed", "repeat")
            if name in changes
        }
        of_intent |= {"gpus": gpus, "device": "cuda" if gpus else "cpu"}
        record = self._make_record(run_id, outcome, host=host, started=self._at - 50, **of_intent)
        self.records.append(record.model_copy(update={"finished": self._at, **changes}))
        return self

    def probe(self, good: bool | None, run_id: str = "another", when: str = "recheck", **changes: Any) -> "History":
        self._at += 60
        self.steps.append(self._make_step(good=good, run_id=run_id, at=self._at, when=when, **changes))
        return self

    def then_probe(self, good: bool | None) -> "History":
        """Add the probe after the last run, from before the record of that run was written."""
        last = self.records[-1].intent.run_id
        self.steps.append(self._make_step(good=good, seconds=9, at=self._at - 10, run_id=last, when="after-completion"))
        return self

    @property
    def counts(self) -> dict[str, RunCount]:
        return count_runs(map(Row.of, self.records), self.steps)

    @property
    def counted_as(self) -> dict[str, CountName]:
        return {run_id: count.counts_as for run_id, count in self.counts.items()}

    @property
    def verdict(self) -> Verdict:
        (verdict,) = judge(map(Row.of, self.records), {}, Verdicts(), self.counts)
        return verdict


@pytest.fixture
def history(make_record: MakeRecord, make_step: MakeStep, host: HostFacts) -> History:
    return History(make_record, make_step, host)


def test_every_run_that_was_begun_counts(history: History) -> None:
    history.run("a").run("b", "failed").run("c", "hung").run("d", "host-fault")
    assert history.counted_as == {"a": "passed", "b": "failed", "c": "failed", "d": "failed"}


def test_a_command_that_the_app_refused_says_nothing_of_the_cell(history: History) -> None:
    history.run("a", workload_hash="another").run("b", "failed", diagnosis=REFUSED, detail="vpoc: --lookback 900: no")
    assert history.counted_as == {"a": "passed", "b": "not-counted"}
    assert "--lookback 900" in history.counts["b"].why
    assert (history.verdict.runs, history.verdict.not_counted) == (1, {"refused": 1})
    # If the GPU fails its next probe, the run counts as failed although the app refused the command.
    history.probe(False)
    assert history.counted_as["b"] == "failed"


def test_a_command_that_the_app_takes_and_refuses_in_turn_has_failed_where_it_refused(history: History) -> None:
    history.run("a", "failed", diagnosis=REFUSED).run("b").run("c", "failed", diagnosis=REFUSED)
    assert history.counted_as == {"a": "failed", "b": "passed", "c": "failed"}
    assert "which it accepts in other runs" in history.counts["c"].why


def test_checkpoints_that_the_app_refuses_to_resume_from_are_wrong_input_whatever_it_accepts_without_them(
    history: History,
) -> None:
    history.run("a").run("b", "failed", diagnosis=REFUSED, resumed=(321,))
    # The second attempt of a training resumes from what the app itself wrote.
    history.run("c", "failed", diagnosis=REFUSED, resumed=(321,), repeat=2)
    assert history.counted_as == {"a": "passed", "b": "not-counted", "c": "failed"}


def test_what_refuses_a_command_is_named(history: History) -> None:
    own = {"command": "python train.py --epochz", "source": "/home/me/code"}
    history.run("a", "failed", diagnosis=REFUSED, detail="no")
    history.run("b", "failed", diagnosis=REFUSED, detail="no", program=own)
    assert history.counts["a"].why == "the app refused the command: no"
    assert history.counts["b"].why == "the program refused the command: no"


@pytest.mark.parametrize("outcome", ["completed", "failed", "hung", "interrupted"])
def test_the_last_run_on_a_gpu_that_is_found_unhealthy_has_failed_whatever_it_did(
    outcome: str, history: History
) -> None:
    history.run("a").run("b", outcome).probe(False, "c", "before-run")
    assert history.counted_as == {"a": "passed", "b": "failed"}
    assert history.counts["b"].gpu_fault
    assert "GPU 0 failed the next probe after it" in history.counts["b"].why


def test_the_probe_after_a_run_tells_of_that_run(history: History) -> None:
    history.run("a").then_probe(True).run("b").then_probe(False).probe(True).run("c").then_probe(True)
    assert history.counted_as == {"a": "passed", "b": "failed", "c": "passed"}
    assert history.verdict.diagnoses == {"unhealthy-gpu": 1}


@pytest.mark.parametrize("when", ["before-run", "recheck"])
def test_a_probe_that_passes_after_a_run_clears_it(when: str, history: History) -> None:
    history.probe(True, "a", "before-run").run("a").then_probe(True).probe(False, "b", when)
    assert history.counted_as == {"a": "passed"}


def test_a_gpu_that_stays_unhealthy_is_one_failure(history: History) -> None:
    history.run("a").run("b").probe(False).probe(False).probe(False)
    assert history.counted_as == {"a": "passed", "b": "failed"}


def test_a_probe_before_a_run_is_never_that_runs_own_failure(history: History) -> None:
    history.run("a")
    history.run("b", "host-fault", diagnosis=NOT_BEGUN, detail="not begun, on an unhealthy GPU")
    # The time of this probe is after the start of b, because the intent of b is written first.
    history.probe(False, "b", "before-run")
    assert history.counted_as == {"a": "failed", "b": "not-counted"}
    assert history.counts["b"].kind == "not begun"
    started = History.__new__(History)
    started.__dict__.update(history.__dict__)
    started.records[1] = started.records[1].model_copy(update={"outcome": "completed", "diagnosis": None})
    assert started.counted_as == {"a": "failed", "b": "passed"}


def test_a_run_that_was_not_begun_does_not_answer_for_a_later_probe(history: History) -> None:
    history.run("a").run("b", "host-fault", diagnosis=NOT_BEGUN).probe(False)
    assert history.counted_as == {"a": "failed", "b": "not-counted"}


def test_what_a_probe_cannot_conclude_convicts_nobody(history: History) -> None:
    assert history.run("a").probe(None).probe(True).counted_as == {"a": "passed"}


def test_a_gpu_that_only_cannot_be_locked_convicts_nobody(history: History) -> None:
    assert history.run("a").probe(False, detail=LOCK_HELD_DETAIL).counted_as == {"a": "passed"}


def test_another_boot_gpu_or_machine_convicts_nobody(history: History) -> None:
    history.run("a", boot="before").probe(False).probe(False, gpu=1).probe(False, machine="another")
    assert history.counted_as == {"a": "passed"}


def test_a_run_on_two_gpus_answers_for_either_and_each_for_its_own(history: History) -> None:
    history.run("a", gpus=(0, 1)).run("b", gpus=(0,)).probe(False, gpu=1)
    assert history.counted_as == {"a": "failed", "b": "passed"}


def test_a_run_on_the_cpu_answers_for_no_gpu(history: History) -> None:
    assert history.run("a", gpus=()).probe(False).counted_as == {"a": "passed"}


def test_a_reset_in_the_kernel_log_is_a_failure_of_the_run_it_was_read_for(history: History) -> None:
    history.run("a").run("b", "interrupted", interrupted_by="ctrl-c")
    history.probe(False, "a", "after-completion", check="kernel-log", gpu=None, detail="GPU reset begin!")
    history.probe(False, "b", "after-failure", check="kernel-log", gpu=None, detail="ring sdma0 timeout")
    assert history.counted_as == {"a": "failed", "b": "failed"}
    assert history.counts["a"].why == "the kernel log shows a reset of its GPU: 'GPU reset begin!'"
    assert history.verdict.gpu_faults == ("a", "b")


def test_the_log_of_another_machine_convicts_no_run_of_this_one(history: History) -> None:
    history.run("a")
    history.probe(False, "a", "after-completion", check="kernel-log", gpu=None, machine="of another host")
    assert history.counted_as == {"a": "passed"}


@pytest.mark.parametrize(
    ("by", "counts_as"),
    [
        ("ctrl-c", "not-counted"),
        ("harness-killed", "not-counted"),
        ("shutdown", "not-counted"),
        ("engine", "not-counted"),
        (None, "not-counted"),
        ("hup", "failed"),
        ("term", "failed"),
    ],
)
def test_what_interrupted_a_run_decides_whether_it_counts(by: str | None, counts_as: str, history: History) -> None:
    assert history.run("a", "interrupted", interrupted_by=by).counted_as == {"a": counts_as}
    if counts_as == "not-counted":
        # A run may well have hung if it made no progress for more than a third of the limit.
        stalled = History(history._make_record, history._make_step, history._host)
        stalled.run("a", "interrupted", interrupted_by=by, idle_seconds=59.0, idle_limit=180.0)
        stalled.run("b", "interrupted", interrupted_by=by, idle_seconds=61.0, idle_limit=180.0)
        assert stalled.counted_as == {"a": "not-counted", "b": "failed"}
        assert stalled.verdict.diagnoses == {"no-progress": 1}


@pytest.mark.parametrize("by", ["hup", "term"])
def test_a_session_that_ends_is_no_failure_of_a_run_without_a_gpu(by: str, history: History) -> None:
    history.run("a", "interrupted", gpus=(), interrupted_by=by)
    history.run("b", "interrupted", gpus=(), interrupted_by=by, idle_seconds=61.0, idle_limit=180.0)
    assert history.counted_as == {"a": "not-counted", "b": "failed"}
    assert history.counts["a"].why == f"{by.upper()} ended it, and it used no GPU that could be the cause"
    assert history.counts["a"].hours_count


@pytest.mark.parametrize(
    ("detail", "counts_as"),
    [
        ("stopped by SIGHUP; rank 0 does not advance", "failed"),
        ("stopped by SIGTERM", "failed"),
        ("stopped by SIGINT", "not-counted"),
        ("its harness was gone before there was a record", "not-counted"),
        ("the Docker engine is gone", "not-counted"),
    ],
)
def test_what_interrupted_a_run_of_an_earlier_harness_is_in_its_detail(
    detail: str, counts_as: str, history: History
) -> None:
    assert history.run("a", "interrupted", detail=detail).counted_as == {"a": counts_as}


def test_an_injected_fault_does_not_count_and_answers_for_the_gpu_it_leaves(history: History) -> None:
    history.run("a").run("b", "failed", injected_fault="wedge-gpu@3").probe(False)
    assert history.counted_as == {"a": "passed", "b": "not-counted"}


def test_a_rehearsal_does_not_count_and_is_in_no_verdict(history: History) -> None:
    history.run("a").run("b", rehearsal=True)
    assert history.counted_as == {"a": "passed", "b": "not-counted"}
    assert history.counts["b"].why == "a rehearsal, in which nothing but the harness was real"
    assert (history.verdict.passes, history.verdict.runs, sum(history.verdict.outcomes.values())) == (1, 1, 1)


def test_no_rehearsal_qualifies_whatever_it_ran(make_record: MakeRecord) -> None:
    def qualifies(rehearsal: bool) -> bool:
        intent = make_record().intent
        options = {**intent.options, "loop": "plain", "vpoc_path": "naive"}
        record = make_record(options=options, verifier={"app": "a"}, rehearsal=rehearsal)
        return Row.of(record).qualifies_for_promotion

    assert [qualifies(rehearsal) for rehearsal in (False, True)] == [True, False]


def test_a_cell_that_resets_the_gpu_every_second_time_is_far_from_known_good(history: History) -> None:
    """The history that the first version called known-good: 33 of 33, with 33 host faults beside them."""
    for number in range(33):
        history.run(f"c{number}").run(f"h{number}", "host-fault", diagnosis="unhealthy-gpu")
    assert (history.verdict.passes, history.verdict.runs, history.verdict.tier) == (33, 66, "flaky")


def test_a_cell_that_completes_and_poisons_the_next_is_the_one_that_fails(history: History) -> None:
    """Each run of the cell completes and leaves the GPU unhealthy; the control that follows is innocent."""
    for number in range(10):
        history.run(f"p{number}", cell="poisoner").then_probe(False).probe(True, f"c{number}", "before-run")
        history.run(f"c{number}", cell="control").then_probe(True)
    control, poisoner = judge(map(Row.of, history.records), {}, Verdicts(), history.counts)
    assert (control.cell, control.passes, control.runs) == ("control", 10, 10)
    assert (poisoner.cell, poisoner.passes, poisoner.runs, poisoner.tier) == ("poisoner", 0, 10, "failing")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from(["good", "bad", "unclear", "completed", "failed", "hung"]), max_size=12))
def test_of_the_runs_before_a_failed_probe_the_last_one_has_failed(
    make_record: MakeRecord, make_step: MakeStep, host: HostFacts, kinds: list[str]
) -> None:
    history = History(make_record, make_step, host)
    expected: dict[str, CountName] = {}
    last = None
    for number, kind in enumerate(kinds):
        if kind in ("good", "bad", "unclear"):
            history.probe({"good": True, "bad": False}.get(kind))
            if kind == "bad" and last:
                expected[last] = "failed"
            elif kind == "good":
                last = None
        else:
            last = f"r{number}"
            history.run(last, kind)
            expected[last] = "passed" if kind == "completed" else "failed"
    assert history.counted_as == expected


def keep(results: Results, record: Record) -> None:
    results.begin(record.intent)
    results.finish(record)


def test_a_results_folder_is_read_as_a_whole(tmp_path: Path, make_record: MakeRecord, make_step: MakeStep) -> None:
    results = Results(tmp_path)
    assert counts_of(results) == {}
    record = make_record("a", gpus=(0,))
    keep(results, record)
    assert counts_of(results)["a"].counts_as == "passed"
    append_steps(results, [make_step(machine="another", good=False)])
    assert machines_with_bad_signs(results) == {"another"}
    assert counts_of(results)["a"].counts_as == "passed"
    append_steps(results, [make_step(good=False, at=record.finished + 60, run_id="b")])
    assert counts_of(results)["a"].counts_as == "failed"
    assert counts_of(results, Index(results).rows()) == counts_of(results)


def test_logs_of_machines_that_ran_nothing_are_not_read(
    tmp_path: Path, make_record: MakeRecord, make_step: MakeStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results(tmp_path)
    keep(results, make_record("a"))
    own = make_record("a").intent.host.machine
    append_steps(results, [make_step(good=False, machine=machine) for machine in ("another", own)])
    read = list[str]()

    def noting(_results: Results, machine: str) -> list[HealthStep]:
        read.append(machine)
        return []

    monkeypatch.setattr("harness.evidence.verdicts.counting.read_steps", noting)
    counts_of(results)
    assert read == [own]


def test_a_run_that_is_struck_out_does_not_count_and_still_answers_for_its_gpu(
    tmp_path: Path, make_record: MakeRecord, make_step: MakeStep
) -> None:
    results = Results(tmp_path)
    for number, name in enumerate("ab"):
        keep(results, make_record(name, "failed" if name == "b" else "completed", gpus=(0,), started=1e9 + number))
    append_steps(results, [make_step(good=False, at=1e9 + 60, run_id="c")])
    assert [count.counts_as for count in counts_of(results).values()] == ["passed", "failed"]
    strike(results.folder_of("b"), "strike", "the power went out")
    record = results.record("b")
    assert record is not None
    Index(results).add(record)
    counts = counts_of(results)
    assert [count.counts_as for count in counts.values()] == ["passed", "not-counted"]
    assert counts["b"].why == "struck out by hand: the power went out"
    strike(results.folder_of("b"), "undo", "it did not")
    # The decision is in the run folder, so rebuilding the index does not change it.
    Index(results).rebuild()
    assert [count.counts_as for count in counts_of(results).values()] == ["passed", "failed"]


def test_a_run_that_was_interrupted_during_the_probe_before_it_answers_for_nothing(history: History) -> None:
    history.run("poisons").run("probed", "interrupted", interrupted_by="ctrl-c", seconds=0.0).probe(False)
    assert history.counted_as == {"poisons": "failed", "probed": "not-counted"}


def test_a_run_whose_harness_was_killed_answers_though_nobody_knows_how_long_it_ran(history: History) -> None:
    history.run("sound").run("killed", "interrupted", interrupted_by="harness-killed", seconds=0.0).probe(False)
    assert history.counted_as == {"sound": "passed", "killed": "failed"}


def test_a_probe_after_a_run_is_of_that_run_whatever_the_clock_says(history: History) -> None:
    history.run("before").run("poisons")
    at = history.records[0].finished + 1
    step = history.probe(False, "poisons", "after-completion").steps.pop()
    history.steps.append(step.model_copy(update={"at": at}))
    assert history.counted_as == {"before": "passed", "poisons": "failed"}


@pytest.mark.parametrize("unprobed", [(), ("unprobed",)])
def test_the_last_run_before_a_failed_probe_answers_though_the_clock_was_set_back(
    unprobed: tuple[str, ...], history: History
) -> None:
    history.probe(True, "sound", "before-run").run("sound").probe(True, "poisons", "before-run").run("poisons")
    history._at -= 0 if unprobed else 3600
    for run_id in unprobed:
        history.run(run_id)
    history.probe(False, "next", "before-run")
    answers = (unprobed or ("poisons",))[0]
    assert [run_id for run_id, counted in history.counted_as.items() if counted == "failed"] == [answers]


def test_a_host_that_went_down_is_a_failure_and_no_fault_of_a_gpu(history: History) -> None:
    history.run("down", "host-fault", diagnosis="host-down").run("reset", "host-fault", diagnosis="unhealthy-gpu")
    counts = history.counts
    assert {name: (one.counts_as, one.gpu_fault) for name, one in counts.items()} == {
        "down": ("failed", False),
        "reset": ("failed", True),
    }
