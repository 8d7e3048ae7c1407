"""Tests of `run_cell` with a stand-in app on synthetic GPUs: the record, and the checks that follow a run."""

import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.interrupts import interruptible
from harness.environments.environment import Environment
from harness.environments.executors.container import Container
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.app_files import InputFile
from harness.evidence.files.run_files import Record
from harness.evidence.gpus.health_log import read_steps, unhealthy_gpus
from harness.evidence.outcome.decide import Outcome, decide
from harness.evidence.outcome.diagnoses import Diagnosis
from harness.evidence.outcome.evidence import Evidence
from harness.evidence.outcome.request import Request
from harness.evidence.records import Results
from harness.evidence.verdicts.counting import counts_of
from harness.host.facts import HostFacts
from harness.host.gpus import amdgpu
from harness.host.processes.run_processes import processes_of_run
from harness.matrix.cells import Matrix
from harness.run import gpu_health
from harness.run.gpu_health import Checkup
from harness.run.gpu_probe import PROBE_CHECKS, Probed
from harness.run.gpu_readiness import Readiness
from harness.run.requested_run import Run
from harness.run.run_cell import run_cell
from harness.run.spec import resolve_run
from harness.run.watch.watch import Observer
from tests.harness.gpu_tree import ADDRESSES, TwoGpuHost, hanging_reads

# The stand-in app. Its training waits for 60 s if the results folder has a file `wait`, and then fails. After training,
# its probe reports that the check named in the file `breaks` hung.
APP = f"""#!{sys.executable}
import json, os, pathlib, sys, time
command, results = sys.argv[3], pathlib.Path.cwd().parents[2]
if command == "probe":
    trained, breaks = (results / "trained").exists(), results / "breaks"
    if trained and (results / "probe-waits").exists():
        (results / "probing").touch()
        time.sleep(60)
    at = breaks.read_text() if trained and breaks.exists() else None
    outcomes = {{check: "hung" if check == at else "passed" for check in {PROBE_CHECKS!r}}}
    checks = [dict(check=check, outcome=outcome, detail="told", killable=True) for check, outcome in outcomes.items()]
    print(json.dumps(dict(breaks_at=at, checks=checks)))
else:
    memory = {{"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}}
    line = {{"schema": 2, "wall": 0, "monotonic": time.monotonic(), "rank": 0, "pid": os.getpid(), "phase": "import",
            "done": 1, "total": None, "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory}}
    open("progress-0.jsonl", "w").write(json.dumps(line) + chr(10))
    (results / "trained").touch()
    if (results / "leaves").exists() and os.fork() == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep \x1b[31m", "120"], {{}})
    time.sleep(60 if (results / "wait").exists() else 0)
    ends = results / "ends"
    if ends.exists():
        sys.exit(int(ends.read_text()))
    says = results / "says"
    sys.exit(says.read_text() if says.exists() else "RuntimeError: HIP error: the GPU said no")
"""


class Bench:
    """A results folder, a host with two GPUs, and the stand-in app on it."""

    def __init__(self, results: Results, tree: TwoGpuHost, run: Run) -> None:
        self.results = results
        self.tree = tree
        self.run = run

    def write(self, name: str, text: str = "") -> None:
        """Write a file into the results folder, where the app looks for it."""
        self.results.folder.mkdir(exist_ok=True)
        (self.results.folder / name).write_text(text, encoding="utf-8")

    def make(self, observe: Observer = lambda _: None) -> Record:
        return run_cell(self.run, self.results, ProcessExecutor(), observe, self.tree.root)

    @property
    def record(self) -> Record:
        """The record in the results folder: of an interrupted run, `make` returns none."""
        record = self.results.record(self.run.run_id)
        assert record is not None
        return record

    @property
    def steps(self) -> list[tuple[str, str, bool | None]]:
        steps = read_steps(self.results)
        # Such a step marks the start of a run.
        return [(s.when, s.check, s.good) for s in steps if (s.when, s.check) != ("before-run", "memory")]


@pytest.fixture
def bench(tmp_path: Path, matrix: Matrix, dual_host: HostFacts) -> Bench:
    tree = TwoGpuHost(tmp_path / "root")
    tree.kernel_says("usb 1-2: new high-speed USB device number 3 using xhci_hcd")
    python = tmp_path / "python"
    python.write_text(APP, encoding="utf-8")
    python.chmod(0o755)
    environment = Environment(python, {"lock": "l"}, {}, "cuda")
    cell, data = matrix.cells["rocm6.3-torch2.9.1-plain"], InputFile(path="/bars.csv", sha256="a" * 64)
    run = Run("r1", cell, matrix.workloads["quick"], data, environment, dual_host, gpus=(1,))
    return Bench(Results(tmp_path / "results"), tree, run)


def test_what_a_container_reads_is_held_open_while_it_runs_and_what_it_says_is_of_this_host(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, refused = tmp_path / "bars.csv", list[bool]()
    data.touch()
    container = Container("image", 0, 0, str(tmp_path), (str(data),))

    def observe(_: object) -> None:
        with data.open("rb") as seen_by_app, pytest.raises(BlockingIOError):
            fcntl.fcntl(seen_by_app, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        refused.append(True)

    monkeypatch.setattr(
        "harness.run.run_cell.resolve_run", lambda *words: replace(resolve_run(*words), container=container)
    )
    cell = bench.run.cell
    variant = replace(cell, preset=cell.preset.model_copy(update={"name": "plain~fresh-allocator"}))
    bench.run = replace(bench.run, cell=variant)
    bench.write("says", "vpoc: /data/bars.csv: line 3 of /work/output/x, not /data/bars.csv2 nor /a/work")
    record = bench.make(observe)
    assert record.diagnosis == "app-error"
    assert refused
    # The message has the paths of the host, because the user does not know those inside the container.
    said = f"{data}: line 3 of {tmp_path}/output/x, not /data/bars.csv2 nor /a/work"
    verify = "its image was not built here; `matrix verify rocm6.3-torch2.9.1-plain` compares"
    assert record.detail == f"the train process ended with exit 1: '{said}'; {verify}"


@pytest.mark.slow
def test_a_run_that_fails_on_a_gpu_that_is_well_is_its_own_fault(bench: Bench) -> None:
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("failed", "app-error")
    assert record.detail == "the train process ended with exit 1: 'RuntimeError: HIP error: the GPU said no'"
    assert record.host_problems == ()
    assert record.explanation is not None
    assert set(record.longest_stall) == {"import"}
    assert bench.steps == [
        ("before-run", "probe", True),
        ("after-failure", "memory", True),
        ("after-failure", "kernel-log", True),
        ("after-failure", "probe", True),
    ]
    health = json.loads((bench.results.run_folder("r1") / "failure/health.json").read_text())
    assert [step["check"] for step in health["steps"]] == ["memory", "kernel-log", "probe"]
    # The run's own log does not have the output of a probe.
    assert "checks" not in (bench.results.run_folder("r1") / "log.txt").read_text()


@pytest.mark.slow
def test_a_run_after_which_the_gpu_fails_its_probe_is_the_hosts_fault(bench: Bench) -> None:
    bench.write("breaks", "matmul-fp32")
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("host-fault", "unhealthy-gpu")
    assert record.host_problems == ("GPU 1 failed its probe: matmul-fp32 hung: told",)
    assert record.detail.startswith(
        "GPU 1 failed its probe: matmul-fp32 hung: told; the run itself: failed (app-error)"
    )
    assert unhealthy_gpus(bench.results, bench.run.host) == {1: "matmul-fp32 hung: told"}
    assert Record.model_validate_json(record.model_dump_json(by_alias=True)) == record


@pytest.mark.slow
@pytest.mark.parametrize(("diagnosis", "accounted"), [("verification-failed", ()), ("crash", None)])
def test_nothing_is_resumed_from_wrong_numbers_though_the_gpu_is_at_fault(
    diagnosis: Diagnosis, accounted: tuple[int, ...] | None, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(request: Request, evidence: Evidence) -> Outcome:
        return decide(request, evidence) if evidence.host_problems else Outcome("failed", diagnosis, "wrong")

    bench.write("breaks", "matmul-fp32")
    monkeypatch.setattr("harness.run.conclude.decide", wrong)
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("host-fault", "unhealthy-gpu")
    assert (record.steps_accounted == ()) is (accounted == ())


def completing(request: Request, evidence: Evidence) -> Outcome:
    """Stand in for `decide`: every run that was not stopped has completed."""
    return Outcome("completed", None, "done") if evidence.stopped_by is None else decide(request, evidence)


@pytest.mark.slow
def test_a_run_that_completed_and_left_its_gpu_unhealthy_has_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write("breaks", "matmul-fp32")
    monkeypatch.setattr("harness.run.conclude.decide", completing)
    record = bench.make()
    assert (record.outcome, record.explanation) == ("completed", None)
    assert record.host_problems == ("GPU 1 failed its probe: matmul-fp32 hung: told",)
    assert bench.steps == [
        ("before-run", "probe", True),
        ("after-completion", "kernel-log", True),
        ("after-completion", "probe", False),
        ("after-completion", "reset", None),
    ]
    assert counts_of(bench.results)["r1"].counts_as == "failed"
    # The next run does not begin on the unhealthy GPU, and does not count.
    bench.run = replace(bench.run, run_id="r2")
    second = bench.make()
    assert (second.outcome, second.diagnosis) == ("host-fault", "not-begun")
    assert second.detail == "not begun, on an unhealthy GPU: GPU 1: matmul-fp32 hung: told"
    assert second.exit == {}
    counts = counts_of(bench.results)
    assert [counts[run].counts_as for run in ("r1", "r2")] == ["failed", "not-counted"]


@pytest.mark.slow
def test_the_probe_after_a_run_serves_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.conclude.decide", completing)
    bench.make()
    bench.run = replace(bench.run, run_id="r2")
    bench.make()
    assert [step[0] for step in bench.steps if step[1] == "probe"] == [
        "before-run",
        "after-completion",
        "after-completion",
    ]
    # No probe follows an interrupted run; the probe before the next run finds the GPU unhealthy.
    bench.run = replace(bench.run, run_id="r3")
    bench.write("wait")
    with pytest.raises(KeyboardInterrupt):
        bench.make(interrupting)
    assert counts_of(bench.results)["r3"].counts_as == "not-counted"
    bench.write("breaks", "device")
    bench.run = replace(bench.run, run_id="r4")
    assert bench.make().diagnosis == "not-begun"
    assert [(run, count.counts_as) for run, count in counts_of(bench.results).items()] == [
        ("r1", "passed"),
        ("r2", "passed"),
        ("r3", "failed"),
        ("r4", "not-counted"),
    ]


@pytest.mark.slow
def test_a_reset_in_the_kernel_log_is_the_hosts_fault(bench: Bench) -> None:
    bench.tree.kernel_says(f"amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!")
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("host-fault", "unhealthy-gpu")
    assert "GPU reset begin!" in record.host_problems[0]
    assert unhealthy_gpus(bench.results, bench.run.host) == {}


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("run_cell.before_run", "checking the GPUs before the run failed: RuntimeError: a mistake of ours"),
        ("carry_out.known_stalls", "reading the stalls of earlier runs failed: RuntimeError: a mistake of ours"),
        ("conclude.after_failure", "checking the GPUs after the run failed: RuntimeError: a mistake of ours"),
        ("conclude.explain_run", "explaining it failed: RuntimeError: a mistake of ours"),
    ],
)
def test_a_mistake_of_ours_costs_no_record(name: str, note: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(f"harness.run.{name}", mistaken)
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("failed", "app-error")
    assert record.detail.endswith(f"; {note}")
    assert bench.results.record("r1") == record


def interrupting(*_: Any) -> None:
    raise KeyboardInterrupt("SIGINT")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shutting_down", "by"),
    [("SIGHUP", False, "hup"), ("SIGTERM", False, "term"), ("SIGTERM", True, "shutdown"), ("SIGINT", True, "ctrl-c")],
)
def test_what_interrupted_a_run_is_recorded(
    name: str, shutting_down: bool, by: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt(name)

    monkeypatch.setattr("harness.run.run_cell.host_is_shutting_down", lambda: shutting_down)
    bench.write("wait")
    with pytest.raises(KeyboardInterrupt):
        bench.make(interrupt)
    assert bench.record.interrupted_by == by


def test_after_ctrl_c_only_the_memory_is_waited_for(bench: Bench) -> None:
    bench.write("wait")
    bench.write("breaks", "device")
    with pytest.raises(KeyboardInterrupt):
        bench.make(interrupting)
    record = bench.record
    assert (record.outcome, record.detail) == ("interrupted", "stopped by SIGINT")
    assert record.explanation is None
    # The run's end in the record is before these checks.
    after = [("after-failure", "memory", True), ("after-failure", "kernel-log", True)]
    assert bench.steps == [("before-run", "probe", True), *after]
    assert [step.at > record.finished for step in read_steps(bench.results)] == [False, False, True, True]
    assert (record.interrupted_by, record.idle_limit) == ("ctrl-c", 180)
    assert record.idle_seconds is not None
    assert record.idle_seconds < 60
    assert processes_of_run(bench.results.run_folder("r1")) == []


# Ctrl-C may come between the opening of a file and the `with` that closes it.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_ctrl_c_during_the_recovery_of_the_gpu_leaves_the_run_what_it_was(
    bench: Bench, sigint_when_file_appears: Any
) -> None:
    bench.write("probe-waits")
    with interruptible(), sigint_when_file_appears(bench.results.folder / "probing"), pytest.raises(KeyboardInterrupt):
        bench.make()
    record = bench.record
    assert (record.outcome, record.diagnosis) == ("failed", "app-error")
    assert record.detail.endswith("; the post-run checks were stopped by SIGINT")
    assert bench.steps[-1] == ("after-failure", "kernel-log", True)
    assert processes_of_run(bench.results.run_folder("r1")) == []


@pytest.mark.parametrize(("where", "says"), [("keep", "app-error"), ("stop", "time-limit")])
def test_ctrl_c_after_the_run_has_failed_does_not_make_it_an_interrupted_one(
    where: str, says: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "keep":
        # The evidence of a failure takes up to 15 s, in which the user may give up.
        monkeypatch.setattr("harness.run.watch.collect.Collector.keep", interrupting)
    else:
        monkeypatch.setattr("harness.run.watch.watch.Watch.look_at_disk", interrupting)
        bench.write("wait")
        bench.run = replace(bench.run, workload=bench.run.workload.model_copy(update={"time_limit": 1}))
        monkeypatch.setattr("harness.run.watch.collect.Collector.keep", lambda *_: ())
    with pytest.raises(KeyboardInterrupt):
        bench.make()
    record = bench.record
    assert (record.outcome, record.diagnosis, record.interrupted_by) == ("failed", says, None)
    assert counts_of(bench.results)["r1"].counts_as == "failed"
    # No probe delays the user, and the kernel log is read all the same.
    after = [("after-failure", "memory", True), ("after-failure", "kernel-log", True)]
    assert bench.steps == [("before-run", "probe", True), *after]
    assert processes_of_run(bench.results.run_folder("r1")) == []


def test_a_run_that_was_ended_together_with_its_harness_was_interrupted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: Any) -> None:
        raise KeyboardInterrupt("SIGTERM")

    monkeypatch.setattr("harness.run.run_cell.host_is_shutting_down", lambda: True)
    monkeypatch.setattr("harness.run.watch.collect.Collector.keep", terminated)
    bench.write("ends", str(128 + signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        bench.make()
    assert (bench.record.outcome, bench.record.interrupted_by) == ("interrupted", "shutdown")


@pytest.fixture
def sigint_when_file_appears() -> Any:
    """Return a context manager that sends this process SIGINT as soon as a file appears."""

    @contextmanager
    def sending(file: Path) -> Iterator[None]:
        ended = threading.Event()

        def wait() -> None:
            while not file.exists() and not ended.wait(0.02):
                pass
            if file.exists():
                os.kill(os.getpid(), signal.SIGINT)

        waiting = threading.Thread(target=wait)
        waiting.start()
        try:
            yield
        finally:
            ended.set()
            waiting.join()

    return sending


def test_a_run_on_the_cpu_is_explained_and_no_gpu_looked_at(bench: Bench) -> None:
    environment = Environment(bench.run.environment.python, {"lock": "l"}, {}, "cpu")
    bench.run = replace(bench.run, environment=environment, gpus=())
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("failed", "app-error")
    assert record.explanation is not None
    assert bench.steps == []
    assert not (bench.results.run_folder("r1") / "failure/health.json").exists()


def test_what_cannot_be_killed_is_the_hosts_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.watch.watch.end_processes_of_run", lambda *_: False)
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("host-fault", "unkillable")
    assert record.host_problems == ("a process of the run cannot be killed",)
    # The process may hold the lock of its GPU for ever, so nothing may run on that GPU, and it was not probed again.
    assert unhealthy_gpus(bench.results, bench.run.host) == {1: "a process of a run on it cannot be killed"}
    assert list(bench.results.run_folder("r1").glob("probe-*")) == [bench.results.run_folder("r1") / "probe-gpu1.txt"]
    assert ("after-failure", "memory", True) not in bench.steps


def test_what_cannot_be_killed_after_ctrl_c_is_noted_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.watch.watch.end_processes_of_run", lambda *_: False)
    bench.write("wait")
    with pytest.raises(KeyboardInterrupt):
        bench.make(interrupting)
    assert (bench.record.outcome, bench.record.diagnosis) == ("host-fault", "unkillable")
    assert unhealthy_gpus(bench.results, bench.run.host).keys() == {1}
    # Nobody waits for memory that it will not give back.
    assert ("after-failure", "memory", True) not in bench.steps


def test_a_reset_before_the_run_is_not_the_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset_then_well(_: Checkup) -> Readiness:
        text = f"3,1,{time.monotonic() * 1e6:.0f},-;amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!\n"
        (bench.tree.root / "dev/kmsg").write_text(text, encoding="utf-8")
        time.sleep(0.05)
        return Readiness({})

    # The time by which a line may come too early is shorter than a reset takes.
    monkeypatch.setattr("harness.host.kernel_log.SLACK_SECONDS", 0.0)
    monkeypatch.setattr("harness.run.run_cell.before_run", reset_then_well)
    assert bench.make().outcome == "failed"
    assert ("after-failure", "kernel-log", True) in bench.steps
    assert not counts_of(bench.results)["r1"].gpu_fault


def test_a_reset_before_a_run_that_ctrl_c_kept_from_beginning_is_not_the_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset_then_interrupted(_: Checkup) -> Readiness:
        text = f"3,1,{time.monotonic() * 1e6:.0f},-;amdgpu {ADDRESSES[1]}: amdgpu: GPU reset begin!\n"
        (bench.tree.root / "dev/kmsg").write_text(text, encoding="utf-8")
        time.sleep(0.05)
        raise KeyboardInterrupt("SIGINT")

    monkeypatch.setattr("harness.host.kernel_log.SLACK_SECONDS", 0.0)
    monkeypatch.setattr("harness.run.run_cell.before_run", reset_then_interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.make()
    assert bench.record.outcome == "interrupted"
    assert counts_of(bench.results)["r1"].counts_as == "not-counted"


def test_steps_that_progress_could_not_be_closed_for_are_handed_to_no_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: Any) -> None:
        raise ValueError("odd")

    monkeypatch.setattr("harness.run.run_cell.Accounting.steps", (5,))
    assert bench.make().steps_accounted == (5,)
    bench.run = replace(bench.run, run_id="r2")
    monkeypatch.setattr("harness.run.run_cell.Accounting.close", damaged)
    assert bench.make().steps_accounted == ()


def test_where_a_probe_before_the_run_cannot_be_killed_nothing_is_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_health, "probe_gpu", lambda *_: Probed(False, "the probe did not end", killable=False))
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("host-fault", "not-begun")
    assert record.detail == "not begun, on an unhealthy GPU: GPU 1: the probe did not end; it cannot be killed"
    assert not (bench.results.folder / "trained").exists()
    assert unhealthy_gpus(bench.results, bench.run.host).keys() == {1}


@pytest.mark.slow
def test_a_driver_that_does_not_answer_costs_no_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amdgpu, "ANSWER_SECONDS", 0.2)
    with hanging_reads(bench.tree.device(1) / "mem_info_vram_used"):
        assert bench.make().outcome == "failed"
    assert ("after-failure", "memory", None) in bench.steps


@pytest.mark.slow
def test_what_survives_a_run_is_ended_and_named_in_its_record(bench: Bench) -> None:
    bench.write("leaves")
    record = bench.make()
    assert (record.outcome, record.diagnosis) == ("failed", "app-error"), record
    named = r"; 1 process survived its run: \d+ \(sleep \\x1b\[31m 120\); ended"
    assert re.search(named, record.detail), record.detail
    assert processes_of_run(bench.results.run_folder("r1")) == []


@pytest.mark.parametrize("set_by", [-3600.0, 1e9])
def test_a_clock_that_is_set_meanwhile_changes_no_duration(
    set_by: float, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, began = time.time, time.monotonic()
    # A record of a run that ended before it began, or that took years, would not be imported.
    monkeypatch.setattr(time, "time", lambda: real() + (set_by if (bench.results.folder / "trained").exists() else 0))
    record = bench.make()
    assert record.seconds <= record.finished - record.intent.started <= time.monotonic() - began
