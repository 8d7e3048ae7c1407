"""Tests of following runs on other hosts to their records; the scheduler is scripted, and nothing is really run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from harness.base.errors import UnhealthyHostError, UserError
from harness.campaign.bench.bench import Bench
from harness.campaign.bench.dispatch import Closing, Dispatcher, JobSeen, RunRequest
from harness.campaign.bench.display import Display, Elsewhere
from harness.campaign.bench.plan import PendingRun, PlannedRun
from harness.campaign.other_hosts import follow, waiting
from harness.campaign.other_hosts.follow import Follower
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_files import Intent, Record, Scheduled
from harness.evidence.records import Results
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix
from tests.harness.screen.recorded import a_line

MakeRecord = Callable[..., Record]
ON_N1 = Scheduled(scheduler="slurm", job="1", node="n1")


@dataclass
class ScriptedScheduler:
    """A scheduler with scripted answers: `look` calls the next one of `looks`, which may also change the results."""

    host: HostFacts
    looks: list[Callable[[], Mapping[str, JobSeen] | None]]
    takes: list[bool] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    closing: Closing = "asked"
    closed: list[str] = field(default_factory=list)
    nodes_away: dict[str, str] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    avoided: list[str] = field(default_factory=list)
    begins: bool = True
    images: str | None = None
    at_once: int = 10
    nodes_at_work: int = 2
    settle_seconds: float = 0.0
    gone_seconds: float = 0.0

    def submit(self, request: RunRequest) -> bool:
        self.submitted.append(RunRequest.parse(request.model_dump_json(by_alias=True)).run_id)
        return self.takes.pop(0) if self.takes else True

    def look(self) -> Mapping[str, JobSeen] | None:
        assert self.looks, "it was asked once more than it should be"
        return self.looks.pop(0)()

    def unavailable_nodes(self) -> Mapping[str, str] | None:
        return self.nodes_away

    def request_record(self, intent: Intent, job: JobSeen | None, *, asks: bool) -> Closing:
        if asks:
            self.closed.append(intent.run_id)
        return self.closing if asks or self.closing != "asked" else "left-none"

    def cancel(self, run_ids: Collection[str]) -> None:
        self.cancelled += run_ids

    def for_node(self, node: str) -> Dispatcher:
        raise AssertionError(f"{node} alone was not asked for")

    def avoid(self, intent: Intent, waiting: Collection[str]) -> bool:
        assert intent.scheduled
        self.avoided.append(intent.scheduled.node)
        return self.begins

    def note_host(self, intent: Intent) -> None: ...

    def last_output_line(self, run_id: str, *, closing: bool = False) -> str:
        return "no such folder" if closing else "no such interpreter"


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(follow, "RECORD_SECONDS", 0.0)


@pytest.fixture
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("results"))


class Noting(Display):
    """A display that keeps each text with the number of its lane."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, str]] = []
        self.number = 0

    def lane(self, number: int) -> Display:
        lane = Noting()
        lane.shown, lane.number = self.shown, number
        return lane

    def step(self, text: str) -> None:
        self.shown.append((self.number, text))

    notice = problem = step

    def started(self, planned: PlannedRun, position: int, total: int, elsewhere: Elsewhere | None = None) -> None:
        self.step(f"{position} started on {elsewhere.host if elsewhere else 'this host'}")

    def progress(self, line: Progress) -> None:
        self.step(f"{line.phase} {line.done}")

    def finished(self, record: Record) -> None:
        self.step(f"{record.intent.run_id} {record.outcome}")


def followed(
    results: Results, scheduler: ScriptedScheduler, matrix: Matrix, *names: str, display: Display | None = None
) -> list[Record]:
    bench = Bench(results, ProcessExecutor(), scheduler.host, (), dispatcher=scheduler)
    follower = Follower(bench, scheduler, display or Display(), "c1")
    cell = matrix.cells["cpu-plain"]
    pending = [PendingRun(PlannedRun(cell, n), name, n) for n, name in enumerate(names or ("r1",), start=1)]
    follower.follow(pending, matrix.workloads["quick"])
    return [record for _, record in follower.records()]


def finish(results: Results, record: Record) -> None:
    results.begin(record.intent)
    results.finish(record)


def test_a_run_is_submitted_once_though_nobody_knows_whether_that_was_done(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    """The scheduler did not answer the submission, but it has the job."""

    def ends() -> Mapping[str, JobSeen]:
        finish(results, make_record("r1"))
        return {"r1": JobSeen("over")}

    answers: list[Mapping[str, JobSeen] | None] = [{}, None, {"r1": JobSeen("waits")}, {"r1": JobSeen("runs")}]
    looks: list[Callable[[], Mapping[str, JobSeen] | None]] = [
        *(partial(lambda one: one, one) for one in answers),
        ends,
    ]
    scheduler = ScriptedScheduler(host, looks, takes=[False])
    assert [one.outcome for one in followed(results, scheduler, matrix)] == ["completed"]
    assert scheduler.submitted == ["r1"]


def test_what_has_a_job_or_a_folder_already_is_not_submitted(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    results.begin(make_record("r2").intent)

    def end() -> Mapping[str, JobSeen]:
        finish(results, make_record("r1"))
        results.finish(make_record("r2"))
        return {}

    scheduler = ScriptedScheduler(host, [lambda: {"r1": JobSeen("runs"), "r2": JobSeen("runs")}, end])
    assert len(followed(results, scheduler, matrix, "r1", "r2")) == 2
    assert scheduler.submitted == []


def test_a_job_that_ends_before_its_run_begins_is_submitted_three_times(
    results: Results, host: HostFacts, matrix: Matrix
) -> None:
    scheduler = ScriptedScheduler(host, [dict, *[lambda: {"r1": JobSeen("over")}] * 3])
    with pytest.raises(UserError, match="3 jobs of run r1 ended before it began; the last one said: no such interp"):
        followed(results, scheduler, matrix)
    assert scheduler.submitted == ["r1"] * 3


@pytest.mark.parametrize(("looks", "at_last"), [(1, {"r1": JobSeen("over", "n1")}), (5, {})])
def test_a_run_without_a_record_is_closed_on_its_node_which_is_not_asked_again_before_the_pause_is_over(
    looks: int,
    at_last: dict[str, JobSeen],
    results: Results,
    host: HostFacts,
    matrix: Matrix,
    make_record: MakeRecord,
) -> None:
    record = make_record("r1", "interrupted", scheduled=ON_N1)
    results.begin(record.intent)

    def closes() -> Mapping[str, JobSeen]:
        results.finish(record)
        return at_last

    scheduler = ScriptedScheduler(host, [*[lambda: {"r1": JobSeen("over", "n1")}] * looks, closes])
    assert [one.outcome for one in followed(results, scheduler, matrix)] == ["interrupted"]
    assert scheduler.closed == ["r1"]


@pytest.mark.parametrize(("closing", "diagnosis"), [("gone", "host-down"), ("unkillable", "unkillable")])
def test_a_node_that_stays_away_is_taken_for_one_that_went_down(
    closing: Closing, diagnosis: str, results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    results.begin(make_record("r1", scheduled=ON_N1).intent)
    scheduler = ScriptedScheduler(host, [lambda: {"r1": JobSeen("over", "n1")}], closing=closing)
    (record,) = followed(results, scheduler, matrix)
    assert (record.outcome, record.diagnosis) == ("host-fault", diagnosis)
    # The node's epilog wrote that into the output of the job.
    assert record.detail.endswith("its job said: no such interpreter") == (closing == "unkillable")


def test_a_node_that_leaves_no_record_is_asked_a_few_times_and_then_that_is_said(
    results: Results,
    host: HostFacts,
    matrix: Matrix,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other run gets its record meanwhile, and is still taken in."""
    monkeypatch.setattr(follow, "CLOSING_PAUSES", (0.0, 0.0))
    results.begin(make_record("r1", scheduled=ON_N1).intent)

    def ends() -> Mapping[str, JobSeen]:
        finish(results, make_record("r2"))
        return {"r1": JobSeen("over", "n1")}

    seen = {"r1": JobSeen("over", "n1"), "r2": JobSeen("runs", "n2")}
    scheduler = ScriptedScheduler(host, [*[lambda: seen] * 4, ends])
    display = Noting()
    with pytest.raises(UserError, match="n1 was asked 2 times; the last job for it said: no such folder; once that"):
        followed(results, scheduler, matrix, "r1", "r2", display=display)
    assert scheduler.closed == ["r1"] * 2
    texts = [text.partition(";")[0] for _, text in display.shown]
    assert texts.count("r1: its job ended without a record") == 2
    assert texts.count("run r1 ended without a record") == 1
    assert texts[-1] == "r2 completed"


def test_a_run_is_shown_on_its_node_with_its_progress(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    record, other = make_record("r1", scheduled=ON_N1), make_record("r2")
    progress = results.run_folder("r1") / "work" / "progress-0.jsonl"

    def begins() -> Mapping[str, JobSeen]:
        results.begin(record.intent)
        progress.write_text(a_line(done=30).model_dump_json() + "\n")
        return {"r1": JobSeen("runs", "n1"), "r2": JobSeen("waits")}

    def goes_on() -> Mapping[str, JobSeen]:
        progress.write_text(a_line(done=60).model_dump_json() + "\n")
        return {"r1": JobSeen("runs", "n1"), "r2": JobSeen("waits")}

    def ends() -> Mapping[str, JobSeen]:
        results.finish(record)
        finish(results, other)
        return {}

    display = Noting()
    # The second `goes_on` reports the same progress, so nothing more is shown.
    scheduler = ScriptedScheduler(host, [begins, goes_on, goes_on, ends])
    followed(results, scheduler, matrix, "r1", "r2", display=display)
    assert display.shown == [
        (0, "1 job runs, 1 waits"),
        (1, "1 started on n1"),
        (1, "step 30"),
        (1, "step 60"),
        (0, "2 jobs run, 0 wait"),
        (1, "r1 completed"),
        (0, "2 started on None"),
        (0, "r2 completed"),
    ]


HELD_UP = {"r1": JobSeen("waits", why="ReqNodeNotAvail"), "r2": JobSeen("waits")}


def test_why_runs_wait_is_said_and_after_a_while_where_nothing_runs_that_too(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends() -> Mapping[str, JobSeen]:
        finish(results, make_record("r1"))
        finish(results, make_record("r2"))
        return {}

    display = Noting()
    scheduler = ScriptedScheduler(host, [*[lambda: HELD_UP] * 2, ends], nodes_away={"n1": "drain (Prolog error)"})
    monkeypatch.setattr(waiting, "SAID_SECONDS", 0.0)
    monkeypatch.setattr(follow, "SAID_SECONDS", 0.0)
    followed(results, scheduler, matrix, "r1", "r2", display=display)
    why = "0 jobs run, 2 wait: 1 for ReqNodeNotAvail"
    steps = [text for _, text in display.shown if text.startswith("0 jobs")]
    assert steps == [why, f"{why}; n1 drain (Prolog error)"]
    (line, *_) = [text for _, text in display.shown if text.startswith("nothing has run for")]
    assert "0 s: 0 jobs run, 2 wait: 1 for ReqNodeNotAvail" in line


def test_where_no_node_takes_jobs_for_a_while_the_command_ends(
    results: Results, host: HostFacts, matrix: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"n1": "drain (Prolog error)", "n2": "down* (Not responding)"}
    scheduler = ScriptedScheduler(host, [lambda: HELD_UP], nodes_away=away)
    monkeypatch.setattr(waiting, "SAID_SECONDS", 0.0)
    monkeypatch.setattr(follow, "SAID_SECONDS", 0.0)
    with pytest.raises(UnhealthyHostError, match=r"no node takes jobs: n1 drain \(Prolog error\), n2 down\*"):
        followed(results, scheduler, matrix, "r1", "r2")
    assert scheduler.cancelled == ["r1", "r2"]


def test_nodes_that_take_no_jobs_are_waited_for_at_first(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    def ends() -> Mapping[str, JobSeen]:
        finish(results, make_record("r1"))
        return {}

    away = {"n1": "down*", "n2": "down*"}
    scheduler = ScriptedScheduler(
        host, [lambda: {"r1": HELD_UP["r1"]}, lambda: {"r1": HELD_UP["r1"]}, ends], nodes_away=away
    )
    assert len(followed(results, scheduler, matrix)) == 1
    assert scheduler.cancelled == []


def test_a_job_that_would_wait_for_ever_is_cancelled(results: Results, host: HostFacts, matrix: Matrix) -> None:
    scheduler = ScriptedScheduler(host, [dict, lambda: {"r1": JobSeen("waits", never="PartitionTimeLimit")}])
    with pytest.raises(UserError, match="r1 would wait for ever: PartitionTimeLimit"):
        followed(results, scheduler, matrix)
    assert scheduler.cancelled == ["r1"]


class Person(Display):
    """A display on which the user answers yes."""

    def agrees(self, question: str) -> bool:
        assert question == "1 waiting job cancelled, 1 under way. Cancel those, too?"
        return True


@pytest.mark.parametrize(
    ("display", "name", "left", "cancelled"),
    [
        (Display(), "SIGINT", 1, ["r2"]),
        (Person(), "SIGINT", 0, ["r2", "r1"]),
        # The terminal was closed, so nobody can answer.
        (Person(), "SIGHUP", 1, ["r2"]),
    ],
)
def test_what_waits_is_cancelled_though_it_was_submitted_since_the_last_look_and_what_runs_where_that_is_wanted(
    display: Display,
    name: str,
    left: int,
    cancelled: list[str],
    results: Results,
    host: HostFacts,
    matrix: Matrix,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = ScriptedScheduler(host, [dict, lambda: {"r1": JobSeen("runs"), "r2": JobSeen("waits")}])
    bench = Bench(results, ProcessExecutor(), host, (), dispatcher=scheduler)
    follower = Follower(bench, scheduler, display, "c1")
    planned = PlannedRun(matrix.cells["cpu-plain"], 1)
    follower.follow([PendingRun(planned, name) for name in ("r1", "r2")], matrix.workloads["quick"])
    follower._poll()
    follower._submit()
    notices: list[str] = []
    monkeypatch.setattr(display, "notice", notices.append)
    follower.interrupted(name)
    assert [text.partition(" ")[0] for text in notices] == [str(left)] * bool(left)
    assert scheduler.cancelled == cancelled


def test_a_node_with_an_unhealthy_gpu_gets_no_more_runs(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    finish(results, make_record("r1", "host-fault", "not-begun", scheduled=ON_N1))
    scheduler = ScriptedScheduler(host, [lambda: {"r1": JobSeen("over", "n1")}])
    followed(results, scheduler, matrix)
    assert scheduler.avoided == ["n1"]


def test_where_no_node_begins_runs_the_command_ends_and_what_waits_is_cancelled(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    finish(results, make_record("r1", "host-fault", "not-begun", scheduled=ON_N1))
    look = {"r1": JobSeen("over", "n1"), "r2": JobSeen("waits")}
    scheduler = ScriptedScheduler(host, [lambda: look], begins=False)
    with pytest.raises(UserError, match="no node is left that can begin runs: "):
        followed(results, scheduler, matrix, "r1", "r2")
    assert scheduler.cancelled == ["r2"]
