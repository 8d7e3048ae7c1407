import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks.processes import arguments, gone, launched, launching, pids, runs, until

from vpoc.errors import UserError
from vpoc.ranks.launch import Ranks, launch, ranks_of

NOTE_PID = ': > "$FOLDER/$$"; '
ENDS_WELL = "".join(f'trap "echo got {name}; sleep 0.2; echo saved; exit 143" {name}; ' for name in ("INT", "TERM"))
FOR_EVER = "while :; do sleep 0.05; done"
UNTIL_THREE, UNTIL_FOUR = (f'until test $(ls "$FOLDER" | wc -l) = {n}; do sleep 0.02; done; ' for n in (3, 4))


def until_there(file):
    return f'until test -e "{file}"; do sleep 0.02; done; '


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "pids"
    path.mkdir()
    monkeypatch.setenv("FOLDER", str(path))
    return path


def test_every_rank_knows_its_place():
    names = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME"
    ended = launched(f"echo {names}; echo $VPOC_RENDEZVOUS >&2", 3, GLOO_SOCKET_IFNAME="eth7")
    assert ended.returncode == 0
    assert sorted(ended.stdout.splitlines()) == [
        "0 3 0 3 0 eth7 lo",
        "rank 1: 1 3 1 3 0 eth7 lo",
        "rank 2: 2 3 2 3 0 eth7 lo",
    ]
    rendezvous = {Path(line.rpartition(" ")[2]) for line in ended.stderr.splitlines()}
    assert len(rendezvous) == 1
    assert not rendezvous.pop().parent.exists()


def test_the_folder_is_private_and_there():
    ended = launched('stat -c "%a %u" "$VPOC_EXCHANGE"; test -e "$VPOC_RENDEZVOUS"; echo $?', 1)
    assert ended.stdout.splitlines() == [f"700 {os.getuid()}", "1"]


@pytest.mark.parametrize(
    ("ending", "status", "how"),
    [
        ("exit 7", 7, "ended with exit status 7"),
        ("kill -9 $$", 137, "was killed by SIGKILL"),
        ("kill -SEGV $$", 139, "was killed by SIGSEGV"),
        ("kill -40 $$", 168, "was killed by signal 40"),
    ],
)
def test_the_rank_that_failed_first_is_named(folder, ending, status, how):
    script = f'{NOTE_PID} trap "exit 1" TERM; test $RANK = 1 && {{ {UNTIL_THREE} {ending}; }}; {FOR_EVER}'
    started = time.monotonic()
    ended = launched(script, 3)
    assert time.monotonic() - started < 18, "the time they are given was waited out"
    assert ended.returncode == status
    line, *others = ended.stderr.splitlines()
    assert line.startswith("vpoc: rank 1 (pid ")
    assert line.endswith(f"failed first: it {how}; the others are ended")
    assert not others
    assert gone(pids(folder, 3))


def test_of_those_found_ended_at_once_the_killed_one_failed_first(folder):
    script = f'{NOTE_PID} until test -e "$FOLDER/../go"; do sleep 0.05; done; test $RANK = 0 && exit 1; kill -9 $$'
    with launching(script, 2) as launcher:
        found = pids(folder, 2)
        launcher.send_signal(signal.SIGSTOP)
        (folder.parent / "go").touch()
        assert until(lambda: not any(map(runs, found)))
        launcher.send_signal(signal.SIGCONT)
        _, err = launcher.communicate(timeout=15)
    assert launcher.returncode == 137
    assert err.startswith("vpoc: rank 1 ")


def test_a_rank_that_is_ending_already_is_left_alone(folder):
    trap = 'trap "echo got TERM; : > \\"$FOLDER/asked\\"" TERM; '
    script = f'{trap} test $RANK = 1 && {{ {until_there("$FOLDER/ready")} exit 5; }}; : > "$FOLDER/ready"; {FOR_EVER}'
    with launching(script, 2, grace_s=2) as launcher:
        assert until((folder / "asked").exists)
        launcher.terminate()
        out, _ = launcher.communicate(timeout=15)
    assert (launcher.returncode, out) == (5, "got TERM\n")


def test_no_signal_is_blocked_in_a_rank():
    blocked = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    command = [*arguments("", 1)[:-3], sys.executable, "-c", blocked]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_what_the_failed_rank_said_comes_before_the_line_about_it():
    # Rank 0 fails while the other ranks are still being started.
    ended = launched("test $RANK = 0 && { echo I fail >&2; exit 3; }; sleep 60", 10)
    said, line = ended.stderr.splitlines()
    assert (ended.returncode, said) == (3, "I fail")
    assert line.startswith("vpoc: rank 0 ")


def test_a_rank_that_ended_well_is_not_missed():
    ended = launched("test $RANK = 0 || { sleep 0.3; echo late; }", 2)
    assert (ended.returncode, ended.stdout) == (0, "rank 1: late\n")


def test_a_rank_that_does_not_heed_is_killed_with_what_it_started(folder):
    child = 'sh -c \': > "$FOLDER/$$"; trap "" TERM; sleep 300; :\' &'
    script = f'trap "" TERM; {NOTE_PID} {child} test $RANK = 1 && {{ {UNTIL_FOUR} exit 5; }}; {FOR_EVER}'
    started = time.monotonic()
    ended = launched(script, 2, grace_s=0.5)
    assert time.monotonic() - started < 60
    assert ended.returncode == 5
    assert "rank 0" in ended.stderr.splitlines()[1]
    assert ended.stderr.endswith("did not end within 0.5 s; killed\n")
    assert gone(pids(folder, 4))


def test_what_a_rank_leaves_behind_is_ended(folder):
    ended = launched("sh -c ': > \"$FOLDER/$$\"; sleep 300; :' & " + until_there("$FOLDER/$!"), 2)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert gone(pids(folder, 2))


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("to_group", [False, True])
def test_a_signal_lets_all_end_in_good_order(folder, signum, status, to_group):
    with launching(ENDS_WELL + NOTE_PID + FOR_EVER, 3) as launcher:
        found = pids(folder, 3)
        (os.killpg if to_group else os.kill)(launcher.pid, signum)
        out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == status
    got = "got INT" if signum == signal.SIGINT else "got TERM"
    assert sorted(out.splitlines()) == sorted(
        [got, "saved", f"rank 1: {got}", "rank 1: saved", f"rank 2: {got}", "rank 2: saved"]
    )
    assert err == ""
    assert gone(found)


def test_a_signal_while_the_ranks_are_being_started_is_not_lost(folder):
    with launching(NOTE_PID + FOR_EVER, 8) as launcher:
        assert until(lambda: any(folder.iterdir()))
        launcher.terminate()
        launcher.communicate(timeout=30)
    assert launcher.returncode == 143
    assert gone([int(path.name) for path in folder.iterdir()])


def test_a_second_signal_kills_at_once(folder):
    with launching(f'trap "" INT; {NOTE_PID} {FOR_EVER}', 2) as launcher:
        found = pids(folder, 2)
        launcher.send_signal(signal.SIGINT)
        time.sleep(1)
        launcher.send_signal(signal.SIGINT)
        _, err = launcher.communicate(timeout=15)
    assert (launcher.returncode, err) == (130, "")
    assert gone(found)


def test_ranks_and_their_children_die_with_a_killed_launcher(folder):
    child = (
        "import os, pathlib, time\n"
        "from vpoc.ranks.child import die_with\n"
        "die_with(int(os.environ['PARENT']))\n"
        "pathlib.Path(os.environ['FOLDER'], str(os.getpid())).touch()\n"
        "time.sleep(300)"
    )
    start_child = f'PARENT=$$ {sys.executable} -c "{child}" &'
    script = f'trap "" TERM; echo $VPOC_EXCHANGE >&2; {start_child} {NOTE_PID} {FOR_EVER}'
    with launching(script, 2) as launcher:
        found = pids(folder, 4)
        assert launcher.stderr is not None
        shared = Path(launcher.stderr.readline().rpartition(" ")[2].strip())
        launcher.kill()
        assert gone(found)
    shutil.rmtree(shared)


def test_a_child_whose_parent_has_gone_already_does_not_stay():
    code = "import os; from vpoc.ranks.child import die_with; die_with(os.getpid()); print('stays')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")


def test_what_is_ignored_stays_ignored(folder):
    with launching(ENDS_WELL + NOTE_PID + FOR_EVER, 2, before=["nohup"]) as launcher:
        pids(folder, 2)
        launcher.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert launcher.poll() is None
        launcher.terminate()
        launcher.communicate(timeout=30)
    assert launcher.returncode == 143


def test_exit_statuses_are_seen_where_children_are_ignored():
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments("exit 6", 2)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 6


def test_lines_stay_whole_and_none_is_lost():
    script = (
        "import os\nfor n in range(1000):\n os.write(1 + n % 2, b'%d:' % n); os.write(1 + n % 2, b'x' * 90 + b'\\n')"
    )
    with subprocess.Popen(
        arguments(f'{sys.executable} -c "{script}"; printf end', 4), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as launcher:
        out, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 0
    lines = out.decode().splitlines()
    for rank in range(4):
        prefix = f"rank {rank}: " if rank else ""
        mine = [line for line in lines if line.startswith("rank ") == bool(rank) and line.startswith(prefix)]
        for parity in (0, 1):
            expected = [f"{prefix}{n}:{'x' * 90}" for n in range(parity, 1000, 2)]
            assert [line for line in mine if line in set(expected)] == expected
        assert f"{prefix}end" in mine
    assert len(lines) == 4 * 1001


def test_a_line_without_end_does_not_fill_the_memory():
    ended = launched("head -c 3000000 /dev/zero | tr '\\0' y", 2)
    assert ended.returncode == 0
    assert ended.stdout.count("y") == 6_000_000
    assert ended.stdout.count("\n") == 6


def test_a_reader_that_has_gone_ends_the_ranks_as_it_would_without_launcher():
    with subprocess.Popen(arguments("yes", 2), stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline()
        launcher.stdout.close()
        assert launcher.wait(20) == 128 + signal.SIGPIPE


def test_a_reader_that_does_not_read_delays_no_signal(folder):
    with launching(f"{NOTE_PID} yes", 2) as launcher:
        found = pids(folder, 2)
        time.sleep(0.5)
        launcher.terminate()
        time.sleep(0.5)
        assert gone(found)
        out, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 143
    assert set(out.splitlines()) <= {"y", "rank 1: y"}


def test_the_first_rank_has_the_terminal():
    ours, theirs = pty.openpty()
    with subprocess.Popen(arguments("test -t 1 && echo terminal || echo pipe", 2), stdout=theirs) as launcher:
        os.close(theirs)
        assert launcher.wait(30) == 0
    assert sorted(os.read(ours, 4096).decode().splitlines()) == ["rank 1: pipe", "terminal"]
    os.close(ours)


def test_a_command_that_is_not_there():
    with pytest.raises(UserError, match="no such file or folder"):
        launch(["/nowhere/to/be/found"], 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_launching_within_a_process_leaves_its_signals_alone():
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
    ear, bell = os.pipe2(os.O_NONBLOCK)
    told = signal.set_wakeup_fd(bell)
    assert launch(["true"], 2) == 0
    assert signal.set_wakeup_fd(told) == bell
    for descriptor in (ear, bell):
        os.close(descriptor)
    assert before == [
        signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    ]


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LOCAL_RANK": "0"}, None),
        (TORCHRUN, Ranks(3, 4, 1, 2, None)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Ranks(1, 2, 1, 2, None)),
        ({**TORCHRUN, "VPOC_RENDEZVOUS": "/a/b", "VPOC_EXCHANGE": "/a"}, Ranks(3, 4, 1, 2, "/a/b", "/a")),
    ],
)
def test_ranks_of(environ, expected):
    assert ranks_of(environ) == expected


@pytest.mark.parametrize(
    "changed", [{"RANK": "4"}, {"RANK": ""}, {"RANK": "-1"}, {"WORLD_SIZE": "x"}, {"LOCAL_RANK": "2"}]
)
def test_variables_that_do_not_fit_together(changed):
    with pytest.raises(UserError, match="in the environment"):
        ranks_of({**TORCHRUN, **changed})


def test_half_of_the_variables():
    with pytest.raises(UserError, match="WORLD_SIZE= in the environment"):
        ranks_of({"RANK": "0"})


LISTENS = """
import faulthandler, os, signal, sys, time
from pathlib import Path
folder, rank = Path(os.environ["FOLDER"]), os.environ["RANK"]
if rank == "1":
    faulthandler.register(signal.SIGUSR1, os.open(folder / "stacks", os.O_WRONLY | os.O_CREAT), all_threads=True)
(folder / str(os.getpid())).touch()
while not (folder / "go").exists():
    time.sleep(0.05)
"""


def test_nobody_ends_by_being_asked_for_stacks(tmp_path, monkeypatch):
    """Rank 1 writes its stacks; the launcher and rank 0, which has no handler yet, ignore the signal and go on."""
    monkeypatch.setenv("FOLDER", str(tmp_path))
    stacks = tmp_path / "stacks"
    with launching(f"exec {sys.executable} -c '{LISTENS}'", 2) as launcher:
        assert until(lambda: len(list(tmp_path.iterdir())) == 3)
        for pid in (launcher.pid, *(int(path.name) for path in tmp_path.iterdir() if path != stacks)):
            os.kill(pid, signal.SIGUSR1)
        assert until(lambda: "most recent call first" in stacks.read_text())
        (tmp_path / "go").touch()
        out, err = launcher.communicate(timeout=15)
    assert (launcher.returncode, out, err) == (0, "", "")
