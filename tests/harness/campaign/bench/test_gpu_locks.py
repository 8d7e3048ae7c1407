"""Tests of the locks of synthetic GPUs, between real processes and between users."""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from harness.base.errors import UserError
from harness.base.files.locks import held_locks
from harness.campaign.bench import gpu_locks
from harness.campaign.bench.gpu_locks import GpuClaim, Holder, StillInUseError, gpu_lock_file, is_free, lock_gpus
from harness.host.facts import GpuFacts
from harness.host.processes.processes import ProcessId
from tests.harness.gpu_tree import hanging_reads

# A harness that holds GPU 0 and, if asked, a process of its run that has inherited the lock.
HOLD = """
import subprocess, sys, time
from pathlib import Path
from harness.host.facts import GpuFacts
from harness.campaign.bench.gpu_locks import GpuClaim, StillInUseError, lock_gpus
from harness.base.files.locks import held_locks

root, seconds, run_seconds = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
gpu = GpuFacts.model_validate_json(sys.argv[4])
with lock_gpus([GpuClaim(root / "runs" / "theirs", (gpu,))], root=root):
    if run_seconds != "0":
        subprocess.Popen(["sleep", run_seconds], pass_fds=held_locks())
    print("held", flush=True)
    time.sleep(seconds)
"""


def a_gpu(index: int) -> GpuFacts:
    node = f"/dev/dri/renderD{128 + index}"
    return GpuFacts(index=index, gfx="gfx1100", name="g", memory_bytes=1, render_node=node, kfd_id=4700 + index)


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a root outside pytest's own folder, which a later pytest session makes inaccessible to other users."""
    with tempfile.TemporaryDirectory(prefix="vpoc-locks-") as folder:
        root = Path(folder)
        place = root / "run" / "lock"
        place.mkdir(parents=True)
        place.chmod(0o1777)
        yield root


Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def hold(root: Path) -> Iterator[Hold]:
    """Return a function that starts a process which holds GPU 0 for some seconds."""
    started = []

    def start(*prefix: str, seconds: float = 60, run_seconds: str = "0") -> subprocess.Popen[str]:
        words = [str(root), str(seconds), run_seconds, a_gpu(0).model_dump_json()]
        process = subprocess.Popen([*prefix, sys.executable, "-c", HOLD, *words], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def claim(root: Path, *gpus: int, name: str = "mine") -> GpuClaim:
    return GpuClaim(root / "runs" / name, tuple(map(a_gpu, gpus)))


class WouldWaitError(Exception):
    """Raised by `stop_waiting` instead of waiting; the text is the message that a waiting user would read."""


def stop_waiting(text: str) -> None:
    raise WouldWaitError(text)


def waiting_message(root: Path, *claims: GpuClaim, **options: object) -> str | None:
    """Return the message about what these claims would wait for; None if one of them can be had at once."""
    try:
        with lock_gpus(claims, stop_waiting, root=root, **options):  # type: ignore[arg-type]
            return None
    except WouldWaitError as waiting:
        return str(waiting)


def test_a_gpu_is_waited_for_and_it_is_said_for_whom(root: Path, hold: Hold) -> None:
    # The other process releases the lock between two polls, not just when the lock is polled.
    other = hold(seconds=1.75)
    told: list[str] = []
    began = time.monotonic()
    with lock_gpus([claim(root, 0)], told.append, root=root):
        assert time.monotonic() - began > 0.5
        assert other.poll() is not None or other.wait(5) == 0
    user = psutil.Process().username()
    whose = f"run {root / 'runs' / 'theirs'} of {user}, process {other.pid}"
    assert told[:1] == [f"waiting: GPU 0 is in use by {whose}"]
    assert len(told) == len(set(told))


def test_a_gpu_is_waited_for_no_longer_than_a_run_can_wait(root: Path) -> None:
    with lock_gpus([claim(root, 0, name="theirs")], root=root):
        began = time.monotonic()
        with (
            pytest.raises(StillInUseError, match=r"GPU 0 is in use by run .*theirs"),
            lock_gpus([claim(root, 0)], root=root, seconds=0.2),
        ):
            pass
        assert 0.2 <= time.monotonic() - began < 10
        with lock_gpus([claim(root, 1)], root=root, seconds=0.0) as chosen:
            assert chosen == 0


def test_the_other_gpu_is_taken_instead_and_without_gpus_nobody_is_waited_for(root: Path) -> None:
    with lock_gpus([claim(root, 0, name="theirs")], root=root):
        with lock_gpus([claim(root, 0), claim(root, 1)], stop_waiting, root=root) as chosen:
            assert chosen == 1
            assert waiting_message(root, claim(root, 1, name="another")) is not None
            assert waiting_message(root, claim(root)) is None
        assert waiting_message(root, claim(root, 1, name="another")) is None


def test_all_gpus_of_a_run_are_had_together_or_none(root: Path) -> None:
    with lock_gpus([claim(root, 0, name="theirs")], root=root):
        assert "GPU 0 is in use" in str(waiting_message(root, claim(root, 1, 0)))
        assert waiting_message(root, claim(root, 1)) is None
    with lock_gpus([claim(root, 1, 0)], stop_waiting, root=root):
        assert "GPU 0 is in use" in str(waiting_message(root, claim(root, 0)))
        assert "GPU 1 is in use" in str(waiting_message(root, claim(root, 1)))


def test_what_a_killed_harness_had_started_keeps_its_gpu_until_it_ends(root: Path, hold: Hold) -> None:
    other = hold(run_seconds="2")
    other.kill()
    other.wait()
    text = waiting_message(root, claim(root, 0))
    assert text is not None
    assert text.endswith(f"process {other.pid}, which is gone")
    with lock_gpus([claim(root, 0)], root=root):
        pass


def test_a_container_that_outlived_its_harness_keeps_its_gpu(root: Path, hold: Hold) -> None:
    other = hold()
    other.kill()
    other.wait()
    asked = []

    def runs(folder: Path) -> bool:
        asked.append(folder)
        return True

    assert "its container still runs" in str(waiting_message(root, claim(root, 0), container_runs=runs))
    assert asked == [root / "runs" / "theirs"]
    assert waiting_message(root, claim(root, 0), container_runs=lambda _: False) is None
    # The lock was released in order meanwhile, so the engine is not asked about the container any more.
    assert waiting_message(root, claim(root, 0), container_runs=runs) is None
    assert len(asked) == 1


def test_a_process_that_came_with_the_dead_run_and_is_on_the_gpu_keeps_it(root: Path, hold: Hold) -> None:
    before = subprocess.Popen(["sleep", "60"])
    time.sleep(0.1)
    other = hold()
    other.kill()
    other.wait()
    after = subprocess.Popen(["sleep", "60"])
    try:
        for process in (before, after):
            memory = root / f"sys/class/kfd/kfd/proc/{process.pid}/vram_4700"
            memory.parent.mkdir(parents=True)
            memory.write_text("4096\n", encoding="ascii")
        assert f"process {after.pid} still holds memory on it" in str(waiting_message(root, claim(root, 0)))
        assert waiting_message(root, claim(root, 1)) is None
        after.kill()
        after.wait()
        # A process that is older than the run, such as a desktop, is not a leftover of the run.
        assert waiting_message(root, claim(root, 0)) is None
    finally:
        for process in (before, after):
            process.kill()
            process.wait()


def test_a_driver_that_does_not_answer_keeps_no_gpu_from_being_taken(
    root: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_locks, "ANSWER_SECONDS", 0.2)
    other = hold()
    other.kill()
    other.wait()
    with hanging_reads(root / f"sys/class/kfd/kfd/proc/{os.getpid()}/vram_4700"):
        assert waiting_message(root, claim(root, 0)) is None


def test_what_a_run_leaves_behind_keeps_its_gpu_though_it_was_given_back(root: Path) -> None:
    with lock_gpus([claim(root, 0)], root=root):
        left = subprocess.Popen(["sleep", "60"], pass_fds=held_locks())
    try:
        told = waiting_message(root, claim(root, 0))
        assert told == "waiting: GPU 0 is in use by a run of an unknown owner"
    finally:
        left.kill()
        left.wait()
    assert waiting_message(root, claim(root, 0)) is None


def test_what_was_noted_before_the_host_was_started_again_counts_no_more(root: Path) -> None:
    me = ProcessId.mine()
    holder = Holder(folder=str(root), user="somebody", pid=me.pid, started=me.started, boot="another boot")
    gpu_lock_file(a_gpu(0), root).write_text(holder.model_dump_json(), encoding="utf-8")
    assert waiting_message(root, claim(root, 0), container_runs=lambda _: True) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"folder": "x"}', "\0" * 100, '{"pid": "x"}'])
def test_a_note_that_was_not_finished_is_no_obstacle(content: str, root: Path) -> None:
    gpu_lock_file(a_gpu(0), root).write_text(content, encoding="utf-8")
    assert waiting_message(root, claim(root, 0), container_runs=lambda _: True) is None


def test_many_at_once_are_never_on_one_gpu_together(root: Path) -> None:
    on: dict[int, int] = {0: 0, 1: 0}
    most = 0
    wants = [(0,), (1,), (0, 1), (1, 0)] * 3

    def work(number: int, gpus: tuple[int, ...]) -> None:
        nonlocal most
        with lock_gpus([claim(root, *gpus, name=str(number))], root=root):
            for gpu in gpus:
                on[gpu] += 1
            most = max(most, *on.values())
            time.sleep(0.01)
            for gpu in gpus:
                on[gpu] -= 1

    threads = [threading.Thread(target=work, args=(number, gpus)) for number, gpus in enumerate(wants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most == 1


def test_a_lock_that_is_removed_while_it_is_taken_is_none(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next process would create a new file at the same path and lock that one."""
    said: list[str] = []

    def remove_once(descriptor: int, operation: int) -> None:
        if not said:
            gpu_lock_file(a_gpu(0), root).unlink()
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(gpu_locks, "_POLL_SECONDS", 0.01)
    options = {"LOCK_EX": fcntl.LOCK_EX, "LOCK_NB": fcntl.LOCK_NB}
    monkeypatch.setattr(gpu_locks, "fcntl", SimpleNamespace(flock=remove_once, **options))
    with lock_gpus([claim(root, 0)], said.append, root=root):
        assert waiting_message(root, claim(root, 0)) is not None
    assert said == [f"waiting: GPU 0: its lock {gpu_lock_file(a_gpu(0), root)} was removed just now"]


def test_without_a_folder_for_everybody_it_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run/lock").mkdir(parents=True)
    (tmp_path / "run/lock").chmod(0o755)
    with pytest.raises(UserError, match="no folder for the locks"), lock_gpus([claim(tmp_path, 0)], root=tmp_path):
        pass
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    assert gpu_lock_file(a_gpu(0), tmp_path) == tmp_path / "tmp" / "vpoc-gpu-4700.lock"


def test_a_lock_that_cannot_be_opened_is_one_line(root: Path) -> None:
    gpu_lock_file(a_gpu(0), root).symlink_to(root / "elsewhere")
    with pytest.raises(UserError, match="cannot be opened"), lock_gpus([claim(root, 0)], root=root):
        pass
    assert not (root / "elsewhere").exists()


@pytest.fixture
def another_user(root: Path) -> list[str]:
    """Return the words that start a command as uid 54321."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root, to become another user")
    become = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--no-new-privs"]
    if subprocess.run([*become, sys.executable, "-c", "import harness"], check=False, capture_output=True).returncode:
        pytest.skip("another user cannot read this checkout or its Python")
    root.chmod(0o755)
    if subprocess.run([*become, "ls", root], check=False, capture_output=True).returncode:
        pytest.skip("another user cannot reach this test's folder")
    return become


def test_the_lock_of_another_user_holds_for_everybody(root: Path, hold: Hold, another_user: list[str]) -> None:
    other = hold(*another_user)
    assert gpu_lock_file(a_gpu(0), root).stat().st_uid == 54321
    assert f"process {other.pid}" in str(waiting_message(root, claim(root, 0)))
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert waiting_message(root, claim(root, 0)) is None


def test_a_lock_that_root_made_can_be_held_by_another_user(root: Path, hold: Hold, another_user: list[str]) -> None:
    assert waiting_message(root, claim(root, 0)) is None
    assert gpu_lock_file(a_gpu(0), root).stat().st_uid == 0
    assert list((root / "run" / "lock").iterdir()) == [gpu_lock_file(a_gpu(0), root)]
    other = hold(*another_user)
    assert "54321" in str(waiting_message(root, claim(root, 0)))
    assert other.poll() is None


def test_what_is_no_file_in_the_place_of_a_lock_is_one_line(root: Path) -> None:
    os.mkfifo(gpu_lock_file(a_gpu(0), root))
    with pytest.raises(UserError, match="the lock is not a file"), lock_gpus([claim(root, 0)], root=root):
        pytest.fail("it was had")


def test_a_lock_that_another_user_wrote_is_said_in_one_line() -> None:
    holder = Holder(folder="/x\nmatrix: all is well\x1b[2J", user="me\n", pid=1, started=1, boot="another boot")
    assert str(holder).isprintable()


def test_a_folder_of_locks_without_room_is_one_line_and_the_gpu_is_left(root: Path) -> None:
    claim, before = GpuClaim(root / "mine", (a_gpu(1),)), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(UserError, match=r"run/lock: cannot be written: "), lock_gpus([claim], root=root):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_free(claim, root=root)
