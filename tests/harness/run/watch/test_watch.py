"""Tests of `Watch` on real processes that stand in for the ranks of a run."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.contract import CONTRACT
from harness.base.interrupts import interruptible
from harness.base.text import safe_text
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor, ProcessHandle
from harness.evidence.app_reports.accounting import Accounting
from harness.evidence.app_reports.rank_account import AskedWork, SeenAt
from harness.evidence.app_reports.step_position import Position
from harness.evidence.files.app_files import Progress
from harness.evidence.files.run_folder import RunFolder
from harness.host.file_systems import mount_in
from harness.host.gpus.gpu_memory import GpuWatch
from harness.host.processes.run_processes import processes_of_run
from harness.run.watch.confirm import Confirmation, Hang
from harness.run.watch.limits import LIMITS, Limits, limits_of
from harness.run.watch.watch import Watch
from harness.run.watch.watchdog import RankStall

RANKS = Path(__file__).with_name("fake_ranks.py")
TIGHT = Limits.fixed({**LIMITS, "step": 1.5, "first-step": 1.5})
FOR_EVER = 100_000


class Recording(Accounting):
    """An accounting that keeps the lines it is shown and reports no breach."""

    def __init__(self) -> None:
        self.seen: list[tuple[Progress, SeenAt]] = []
        self.breaches = ()

    def saw(self, line: Progress, seen: SeenAt) -> None:
        self.seen.append((line, seen))


def watch(
    folder: Path,
    *words: object,
    limits: Limits = TIGHT,
    seconds: float = 600,
    accounting: Accounting | None = None,
) -> tuple[Watch, list[Progress]]:
    folder.mkdir(exist_ok=True)
    seen: list[Progress] = []
    watched = Watch(RunFolder(folder), ProcessExecutor(), seen.append, None, accounting=accounting)
    command = (sys.executable, str(RANKS), *map(str, words))
    watched.execute(Job(command, {"PATH": "/usr/bin:/bin"}, folder, folder / "log.txt"), seconds, limits)
    assert processes_of_run(folder) == []
    return watched, seen


def index(folder: Path) -> dict[str, dict[str, str]]:
    content: dict[str, dict[str, str]] = json.loads((folder / "failure" / "index.json").read_text())
    for file in content["collected"].values():
        assert (folder / file).is_file()
    return content


def test_the_lines_of_every_rank_are_seen_to_the_last_and_their_memory_is_kept(tmp_path: Path) -> None:
    watched, seen = watch(tmp_path / "run", 2, 5)
    assert watched.stopped_by is None, watched.stop_detail
    steps = [(line.rank, line.done) for line in seen if line.phase == "step"]
    assert sorted(steps) == [(rank, step) for rank in (0, 1) for step in range(1, 6)]
    assert {sample.rank for sample in watched.progress.memory.samples} == {0, 1}
    assert {"import", "first-step", "step", "teardown"} <= set(watched.longest_stall)
    assert not watched.collected
    assert not (tmp_path / "run" / "failure").exists()


def test_a_run_whose_progress_is_not_its_own_is_ended_at_once(tmp_path: Path) -> None:
    expected = AskedWork(CONTRACT, "a" * 32, 2, epochs=1, processes=1, resumed=(0,), loop="plain")
    watched, _ = watch(tmp_path / "run", 2, FOR_EVER, accounting=Accounting(expected))
    assert watched.stopped_by == "breach"
    assert re.match(r"rank [01]: its progress lacks the run's nonce", watched.stop_detail)


@pytest.mark.parametrize(("inspected", "asks", "ends"), [({}, 2, "breach"), (None, 1, "host")])
def test_a_container_that_ends_later_than_its_engine_waits_is_killable(
    inspected: dict[str, object] | None, asks: int, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of ours was ended with all that it started, and is not waited for twice."""
    stopped = ProcessHandle.stop
    asked: list[float] = []

    def stop(handle: ProcessHandle, grace: float) -> bool:
        asked.append(grace)
        return len(asked) == asks and stopped(handle, grace) and ends == "breach"

    monkeypatch.setattr(ProcessHandle, "stop", stop)
    monkeypatch.setattr(ProcessHandle, "inspected", inspected)
    expected = AskedWork(CONTRACT, "a" * 32, 1, epochs=1, processes=1, resumed=(0,), loop="plain")
    watched, _ = watch(tmp_path / "run", 1, FOR_EVER, accounting=Accounting(expected))
    assert (watched.stopped_by, len(asked)) == (ends, asks)


@pytest.mark.slow
def test_progress_is_accounted_for_by_when_it_was_seen(tmp_path: Path) -> None:
    accounting = Recording()
    began = time.monotonic()
    # The fourth step takes four seconds, because a look has to find no new line before `seen.after` advances.
    watch(tmp_path / "run", 1, 5, "work@4/0", limits=Limits.fixed(LIMITS), accounting=accounting)
    assert len(accounting.seen) == 7
    for line, seen in accounting.seen:
        assert began - 60 < seen.after <= line.monotonic <= seen.by
    assert accounting.seen[-1][1].after > accounting.seen[0][1].after


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "spin", "hold_gil"])
def test_a_rank_that_is_stalled_is_found_and_named_with_its_place_and_the_others_wait(
    fault: str, tmp_path: Path
) -> None:
    watched, _ = watch(tmp_path / "run", 2, FOR_EVER, f"{fault}@4/1")
    assert watched.stopped_by == "watchdog"
    stalled = rf"rank 1 made no progress for \d+ s in phase step at step 4, in backward \(fake_ranks\.py:\d+ {fault}\)"
    waits = r"; rank 0 waits, in the exchange with other ranks \(exchange\.py:\d+ (wait_for|<genexpr>)\)"
    assert re.fullmatch(stalled + waits, watched.stop_detail), watched.stop_detail
    collected = index(tmp_path / "run")["collected"]
    assert {"stacks-1", "stacks-2", "processes"} <= set(collected)
    for sample in ("stacks-1.txt", "stacks-2.txt"):
        text = (tmp_path / "run" / "failure" / sample).read_text()
        assert f"in {fault}\n" in text
        assert "in wait_for\n" in text
    table = (tmp_path / "run" / "failure" / "processes.txt").read_text()
    assert len([line for line in table.splitlines() if "fake_ranks.py" in line]) == 3


@pytest.mark.slow
def test_a_rank_that_sleeps_is_named_while_the_others_go_on(tmp_path: Path) -> None:
    watched, _ = watch(tmp_path / "run", 2, FOR_EVER, "alone@3/1")
    assert watched.stopped_by == "watchdog"
    assert re.fullmatch(
        r"rank 1 made no progress for \d+ s in phase step at step 3, in backward \(fake_ranks\.py:\d+ hang\)",
        watched.stop_detail,
    )


@pytest.mark.slow
def test_a_hang_that_is_confirmed_keeps_its_words_though_ranks_move_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since_confirmed: list[int] = []
    judge = Confirmation.judge

    def judged(
        confirmation: Confirmation, suspects: Sequence[RankStall], late: Sequence[RankStall], now: float
    ) -> Hang | None:
        if hang := judge(confirmation, suspects, late, now):
            since_confirmed.clear()
            since_confirmed.append(1)
        return hang

    def moving(_: Path, rank: int) -> Position:
        """Return a position: rank 0 falls behind once its position was read after the hang was confirmed."""
        if since_confirmed and rank == 0:
            since_confirmed.append(rank)
        return Position(1 if len(since_confirmed) > 2 and rank == 0 else 3 + (rank == 0), 3)

    monkeypatch.setattr(Confirmation, "judge", judged)
    monkeypatch.setattr("harness.run.watch.watch.read_position", moving)
    watched, _ = watch(tmp_path / "run", 2, FOR_EVER, "alone@3/1")
    assert watched.stopped_by == "watchdog"
    assert watched.stop_detail.startswith("rank 1 made no progress")


@pytest.mark.slow
def test_a_rank_that_never_wrote_progress_is_named(tmp_path: Path) -> None:
    watched, _ = watch(tmp_path / "run", 2, FOR_EVER, "silent@1/1")
    assert watched.stopped_by == "watchdog"
    assert watched.stop_detail.startswith("rank 1 never reported any progress; rank 0 waits, in the exchange")


@pytest.mark.slow
def test_a_process_that_works_and_tells_nothing_for_a_while_is_not_hung(tmp_path: Path) -> None:
    watched, seen = watch(
        tmp_path / "run", 1, 10, "work@4/0", limits=Limits.fixed({**LIMITS, "step": 1, "first-step": 1})
    )
    assert watched.stopped_by is None, watched.stop_detail
    assert max(line.done for line in seen) == 10
    assert watched.longest_stall["step"] > 3


@pytest.mark.slow
def test_a_process_that_does_not_catch_the_signal_is_left_alone_and_hung_after_twice_its_limit(tmp_path: Path) -> None:
    watched, _ = watch(tmp_path / "run", 1, FOR_EVER, "deaf@4/0")
    assert watched.stopped_by == "watchdog"
    assert re.search(
        r"for \d+ s in phase step at step 4, in backward \(it writes no stacks itself, so that", watched.stop_detail
    )
    missing = index(tmp_path / "run")["missing"]
    assert "SIGUSR1" in missing["stacks-1"]


@pytest.mark.slow
def test_a_stopped_process_is_told_to_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.watch.watch.GRACE_SECONDS", 1.0)
    watched, _ = watch(tmp_path / "run", 1, FOR_EVER, "stop@4/0")
    assert watched.stopped_by == "watchdog"
    assert re.search(r"process \d+ is stopped \(state T\)", watched.stop_detail)


@pytest.mark.slow
def test_a_crash_leaves_evidence_of_the_ranks_that_live(tmp_path: Path) -> None:
    watched, _ = watch(tmp_path / "run", 2, FOR_EVER, "segv@4/1")
    assert watched.stopped_by is None
    assert watched.collected
    collected = index(tmp_path / "run")["collected"]
    assert "rank 0" in (tmp_path / "run" / collected["stacks-1"]).read_text()


@pytest.mark.slow
def test_at_the_time_limit_there_are_two_samples(tmp_path: Path) -> None:
    watched, _ = watch(tmp_path / "run", 1, FOR_EVER, seconds=6)
    assert watched.stopped_by == "time-limit"
    assert {"stacks-1", "stacks-2"} <= set(index(tmp_path / "run")["collected"])


def test_a_process_that_tells_no_progress_is_not_expected_to(tmp_path: Path) -> None:
    watched = Watch(RunFolder(tmp_path), ProcessExecutor(), lambda _: None, None)
    exit_ = watched.execute(Job((sys.executable, "-c", "raise SystemExit(3)"), {}, tmp_path, tmp_path / "log.txt"), 30)
    assert exit_ is not None
    assert exit_.code == 3
    assert not watched.collected


@pytest.mark.slow
def test_a_driver_that_does_not_answer_does_not_keep_the_run_from_being_watched(tmp_path: Path) -> None:
    class Unhealthy(GpuWatch):
        def sample(self, of_run: Callable[[int], bool]) -> None:
            time.sleep(300)

    watched = Watch(RunFolder(tmp_path), ProcessExecutor(), lambda _: None, Unhealthy(None, Path("/")))
    command = (sys.executable, str(RANKS), "1", str(FOR_EVER), "hang@4/0")
    watched.execute(Job(command, {"PATH": "/usr/bin:/bin"}, tmp_path, tmp_path / "log.txt"), 60, TIGHT)
    assert watched.stopped_by == "watchdog"
    assert watched.gpus_seen == 0


def test_a_run_is_seen_to_use_a_gpu_while_it_does(tmp_path: Path) -> None:
    folder, root = tmp_path / "run", tmp_path / "root"
    folder.mkdir()
    watched = Watch(RunFolder(folder), ProcessExecutor(), lambda _: None, GpuWatch(None, root))
    holding = threading.Thread(target=hold_gpu_memory, args=(folder, root))
    holding.start()
    command = (sys.executable, str(RANKS), "1", "60")
    watched.execute(Job(command, {"PATH": "/usr/bin:/bin"}, folder, folder / "log.txt"), 60, TIGHT)
    holding.join()
    assert watched.gpus_seen == 1


def hold_gpu_memory(folder: Path, root: Path) -> None:
    """Write what the driver reports: the processes of the run use one GPU, and a foreign process a second one."""
    until = time.monotonic() + 30
    while len(found := processes_of_run(folder)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    for pid, gpu in [*((process.pid, 51001) for process in found), (1, 51002)]:
        file = root / f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu}"
        file.parent.mkdir(parents=True)
        file.write_text(str(1 << 30))


@pytest.mark.slow
def test_a_process_stopped_for_ten_seconds_does_not_alarm(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    paused = threading.Thread(target=pause_ranks, args=(folder, 10))
    paused.start()
    watched, _ = watch(folder, 2, 60, limits=limits_of([{}] * 5, "cpu"))
    paused.join()
    assert watched.stopped_by is None, watched.stop_detail
    assert watched.longest_stall["step"] > 9


def pause_ranks(folder: Path, seconds: float) -> None:
    until = time.monotonic() + 30
    while not any('"step"' in file.read_text() for file in folder.glob("progress-*")) and time.monotonic() < until:
        time.sleep(0.05)
    ranks = [process for process in processes_of_run(folder) if process.environ().get("RANK")]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in ranks:
            process.send_signal(number)
        time.sleep(seconds if number == signal.SIGSTOP else 0)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[..., None]]:
    """Return a function that sends SIGINT from another thread after each of some pauses, once a run has made step 3."""
    over = threading.Event()
    threads = []

    def press(folder: Path, pauses: Sequence[float]) -> None:
        while not any('"done": 3' in file.read_text() for file in folder.glob("progress-1.jsonl")):
            if over.wait(0.05):
                return
        for pause in pauses:
            if over.wait(pause):
                return
            os.kill(os.getpid(), signal.SIGINT)

    def begin(folder: Path, *pauses: float) -> None:
        threads.append(threading.Thread(target=press, args=(folder, pauses)))
        threads[-1].start()

    yield begin
    over.set()
    for thread in threads:
        thread.join()


# Ctrl-C may come between the opening of a file or folder and the `with` that closes it.
LEFT_OPEN = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


def interrupted(folder: Path, fault: str) -> str:
    """Watch a run of two ranks until it is interrupted, and return the message of the interruption."""
    with pytest.raises(KeyboardInterrupt) as caught, interruptible():
        watch(folder, 2, FOR_EVER, fault, limits=limits_of([], "cpu"))
    assert processes_of_run(folder) == []
    return str(caught.value)


@pytest.mark.slow
@LEFT_OPEN
def test_ctrl_c_on_a_run_in_which_nothing_advances_keeps_its_stacks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctrl_c: Callable[..., None]
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.STUCK_SECONDS", 1.5)
    ctrl_c(tmp_path / "run", 4)
    detail = interrupted(tmp_path / "run", "hang@4/1")
    assert re.match(r"SIGINT; rank 1 made no progress for \d+ s in phase step at step 4, in backward", detail), detail
    assert "rank 0 waits" in detail
    collected = index(tmp_path / "run")["collected"]
    assert {"stacks-1", "stacks-2", "processes"} <= set(collected)
    assert "in hang\n" in (tmp_path / "run" / collected["stacks-1"]).read_text()


@pytest.mark.slow
@LEFT_OPEN
def test_ctrl_c_on_a_run_that_advances_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctrl_c: Callable[..., None]
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.STUCK_SECONDS", 1.5)
    ctrl_c(tmp_path / "run", 4)
    began = time.monotonic()
    assert interrupted(tmp_path / "run", "none@0/0") == "SIGINT"
    assert time.monotonic() - began < 50
    assert not (tmp_path / "run" / "failure").exists()


@pytest.mark.slow
@LEFT_OPEN
def test_a_second_ctrl_c_skips_keeping_stacks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    ctrl_c: Callable[..., None],
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.STUCK_SECONDS", 1.5)
    monkeypatch.setattr("harness.run.watch.collect.BETWEEN_SAMPLES_SECONDS", 60.0)
    ctrl_c(tmp_path / "run", 4, 4)
    began = time.monotonic()
    assert interrupted(tmp_path / "run", "hang@4/1") == "SIGINT"
    assert time.monotonic() - began < 50
    assert "saving the stacks first; Ctrl-C once more skips that\nleft out\n" in capfd.readouterr().err


class Planned(KeyboardInterrupt):
    """The exception with which an observer ends a run."""


def ended_by(folder: Path, observe: Callable[[Progress], None], ranks: int, fault: str) -> KeyboardInterrupt:
    """Watch a run that its observer ends, and return the exception that ended it."""
    folder.mkdir()
    watched = Watch(RunFolder(folder), ProcessExecutor(), observe, None)
    command = (sys.executable, str(RANKS), str(ranks), str(FOR_EVER), fault)
    with pytest.raises(KeyboardInterrupt) as caught:
        watched.execute(
            Job(command, {"PATH": "/usr/bin:/bin"}, folder, folder / "log.txt"),
            60,
            limits_of([], "cpu"),
        )
    assert processes_of_run(folder) == []
    return caught.value


LAST_WORDS = """
import json, signal, sys, time
def tell(done):
    print(json.dumps({**json.loads(sys.argv[1]), "done": done}), file=open("work/progress-0.jsonl", "a"), flush=True)
def end(*_):
    tell(9)
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
tell(1)
time.sleep(60)
"""


def test_what_an_interrupted_app_wrote_last_is_accounted_for(tmp_path: Path) -> None:
    line: dict[str, Any] = {"schema": 2, "wall": 0, "monotonic": 0, "rank": 0, "pid": 1, "phase": "step", "total": 9}
    line |= dict.fromkeys(("max_step_s", "loss", "gradient_norm"))
    line |= {"memory": {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}}

    def observe(_: Progress) -> None:
        raise Planned("memory in pieces")

    (tmp_path / "run" / "work").mkdir(parents=True)
    accounting = Recording()
    folder = RunFolder(tmp_path / "run")
    watched = Watch(folder, ProcessExecutor(), observe, None, accounting=accounting, work=folder.new_work)
    job = Job((sys.executable, "-c", LAST_WORDS, json.dumps(line)), {}, folder.path, folder.log)
    with pytest.raises(Planned):
        watched.execute(job, 60, limits_of([], "cpu"))
    assert [seen.done for seen, _ in accounting.seen] == [1, 9]


@pytest.mark.slow
def test_an_observer_that_ends_a_run_after_a_slow_step_is_no_interruption_of_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.STUCK_SECONDS", 1.5)

    def observe(line: Progress) -> None:
        if (line.phase, line.done) == ("step", 4):
            raise Planned("memory in pieces")

    ended = ended_by(tmp_path / "run", observe, 1, "work@4/0")
    assert (type(ended), str(ended)) == (Planned, "memory in pieces")
    assert not (tmp_path / "run" / "failure").exists()


def test_an_observer_that_ends_a_run_in_which_nothing_advances_is_still_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.watch.watch.STUCK_SECONDS", -1.0)

    def observe(line: Progress) -> None:
        if (line.phase, line.done) == ("step", 4):
            raise Planned("memory in pieces")

    ended = ended_by(tmp_path / "run", observe, 1, "none@0/0")
    assert type(ended) is Planned
    assert str(ended).startswith("memory in pieces; rank ")


def test_what_comes_after_an_interruption_does_not_take_its_place(tmp_path: Path) -> None:
    interrupted: list[Progress] = []

    def observe(line: Progress) -> None:
        if interrupted:
            raise Planned("too late")
        if line.phase == "step":
            interrupted.append(line)
            time.sleep(0.5)
            raise KeyboardInterrupt("SIGINT")

    ended = ended_by(tmp_path / "run", observe, 2, "none@0/0")
    assert (type(ended), str(ended)) == (KeyboardInterrupt, "SIGINT")


@pytest.mark.slow
def test_who_looks_sees_how_long_nothing_has_advanced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.run.watch.watch.NOTED_STALL_SECONDS", 1)
    (tmp_path / "run").mkdir()
    stalls: list[RankStall] = []
    watched = Watch(RunFolder(tmp_path / "run"), ProcessExecutor(), lambda _: None, None, stalls.append)
    command = (sys.executable, str(RANKS), "2", str(FOR_EVER), "hang@4/1")
    folder, limits = tmp_path / "run", Limits.fixed({**LIMITS, "step": 4, "first-step": 4})
    watched.execute(Job(command, {"PATH": "/usr/bin:/bin"}, folder, folder / "log.txt"), 60, limits)
    stepping = [one for one in stalls if one.phase == "step"]
    assert 3 <= len(stepping) <= 40
    assert [one.idle for one in stepping] == sorted(one.idle for one in stepping)
    assert stepping[0].idle < 10
    assert min(one.limit for one in stepping) >= 4
    last = stepping[-1]
    # For `matrix watch`, which is another process.
    assert RunFolder(folder).stall_limit(last.phase, last.done) == last.limit


LEAVES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(float(%r))" % sys.argv[1]], {})
"""


def execute(folder: Path, code: str, *words: str, seconds: float = 60) -> Watch:
    folder.mkdir()
    watched = Watch(RunFolder(folder), ProcessExecutor(), lambda _: None, None)
    with watched:
        watched.execute(Job((sys.executable, "-S", "-c", code, *words), {}, folder, folder / "log.txt"), seconds, TIGHT)
    return watched


def test_what_a_completed_run_leaves_behind_is_ended_and_told(tmp_path: Path) -> None:
    watched = execute(tmp_path / "run", LEAVES, "120")
    (survivor,) = watched.survivors
    assert re.fullmatch(r"\d+ \(.*python -S -c import time.*\)", survivor), survivor
    assert not psutil.pid_exists(int(survivor.split()[0]))
    assert watched.stopped_by is None


def test_helpers_that_end_soon_after_their_run_are_not_worth_a_word(tmp_path: Path) -> None:
    assert execute(tmp_path / "run", LEAVES, "0.5").survivors == ()


def test_a_run_that_takes_too_much_of_the_disk_is_ended_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.host.disk_use.MOST_ENTRIES", 500)
    code = "import os, time\nfor n in range(2000): open(str(n), 'w').close()\ntime.sleep(120)"
    began = time.monotonic()
    watched = execute(tmp_path / "run", code)
    assert watched.stopped_by == "disk-limit"
    assert watched.stop_detail == "it made more than 500 files and folders"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("seconds", [0, 120])
def test_nothing_is_read_where_a_run_mounted_something_over_its_folder(
    seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system that the run mounted may never answer."""
    monkeypatch.setattr("harness.run.watch.watch.mount_in", partial(mount_in, mounts=tmp_path / "mountinfo"))
    work = tmp_path / "run/work"
    code = "import sys, time; open(sys.argv[1], 'w').write(sys.argv[2]); time.sleep(float(sys.argv[3]))"
    mount = f"22 1 0:43 / {work} rw - fuse a rw"
    watched = execute(tmp_path / "run", code, str(tmp_path / "mountinfo"), mount, str(seconds))
    assert (watched.stopped_by, watched.stop_detail) == ("work-folder", f"{safe_text(work)} was mounted over")


FLOOD = """
import json, os, sys, time
from pathlib import Path
from typing import Any
from harness.environments.executors.job import Job
from harness.environments.executors.process import ProcessExecutor
from harness.evidence.files.run_folder import RunFolder
from harness.run.watch.limits import LIMITS, Limits
from harness.run.watch.watch import Watch

APP = '''
import json, os, sys, time
megabytes = int(sys.argv[1])
memory = {"rss_bytes": 1, "device_allocated_bytes": None, "device_reserved_bytes": None}
os.chdir(sys.argv[2])
files = [open(f"progress-{rank}.jsonl", "w") for rank in range(3)]
for number in range(4000 * megabytes // 40):
    line = {"schema": 2, "wall": 0, "monotonic": 100.0 * number, "rank": number, "pid": number, "phase": "step",
            "done": number, "total": None, "max_step_s": None, "loss": None, "gradient_norm": None, "memory": memory}
    files[number % 3].write(json.dumps(line) + chr(10))
files[0].write("x" * (megabytes << 20))
for _ in range(megabytes):
    sys.stdout.write("y" * 99 + chr(10) + "z" * ((1 << 20) - 100))
'''
folder = RunFolder(Path(sys.argv[1]))
work = Path(folder.work.path)
made = Watch(folder, ProcessExecutor(), lambda _: None, None)
job = Job((sys.executable, "-S", "-c", APP, sys.argv[2], str(work)), {}, folder.path, folder.log)
with made:
    exit_ = made.execute(job, 120, Limits.fixed(LIMITS))
# Not what getrusage says: that counts the process from which this one was forked.
status = Path("/proc/self/status").read_text()
peak = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
print(json.dumps([str(exit_), peak, folder.log.stat().st_size]))
"""


@pytest.mark.slow
def test_whatever_a_run_writes_its_harness_stays_small(tmp_path: Path) -> None:
    command = (sys.executable, "-c", FLOOD, str(tmp_path), "300")
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150)
    exit_, memory, log = json.loads(done.stdout)
    assert exit_ == "exit 0", (tmp_path / "log.txt").read_text()[-1000:]
    assert memory < 200 << 20
    assert log < 17 << 20
