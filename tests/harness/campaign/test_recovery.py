"""Tests of closing runs whose harness is gone: once, by one process, without touching those of a living harness."""

import fcntl
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.errors import UserError
from harness.base.files.storage import unfinished
from harness.campaign import recovery
from harness.campaign.recovery import close_leftovers, recover
from harness.environments.executors.job import Exit, Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.app_reports.exposure import exposure_of
from harness.evidence.files.run_files import HealthStep, Intent, Record
from harness.evidence.files.run_folder import RunFolder
from harness.evidence.gpus.health_log import append_steps, read_steps
from harness.evidence.index import Index
from harness.evidence.records import Results
from harness.evidence.row import Row
from harness.evidence.verdicts.counting import count_runs
from harness.host.facts import HostFacts
from harness.host.processes import run_processes
from harness.host.processes.processes import ProcessId, boot_id
from harness.host.processes.run_processes import RUN_MARK, processes_of_run, run_mark
from tests.harness.evidence.simulated_progress import NONCE, ProgressLines, write_start, write_training
from tests.harness.gpu_tree import ADDRESSES, TwoGpuHost
from tests.harness.pretending import InstantBench, RecordingDisplay

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
    assert time.monotonic() - began < 15
    assert process.wait(5) == -9
    process.stdout.close()


def test_a_run_whose_host_went_down_has_failed(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    results.begin(make_intent("r1", host=here.model_copy(update={"boot_id": "the boot before"})))
    (record,) = closed(results, here)
    assert (record.outcome, record.diagnosis, record.interrupted_by) == ("host-fault", "host-down", None)
    assert "the host went down" in record.detail
    assert count_runs([Row.of(record)])["r1"].counts_as == "failed"


def write_progress(folder: Path, wall: float, monotonic: float = 1.0) -> None:
    memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
    line = {"schema": 2, "wall": wall, "monotonic": monotonic, "rank": 0, "pid": 1, "phase": "step", "done": 9}
    line |= {"total": 99, "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory}
    (folder / "work/progress-0.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")


def test_a_run_that_hung_before_its_harness_was_killed_is_not_said_to_be_for_striking(
    tmp_path: Path, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, display = InstantBench.on(tmp_path, here), RecordingDisplay()
    bench.results.begin(make_intent("hung", host=here, device="cuda", gpus=(0,)))
    monkeypatch.setattr(recovery, "_idle", lambda *_: (1000.0, 300.0))
    close_leftovers(bench, display)
    [row] = Index(bench.results).rows()
    assert count_runs([row])["hung"].counts_as == "failed"
    assert not [one for one in display.problems if "strike" in one]


def test_of_a_run_whose_host_went_down_the_way_to_take_it_out_is_named(
    tmp_path: Path, here: HostFacts, make_intent: MakeIntent
) -> None:
    bench, display = InstantBench.on(tmp_path, here), RecordingDisplay()
    bench.results.begin(make_intent("before-boot", host=here.model_copy(update={"boot_id": "b" * 36})))
    bench.results.begin(make_intent("killed", host=here))
    close_leftovers(bench, display)
    down, killed = sorted(one for one in display.problems if "recorded as" in one)
    assert down.endswith("recorded as host-fault")
    assert killed.endswith("recorded as interrupted")
    [said] = [one for one in display.problems if "strike" in one]
    assert said == "it counts as failed, and `matrix strike before-boot --reason TEXT` takes it out"


@pytest.mark.parametrize(
    ("told", "ended"), [(7200.0, 7200.0), (-60.0, 0.0), (90_000.0, 36_000.0), (math.inf, 0.0), (None, 0.0)]
)
def test_the_time_until_an_orphan_is_found_is_none_of_the_runs(
    told: float | None, ended: float, results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    """The run began ten hours ago.

    - `told`: the time of its last line of progress, in seconds after its start; None: there is no line.
    - `ended`: the end in its record, in seconds after its start.
    """
    started = time.time() - 36_000
    folder = results.begin(make_intent("r1", host=here, started=started))
    if told is not None:
        write_progress(folder, started + told)
    (record,) = closed(results, here)
    assert record.finished - started == pytest.approx(ended, abs=5)


def test_an_orphan_has_no_more_time_than_its_progress_was_written_in(
    results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is found a day later, while its app claims to have gone on until then, and even for a thousand years."""
    started = time.time()
    folder = results.begin(make_intent("r1", host=here, started=started))
    write_progress(folder, started + 86_000)
    lines = [json.loads((folder / "work/progress-0.jsonl").read_text())]
    lines += [{**lines[0], "done": done, "monotonic": at} for done, at in ((10, 5.0), (11, 3e10))]
    (folder / "work/progress-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("harness.campaign.recovery.time.time", lambda: started + 86_400)
    (record,) = closed(results, here)
    assert record.finished - started == pytest.approx(0, abs=60)
    exposure = exposure_of(record, results.folder_of("r1"))
    assert exposure.seconds == pytest.approx(0, abs=60)


def test_an_orphan_accounts_for_the_steps_that_its_progress_tells_and_no_others(
    results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    """One run reports honestly, one leaves out lines, one claims more time than this host is up, one has no lines."""
    told = write_training(write_start(ProgressLines()))
    lines = {"honest": told.lines[:-4]}
    *lines["torn"], last = deepcopy(lines["honest"])
    lines["torn"].append({**last, "number": last["number"] + 9})
    lines["long"] = [*lines["honest"][:-1], {**last, "monotonic": last["monotonic"] + 1e9}]
    lines["none"] = []
    for run_id, ours in lines.items():
        folder = results.begin(make_intent(run_id, host=here, nonce=NONCE))
        file = folder / "work/progress-0.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in ours), encoding="utf-8")
    found = {record.intent.run_id: record for record in closed(results, here)}
    assert {run_id: record.steps_accounted for run_id, record in found.items()} == {
        "honest": (last["done"],), "torn": (), "long": (), "none": ()
    }  # fmt: skip
    assert "progress cannot be used: rank 0: 9 lines of its progress are missing" in found["torn"].detail
    assert "it reports 1000000" in found["long"].detail
    assert "accounts for" not in found["honest"].detail


@pytest.mark.parametrize("ahead", [0, 30, 7200])
def test_after_a_reboot_steps_count_though_the_clock_was_set_back_during_the_run(
    ahead: float, results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = write_training(write_start(ProgressLines())).lines[:-4]
    took = told[-1]["monotonic"] - told[0]["monotonic"]
    before = here.model_copy(update={"boot_id": "the boot before"})
    folder = results.begin(make_intent("r1", host=before, nonce=NONCE, started=time.time() - took - 2 + ahead))
    (folder / "work/progress-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
    # The host is up for less time than the run had taken.
    monkeypatch.setattr("time.clock_gettime", lambda _: took / 2)
    (record,) = closed(results, here)
    assert record.steps_accounted == (told[-1]["done"],)


@pytest.mark.parametrize("boot", ["this one", "the boot before"])
def test_a_reset_of_its_gpu_is_seen_though_its_harness_was_killed(
    boot: str, results: Results, dual_host: HostFacts, make_intent: MakeIntent, tree: TwoGpuHost
) -> None:
    here = dual_host.model_copy(update={"boot_id": "this one"})
    then = here.model_copy(update={"boot_id": boot})
    started = time.time() - 60
    tree.kernel_says(f"amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!")
    for gpu in (0, 1):
        results.begin(make_intent(f"r{gpu}", host=then, device="cuda", gpus=(gpu,), started=started))
    results.begin(make_intent("on-a-cpu", host=then, started=started))
    records = recover(results, here, lambda _: None, [], tree.root)
    steps = list(read_steps(results))
    if boot != here.boot_id:
        assert steps == []
        return
    assert sorted((step.run_id, step.check, step.good) for step in steps) == [
        ("r0", "kernel-log", True),
        ("r1", "kernel-log", False),
    ]
    counts = count_runs(map(Row.of, records), steps)
    assert {run_id: count.gpu_fault for run_id, count in counts.items()} == {"r0": False, "r1": True, "on-a-cpu": False}


def test_what_a_killed_harness_had_seen_itself_is_not_looked_for_again(
    results: Results,
    dual_host: HostFacts,
    make_intent: MakeIntent,
    make_step: Callable[..., HealthStep],
    tree: TwoGpuHost,
) -> None:
    for run_id in ("seen", "reset-before"):
        results.begin(make_intent(run_id, host=dual_host, device="cuda", gpus=(0,), started=time.time() - 60))
    about = {"machine": dual_host.machine, "boot_id": dual_host.boot_id}
    before = time.time() + 2e9
    steps = [
        make_step(run_id="seen", check="kernel-log", gpu=None, good=True, **about),
        make_step(run_id="reset-before", when="before-run", check="reset", at=before, **about),
    ]
    append_steps(results, steps)
    tree.kernel_says(f"amdgpu {ADDRESSES[0]}: amdgpu: GPU reset begin!")
    recover(results, dual_host, lambda _: None, [], tree.root)
    new = [(step.run_id, step.check, step.good) for step in read_steps(results)][2:]
    # Only what the kernel logged after that reset is searched.
    assert new == [("reset-before", "kernel-log", True)]


def test_the_kernel_log_is_read_from_the_start_of_an_orphan_though_the_wall_clock_was_set_back(
    results: Results, dual_host: HostFacts, make_intent: MakeIntent, tree: TwoGpuHost
) -> None:
    began = {"started": time.time() + 2e9, "since_boot": time.clock_gettime(time.CLOCK_BOOTTIME) - 60}
    results.begin(make_intent(host=dual_host, device="cuda", gpus=(0,), **began))
    tree.kernel_says(f"amdgpu {ADDRESSES[0]}: amdgpu: GPU reset begin!")
    recover(results, dual_host, lambda _: None, [], tree.root)
    assert [step.good for step in read_steps(results)] == [False]


@pytest.mark.parametrize(("idle", "counts_as"), [(50.0, "not-counted"), (70.0, "failed")])
def test_an_orphan_counts_where_it_had_not_advanced_for_long(
    idle: float, counts_as: str, results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    """In a step 180 s are allowed without an advance. The wall clock was set an hour ahead meanwhile."""
    folder = results.begin(make_intent("r1", host=here))
    write_progress(folder, time.time() - 3600 - idle, time.monotonic() - idle)
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], env={RUN_MARK: run_mark(folder)}, stdout=subprocess.PIPE
    ) as app:
        assert app.stdout is not None
        assert app.stdout.readline()
        (record,) = closed(results, here)
    assert (record.outcome, record.interrupted_by, record.idle_limit) == ("interrupted", "harness-killed", 180)
    assert count_runs([Row.of(record)])["r1"].counts_as == counts_as


def test_of_an_orphan_whose_processes_are_gone_nothing_is_known(
    results: Results, here: HostFacts, make_intent: MakeIntent
) -> None:
    """They may have ended with their harness, hours before they are looked for."""
    folder = results.begin(make_intent("r1", host=here))
    write_progress(folder, time.time() - 7200, time.monotonic() - 7200)
    (record,) = closed(results, here)
    assert (record.idle_seconds, record.interrupted_by) == (None, "harness-killed")
    assert count_runs([Row.of(record)])["r1"].counts_as == "not-counted"


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
        """Write the record just before the harness is found to be gone."""
        results.finish(make_record("r1", "completed").model_copy(update={"intent": intent}))
        return False

    monkeypatch.setattr(recovery, "owner_alive", alive)
    assert closed(results, here) == []
    record = results.record("r1")
    assert record is not None
    assert record.outcome == "completed"


def test_a_recovery_that_somebody_keeps_others_from_says_so_and_is_abandoned(
    results: Results, here: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SHORT_LOCK_SECONDS", 0.15)
    monkeypatch.setattr("harness.base.files.locks.QUIET_SECONDS", 0.0)
    results.runs.mkdir(parents=True)
    said: list[str] = []
    with (results.folder / recovery.RECOVERY_LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process has locked it"):
            recover(results, here, lambda _: None, [], say=said.append)
    assert [line for line in said if "waiting for another process" in line]


def test_in_a_job_of_a_scheduler_it_is_waited_for_as_long_as_it_takes(
    results: Results, here: HostFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SHORT_LOCK_SECONDS", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    results.runs.mkdir(parents=True)
    with (results.folder / recovery.RECOVERY_LOCK).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        freed = threading.Timer(1.0, fcntl.flock, (other, fcntl.LOCK_UN))
        freed.start()
        assert recover(results, here, lambda _: None, []) == []
        freed.join()


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


def test_a_damaged_intent_is_reported_and_keeps_nothing_from_going_on(
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
    """A stand-in for an executor and for its handle that cannot end anything."""

    pid = None
    inspected = None
    unanswered = False
    silent_seconds = 0.0

    def start(self, job: object) -> Any:
        raise AssertionError("nothing is started to end what was left")

    def find(self, job: Job) -> Any:
        return self

    def poll(self) -> Exit | None:
        return None

    def stop(self, grace: float) -> bool:
        return False


def test_what_cannot_be_killed_is_a_host_fault(
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


def test_what_runs_in_a_container_is_found_by_the_note_of_the_harness_that_began_it(
    results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.host.processes.unmarked._groups", lambda pid: "a" * 64 if pid != os.getpid() else "")
    folder = results.begin(make_intent("r1", host=here, executor="docker"))
    note = RunFolder(folder).note_of(RunFolder(folder).log, contained=True)
    note.with_name("container-probe.json").write_text("[", encoding="utf-8")
    note.write_text(json.dumps({"Id": "a" * 64}), encoding="utf-8")
    write_progress(folder, time.time())
    with subprocess.Popen(["sleep", "60"], env={RUN_MARK: run_mark(folder)}) as process:
        (record,) = recover(results, here, lambda _: None, [])
        assert process.wait(5) == -15
    assert record.idle_limit == 180


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
    assert {name for name, folder in folders.items() if Path(RunFolder(folder).work.scratch).exists()} == {
        "failed",
        "orphan",
    }


def test_a_training_keeps_what_it_has_not_taken_yet(
    results: Results, here: HostFacts, make_intent: MakeIntent, make_record: Any
) -> None:
    campaign = "20260101T000000Z-abcdef-train"
    folder = results.begin(make_intent("r1", host=here, campaign=campaign))
    RunFolder(folder).make_places()
    results.finish(make_record("r1", "completed", campaign=campaign))
    closed(results, here)
    assert not RunFolder(folder).temporary.exists()
    assert Path(RunFolder(folder).work.scratch).exists()


def test_an_intent_leads_to_no_other_folder(results: Results, here: HostFacts, make_intent: MakeIntent) -> None:
    """Anybody who shares the results folder may write an intent, and recovery would change any folder it leads to."""
    folder = results.begin(make_intent("r1", host=here))
    private = results.folder.parent / "private"
    private.mkdir(mode=0o700)
    RunFolder(folder).write(
        RunFolder.INTENT, make_intent("r1", host=here).model_copy(update={"run_id": "../../private"})
    )
    damaged: list[str] = []
    assert recover(results, here, lambda _: None, damaged) == []
    assert (list(private.iterdir()), private.stat().st_mode & 0o777) == ([], 0o700)
    assert len(damaged) == 1


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
    elsewhere = unfinished(results.folder.parent / "elsewhere" / "x")
    elsewhere.parent.mkdir()
    elsewhere.touch()
    os.utime(elsewhere, (0, 0))
    (results.folder / "link").symlink_to(elsewhere.parent)
    new.append(elsewhere)
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
    """A stand-in for a process that ignores TERM and is gone `seconds` after it is killed."""

    # Larger than any pid that a kernel gives.
    pid = 1 << 30

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._gone = math.inf

    def terminate(self) -> None:
        pass

    def suspend(self) -> None:
        pass

    def kill(self) -> None:
        self._gone = min(self._gone, time.monotonic() + self._seconds)

    def is_running(self) -> bool:
        return time.monotonic() < self._gone

    def status(self) -> str:
        return psutil.STATUS_RUNNING


class Forking(Dying):
    """One of up to eight processes, each of which starts another one when one of them is killed."""

    def __init__(self, alive: list["Forking"]) -> None:
        super().__init__(0)
        self._alive, self.works = alive, True

    def suspend(self) -> None:
        self.works = False

    def kill(self) -> None:
        super().kill()
        self._alive.remove(self)
        while any(one.works for one in self._alive) and len(self._alive) < 8:
            self._alive.append(Forking(self._alive))


def test_what_makes_use_of_each_end_to_start_another_one_is_stopped_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[Forking] = []
    alive += [Forking(alive) for _ in range(8)]

    def searched(_: Path, *, stop: bool = False) -> list[Forking]:
        found, working = list(alive), [one for one in alive if one.works]
        if len(working) > 1:
            # The last process ends before it can be stopped, and leaves another one that this search does not find.
            found.remove(working[-1])
            alive.remove(working[-1])
            alive.append(Forking(alive))
        for one in found:
            if stop:
                one.suspend()
        return found

    monkeypatch.setattr(run_processes, "ENDED_SECONDS", 0.5)
    monkeypatch.setattr(run_processes, "processes_of_run", searched)
    assert run_processes.end_processes_of_run(tmp_path, 0.05)
    assert not alive


def test_only_a_process_that_outlasts_its_own_end_is_unkillable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that are new each time can be killed, so the app is to blame for them and not the host."""
    monkeypatch.setattr(run_processes, "KILLED_SECONDS", 0.05)
    ends = time.monotonic() + 1
    monkeypatch.setattr(
        run_processes, "processes_of_run", lambda _, **__: [Dying(0)] if time.monotonic() < ends else []
    )
    assert run_processes.end_processes_of_run(tmp_path, 0.05)
    slow = Dying(0)

    def searched(_: Path, **__: Any) -> list[Dying]:
        time.sleep(0.2)
        return [slow] if slow.is_running() else []

    # With hundreds of processes on all processors a search takes half a minute, and kills nothing before it ends.
    monkeypatch.setattr(run_processes, "ENDED_SECONDS", 0.1)
    monkeypatch.setattr(run_processes, "processes_of_run", searched)
    assert run_processes.end_processes_of_run(tmp_path, 0.05)
    deathless = Dying(math.inf)
    monkeypatch.setattr(run_processes, "processes_of_run", lambda _, **__: [deathless])
    assert not run_processes.end_processes_of_run(tmp_path, 0.05)


def test_a_process_that_is_woken_while_the_disk_writes_is_not_unkillable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_processes, "KILLED_SECONDS", 0.1)
    woken = itertools.count()
    monkeypatch.setattr(run_processes, "_woken", lambda _: next(woken))
    slow = Dying(0.6)
    monkeypatch.setattr(run_processes, "processes_of_run", lambda _, **__: [slow] if slow.is_running() else [])
    assert run_processes.end_processes_of_run(tmp_path, 0.05)
    # Yet not for ever.
    monkeypatch.setattr(run_processes, "ENDED_SECONDS", 0.6)
    deathless = Dying(math.inf)
    monkeypatch.setattr(run_processes, "processes_of_run", lambda _, **__: [deathless])
    assert not run_processes.end_processes_of_run(tmp_path, 0.05)


def test_what_takes_its_time_to_die_is_not_unkillable(
    results: Results, here: HostFacts, make_intent: MakeIntent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "ORPHAN_GRACE_SECONDS", 0.1)
    dying = Dying(1.5)
    monkeypatch.setattr(run_processes, "processes_of_run", lambda _, **__: [dying] if dying.is_running() else [])
    results.begin(make_intent("r1", host=here))
    (record,) = closed(results, here)
    assert (record.outcome, record.diagnosis) == ("interrupted", None)
