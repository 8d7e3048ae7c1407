"""Runs whose harness is gone: closed once, by one, and nothing of a harness that lives is touched."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.storage import unfinished
from harness.campaign import recovery
from harness.campaign.recovery import recover
from harness.environments.executors.job import Exit, Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.records import Results
from harness.evidence.run_files import Intent, Record
from harness.evidence.run_folder import RunFolder
from harness.host import run_processes
from harness.host.facts import HostFacts
from harness.host.processes import ProcessId, boot_id
from harness.host.run_processes import RUN_MARK, processes_of_run, run_mark

MakeIntent = Callable[..., Intent]
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def here(host: HostFacts) -> HostFacts:
    return host.model_copy(update={"boot_id": boot_id()})


def closed(results: Results, host: HostFacts, damaged: list[str] | None = None) -> list[Record]:
    executor = ProcessExecutor()
    return recover(results, host, lambda _: executor, [] if damaged is None else damaged)


def test_a_run_without_harness_is_recorded_once(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    results.begin(make_intent("r1", host=here))
    (record,) = closed(results, here)
    assert (record.outcome, record.diagnosis, record.intent.run_id) == ("interrupted", None, "r1")
    assert results.record("r1") == record
    assert closed(results, here) == []


def test_its_processes_are_ended_soon_though_they_are_deaf(
    results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    folder = results.begin(make_intent("r1", host=here))
    variables = {RUN_MARK: run_mark(folder)}
    process = subprocess.Popen([sys.executable, "-c", DEAF], env=variables, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    began = time.monotonic()
    closed(results, here)
    assert time.monotonic() - began < 5
    assert process.wait(5) == -9
    process.stdout.close()


def test_nothing_of_a_harness_that_lives_is_touched(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    me = ProcessId.mine()
    results.begin(make_intent("mine", host=here, owner_pid=me.pid, owner_started=me.started))
    results.begin(make_intent("elsewhere", host=here.model_copy(update={"machine": "another"})))
    assert closed(results, here) == []
    assert len(list(results.unfinished())) == 2


def test_a_record_that_came_just_before_its_harness_ended_is_kept(
    results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch, make_record: Any
) -> None:
    intent = make_intent("r1", host=here)
    results.begin(intent)

    def alive(_: Intent) -> bool:
        """The harness writes its record and is gone when it is looked for."""
        results.finish(make_record("r1", "completed").model_copy(update={"intent": intent}))
        return False

    monkeypatch.setattr(recovery, "owner_alive", alive)
    assert closed(results, here) == []
    record = results.record("r1")
    assert record is not None
    assert record.outcome == "completed"


def test_two_recoveries_at_once_close_a_run_once(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    for number in range(5):
        results.begin(make_intent(f"r{number}", host=here))
    together: list[Record] = []
    threads = [threading.Thread(target=lambda: together.extend(closed(results, here))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(record.intent.run_id for record in together) == [f"r{number}" for number in range(5)]


def test_a_damaged_intent_is_told_and_keeps_nothing_from_going_on(
    results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    for name in ("r1", "r2"):
        results.begin(make_intent(name, host=here))
    (results.run_folder("r1") / "intent.json").write_bytes(b"{")
    (results.runs / "nothing-in-it").mkdir()
    damaged: list[str] = []
    assert [record.intent.run_id for record in closed(results, here, damaged)] == ["r2"]
    assert len(damaged) == 1
    assert "is damaged" in damaged[0]


class Unstoppable:
    """An executor, and a handle, that cannot end anything."""

    pid = None
    inspected = None

    def start(self, job: object) -> Any:
        raise NotImplementedError

    def find(self, job: Job) -> Any:
        return self

    def poll(self) -> Exit | None:
        return None

    def stop(self, grace: float) -> bool:
        return False


def test_what_cannot_be_killed_is_a_fault_of_the_host(
    results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "end_processes_of_run", lambda *_: False)
    results.begin(make_intent("r1", host=here))
    (record,) = closed(results, here)
    assert (record.outcome, record.diagnosis) == ("host-fault", "unkillable")


def test_an_engine_that_does_not_answer_is_none(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    results.begin(make_intent("r1", host=here))
    (record,) = recover(results, here, lambda _: Unstoppable(), [])
    assert (record.outcome, record.diagnosis) == ("interrupted", None)


def test_where_nobody_can_be_asked_the_processes_are_ended_all_the_same(
    results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    folder = results.begin(make_intent("r1", host=here, executor="docker"))
    process = subprocess.Popen(["sleep", "60"], env={RUN_MARK: run_mark(folder)})
    (record,) = recover(results, here, lambda _: None, [])
    assert record.outcome == "interrupted"
    assert process.wait(5) == -15


def test_temporary_folders_of_runs_that_are_over_go(
    results: Results, here: HostFacts, make_intent: MakeIntent, make_record: Any
) -> None:
    folders = {}
    for name, outcome in (("done", "completed"), ("failed", "failed"), ("orphan", None)):
        folders[name] = results.begin(make_intent(name, host=here))
        RunFolder(folders[name]).make_places()
        if outcome:
            results.finish(make_record(name, outcome))
    closed(results, here)
    assert not any(RunFolder(folder).temporary.exists() for folder in folders.values())
    assert {name for name, folder in folders.items() if RunFolder(folder).work.scratch.exists()} == {"failed", "orphan"}


def test_a_training_keeps_what_it_has_not_taken_yet(
    results: Results, here: HostFacts, make_intent: MakeIntent, make_record: Any
) -> None:
    campaign = "20260101T000000Z-abcdef-train"
    folder = results.begin(make_intent("r1", host=here, campaign=campaign))
    RunFolder(folder).make_places()
    results.finish(make_record("r1", "completed", campaign=campaign))
    closed(results, here)
    assert not RunFolder(folder).temporary.exists()
    assert RunFolder(folder).work.scratch.exists()


def test_half_made_files_go_when_they_are_old(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    folder = results.begin(make_intent("r1", host=here))
    places = [results.folder / "report.html", results.runs / "r2", folder.parent.parent / "campaigns" / "c.json"]
    old, new = [], []
    for place in places:
        place.parent.mkdir(exist_ok=True)
        old.append(unfinished(place))
        old[-1].mkdir() if place.name == "r2" else old[-1].write_text("{")
        os.utime(old[-1], (0, 0))
        new.append(old[-1].with_name(f".{place.name}.1.tmp"))
        new[-1].write_text("{")
    assert [intent.run_id for intent in results.unfinished()] == ["r1"]
    closed(results, here)
    assert not any(place.exists() for place in old)
    assert all(place.exists() for place in new)


def test_without_results_nothing_is_made(results: Results, here: HostFacts) -> None:
    assert closed(results, here) == []
    assert not results.folder.exists()


def test_the_record_of_a_run_that_is_over_is_not_written_again(
    results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    results.begin(make_intent("r1", host=here))
    closed(results, here)
    before = (results.run_folder("r1") / RunFolder.RECORD).stat().st_mtime_ns
    closed(results, here)
    assert (results.run_folder("r1") / RunFolder.RECORD).stat().st_mtime_ns == before
    assert processes_of_run(results.run_folder("r1")) == []


def test_a_damaged_record_keeps_nothing_from_going_on(
    results: Results, here: HostFacts, make_intent: MakeIntent, make_record: Any
) -> None:
    folders = {}
    for name in ("damaged", "done"):
        folders[name] = results.begin(make_intent(name, host=here))
        RunFolder(folders[name]).make_places()
        results.finish(make_record(name, "completed"))
    (folders["damaged"] / RunFolder.RECORD).write_bytes(b"{")
    assert closed(results, here) == []
    assert not RunFolder(folders["done"]).temporary.exists()
    RunFolder(folders["damaged"]).remove_places(all_of_it=True)


class Dying:
    """A process that is deaf to TERM and gone some time after it was killed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._gone = math.inf

    def terminate(self) -> None:
        pass

    def kill(self) -> None:
        self._gone = min(self._gone, time.monotonic() + self._seconds)

    def is_running(self) -> bool:
        return time.monotonic() < self._gone

    def status(self) -> str:
        return psutil.STATUS_RUNNING


def test_what_takes_its_time_to_die_is_not_unkillable(
    results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "ORPHAN_GRACE_SECONDS", 0.1)
    dying = Dying(1.5)
    monkeypatch.setattr(run_processes, "processes_of_run", lambda _: [dying] if dying.is_running() else [])
    results.begin(make_intent("r1", host=here))
    (record,) = closed(results, here)
    assert (record.outcome, record.diagnosis) == ("interrupted", None)
