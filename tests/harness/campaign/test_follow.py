"""Runs on other hosts are followed to their records; the scheduler is scripted, nothing is really run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from harness.base.errors import UserError
from harness.campaign import follow
from harness.campaign.bench import Bench
from harness.campaign.dispatch import Closing, Dispatcher, JobSeen, RunRequest
from harness.campaign.display import QuietDisplay
from harness.campaign.follow import Follower
from harness.campaign.plan import PendingRun, PlannedRun
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.records import Results
from harness.evidence.run_files import Intent, Record, Scheduled
from harness.host.facts import HostFacts
from harness.matrix.cells import Matrix

MakeRecord = Callable[..., Record]
ON_N1 = Scheduled(scheduler="slurm", job="1", node="n1")


@dataclass
class Scripted:
    """A scheduler whose looks are scripted: each a function that may do something to the results, too."""

    host: HostFacts
    looks: list[Callable[[], Mapping[str, JobSeen] | None]]
    takes: list[bool] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    closing: Closing = "asked"
    closed: list[str] = field(default_factory=list)
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

    def close(self, intent: Intent, job: JobSeen | None) -> Closing:
        self.closed.append(intent.run_id)
        return self.closing

    def cancel(self, run_ids: Collection[str]) -> None:
        self.cancelled += run_ids

    def only(self, node: str) -> Dispatcher:
        raise AssertionError(f"{node} alone was not asked for")

    def avoid(self, node: str) -> bool:
        self.avoided.append(node)
        return self.begins

    def learn(self, intent: Intent) -> None: ...

    def last_words(self, run_id: str) -> str:
        return "no such interpreter"


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(follow, "RECORD_SECONDS", 0.0)


@pytest.fixture
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory.mktemp("results"))


def followed(results: Results, scheduler: Scripted, matrix: Matrix, *names: str) -> list[Record]:
    bench = Bench(results, ProcessExecutor(), scheduler.host, (), dispatcher=scheduler)
    follower = Follower(bench, scheduler, QuietDisplay(), "c1")
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
    """The scheduler did not answer, and has the job all the same."""

    def ends() -> Mapping[str, JobSeen]:
        finish(results, make_record("r1"))
        return {"r1": JobSeen("over")}

    told: list[Mapping[str, JobSeen] | None] = [{}, None, {"r1": JobSeen("waits")}, {"r1": JobSeen("runs")}]
    looks: list[Callable[[], Mapping[str, JobSeen] | None]] = [*(partial(lambda one: one, one) for one in told), ends]
    scheduler = Scripted(host, looks, takes=[False])
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

    scheduler = Scripted(host, [lambda: {"r1": JobSeen("runs"), "r2": JobSeen("runs")}, end])
    assert len(followed(results, scheduler, matrix, "r1", "r2")) == 2
    assert scheduler.submitted == []


def test_a_job_that_ends_before_its_run_begins_is_submitted_three_times(
    results: Results, host: HostFacts, matrix: Matrix
) -> None:
    scheduler = Scripted(host, [dict, *[lambda: {"r1": JobSeen("over")}] * 3])
    with pytest.raises(UserError, match="3 jobs of run r1 ended before it began; the last one said: no such interp"):
        followed(results, scheduler, matrix)
    assert scheduler.submitted == ["r1"] * 3


def test_a_run_without_a_record_is_closed_on_its_node(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    record = make_record("r1", "interrupted", scheduled=ON_N1)
    results.begin(record.intent)

    def closes() -> Mapping[str, JobSeen]:
        results.finish(record)
        return {"r1": JobSeen("over", "n1")}

    scheduler = Scripted(host, [lambda: {"r1": JobSeen("over", "n1")}, closes])
    assert [one.outcome for one in followed(results, scheduler, matrix)] == ["interrupted"]
    assert scheduler.closed == ["r1"]


@pytest.mark.parametrize(("closing", "diagnosis"), [("gone", "host-down"), ("unkillable", "unkillable")])
def test_a_node_that_stays_away_is_taken_for_one_that_went_down(
    closing: Closing, diagnosis: str, results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    results.begin(make_record("r1", scheduled=ON_N1).intent)
    scheduler = Scripted(host, [lambda: {"r1": JobSeen("over", "n1")}], closing=closing)
    (record,) = followed(results, scheduler, matrix)
    assert (record.outcome, record.diagnosis) == ("host-fault", diagnosis)
    # What the node's epilog told in the output of the job.
    assert record.detail.endswith("its job said: no such interpreter") == (closing == "unkillable")


def test_a_job_that_would_wait_for_ever_is_cancelled(results: Results, host: HostFacts, matrix: Matrix) -> None:
    scheduler = Scripted(host, [dict, lambda: {"r1": JobSeen("waits", never="PartitionTimeLimit")}])
    with pytest.raises(UserError, match="r1 would wait for ever: PartitionTimeLimit"):
        followed(results, scheduler, matrix)
    assert scheduler.cancelled == ["r1"]


class Person(QuietDisplay):
    """Answers yes."""

    def agrees(self, question: str) -> bool:
        assert question == "1 jobs that waited are cancelled, 1 run. Cancel those, too?"
        return True


@pytest.mark.parametrize(
    ("display", "name", "left", "cancelled"),
    [
        (QuietDisplay(), "SIGINT", 1, ["r2"]),
        (Person(), "SIGINT", 0, ["r2", "r1"]),
        # The terminal was closed: nobody can answer.
        (Person(), "SIGHUP", 1, ["r2"]),
    ],
)
def test_what_waits_is_cancelled_though_it_was_submitted_since_the_last_look_and_what_runs_where_that_is_wanted(
    display: QuietDisplay,
    name: str,
    left: int,
    cancelled: list[str],
    results: Results,
    host: HostFacts,
    matrix: Matrix,
) -> None:
    scheduler = Scripted(host, [dict, lambda: {"r1": JobSeen("runs"), "r2": JobSeen("waits")}])
    bench = Bench(results, ProcessExecutor(), host, (), dispatcher=scheduler)
    follower = Follower(bench, scheduler, display, "c1")
    planned = PlannedRun(matrix.cells["cpu-plain"], 1)
    follower.follow([PendingRun(planned, name) for name in ("r1", "r2")], matrix.workloads["quick"])
    follower._look()
    follower._submit()
    assert follower.interrupted(name) == left
    assert scheduler.cancelled == cancelled


def test_a_node_with_an_unhealthy_gpu_gets_no_more_runs(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    finish(results, make_record("r1", "host-fault", "not-begun", scheduled=ON_N1))
    scheduler = Scripted(host, [lambda: {"r1": JobSeen("over", "n1")}])
    followed(results, scheduler, matrix)
    assert scheduler.avoided == ["n1"]


def test_where_no_node_begins_runs_the_command_ends_and_what_waits_is_cancelled(
    results: Results, host: HostFacts, matrix: Matrix, make_record: MakeRecord
) -> None:
    finish(results, make_record("r1", "host-fault", "not-begun", scheduled=ON_N1))
    look = {"r1": JobSeen("over", "n1"), "r2": JobSeen("waits")}
    scheduler = Scripted(host, [lambda: look], begins=False)
    with pytest.raises(UserError, match="no node is left that begins runs: "):
        followed(results, scheduler, matrix, "r1", "r2")
    assert scheduler.cancelled == ["r2"]
