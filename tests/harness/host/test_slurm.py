import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.host import slurm_programs
from harness.host.processes.processes import runs
from harness.host.slurm import (
    SlurmNode,
    boot_times,
    count_gpus,
    hooks_of_nodes,
    nodes_of,
    own_jobs,
    seconds_of,
    submit,
    why_ended,
)
from harness.host.slurm_programs import SlurmSilentError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose programs are found first."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def write(programs: Path, name: str, script: str) -> None:
    file = programs / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:00", 60.0),
        ("0:02", 2.0),
        ("2:03:04", 7384.0),
        ("1-00:00:00", 86400.0),
        ("2-1", 176400.0),
        ("UNLIMITED", None),
        ("NaN", None),
        ("\u0661:00", None),
        ("1" * 400, None),
        ("1" * 400 + "-1", None),
    ],
)
def test_times_of_slurm(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:2", 2),
        ("gpu:gfx1100:2(S:0-1),nic:4", 2),
        ("gpu", 1),
        ("(null)", 0),
        ("gpu:a:1,gpu:b:3", 4),
        ("gpu:\u00b2", 1),
    ],
)
def test_gpus_of_a_node(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_nodes_of_the_default_partition_and_what_keeps_them(programs: Path) -> None:
    lines = [
        "gpus*|n1|idle|infinite|gpu:2|none",
        "gpus*|n2|drain*|infinite|gpu:2|Kill task failed",
        "short|n1|idle|1:00||",
    ]
    write(programs, "sinfo", "\n".join(f"echo '{line}'" for line in lines))
    one, two = nodes_of(None)
    assert one == SlurmNode("n1", "idle", 2, None, "none")
    assert (one.takes_jobs, two.takes_jobs, two.reason) == (True, False, "Kill task failed")
    assert nodes_of("short")[0].seconds == 60
    with pytest.raises(UserError, match="no partition 'big'; it has gpus, short"):
        nodes_of("big")


def test_of_two_jobs_of_a_name_the_one_that_is_not_over_counts(programs: Path) -> None:
    lines = ["7|RUNNING|n1|None|r1", "8|FAILED|n2|NonZeroExitCode|r1", "9|PENDING||Resources|r|2"]
    write(programs, "squeue", "\n".join(f"echo '{line}'" for line in lines))
    jobs = own_jobs()
    assert (jobs["r1"].id, jobs["r1"].phase, jobs["r|2"].phase) == ("7", "runs", "waits")


def test_a_name_or_a_reason_of_two_lines_is_no_error(programs: Path) -> None:
    write(programs, "squeue", "printf '7|RUNNING|n1|None|one\\ntwo\\n8|RUNNING|n1|None|r1\\n'")
    assert own_jobs().keys() == {"one", "r1"}
    write(programs, "sinfo", "printf 'p*|n1|idle|1:00|gpu:2|broken\\nfan\\np*|n2|idle|1:00|gpu:2|none\\n'")
    assert [node.name for node in nodes_of(None)] == ["n1", "n2"]


def test_a_user_without_an_entry_in_passwd_is_asked_for_by_number(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 7)
    write(programs, "squeue", "case \"$*\" in *--user=2147483641*) echo '7|RUNNING|n1|None|r1' ;; esac")
    assert list(own_jobs()) == ["r1"]


def test_variables_do_not_come_before_what_a_script_says(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "theirs")
    write(programs, "sbatch", 'echo "$SBATCH_PARTITION$SBATCH_TIMELIMIT$SBATCH_ACCOUNT"')
    assert submit(programs / "script") == "theirs"


def test_when_nodes_were_booted_as_far_as_slurm_says(programs: Path) -> None:
    lines = [
        "NodeName=n1 Arch=x86_64 BootTime=1800000000 SlurmdStartTime=1800000100 Reason=none",
        "NodeName=n2 CPUAlloc=0 State=DOWN BootTime=None SlurmdStartTime=None",
    ]
    write(programs, "scontrol", "\n".join(f"echo '{line}'" for line in lines))
    assert boot_times() == {"n1": 1800000000.0}
    write(programs, "scontrol", "echo 'no such command' >&2; exit 1")
    assert boot_times() == {}


def test_what_is_no_number_or_name_is_passed_over(programs: Path) -> None:
    write(programs, "squeue", "printf '%s\\n' '--me|RUNNING|n1|None|r1' '7|RUNNING|n1|None|r2' '8|RUN\377|||r3'")
    assert sorted(own_jobs()) == ["r2", "r3"]
    rows = ["gpus*|n1|idle|infinite|gpu:2|none", "gpus*|../../n2|idle|1:00||none", "gpus*|n3 --uid=0|idle|1:00||none"]
    write(programs, "sinfo", "\n".join(f"echo '{row}'" for row in rows))
    assert [node.name for node in nodes_of(None)] == ["n1"]
    write(programs, "sinfo", "seq -f 'p%g|n1|idle|1:00||none' 100000")
    with pytest.raises(UserError) as refused:
        nodes_of("big")
    assert len(str(refused.value)) < 1000
    write(programs, "scontrol", f"echo NodeName=n1 BootTime={'9' * 400}")
    assert boot_times() == {}
    write(programs, "sbatch", "true")
    assert submit(programs / "job.sh") == ""


def test_hooks_are_found_in_no_time_whatever_stands_beside_them(programs: Path) -> None:
    write(programs, "scontrol", "printf 'Prolog[0]=/a b\\nEpilog = (null)\\nProlog =/c%1000000sx\\n' ''")
    began = time.process_time()
    told = hooks_of_nodes()
    assert time.process_time() - began < 5
    assert told
    assert (told["Prolog"][0], told["Prolog"][1][:3], told["Epilog"]) == ("/a b", "/c ", ())


def test_a_full_queue_is_not_waited_for(programs: Path) -> None:
    write(
        programs, "sbatch", "echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping' >&2; exec sleep 30"
    )
    with pytest.raises(SlurmSilentError, match="queue is full"):
        submit(programs / "script")


def test_what_is_refused_is_an_error_and_silence_is_not(programs: Path) -> None:
    write(programs, "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    with pytest.raises(UserError, match="Invalid account"):
        submit(programs / "script")
    for silent in ("Unable to contact slurm controller (connect failure)", "slurm_load_jobs error: Broken pipe"):
        write(programs, "sbatch", f"echo '{silent}' >&2; exit 1")
        with pytest.raises(SlurmSilentError):
            submit(programs / "script")
    write(programs, "sbatch", "echo '12;lab'")
    assert submit(programs / "script") == "12"


def test_what_a_script_in_the_place_of_a_program_started_is_ended_with_it(programs: Path) -> None:
    full = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    write(programs, "sbatch", f"sleep 40 & echo $! > {programs}/child; echo '{full}' >&2; wait")
    with pytest.raises(SlurmSilentError, match="queue is full"):
        submit(programs / "script")
    child, until = int((programs / "child").read_text(encoding="ascii")), time.monotonic() + 20
    while runs(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not runs(child)


def test_what_a_program_that_has_ended_left_running_is_not_waited_for(programs: Path) -> None:
    write(programs, "squeue", f"sleep 20 & echo $! > {programs}/left; echo '7|RUNNING|n1|None|a'")
    jobs = own_jobs()
    # The program that was left still runs: the signal would fail if `own_jobs` had waited for its end.
    os.kill(int((programs / "left").read_text()), signal.SIGKILL)
    assert list(jobs) == ["a"]


def test_what_slurm_says_needs_no_room_on_a_disk(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A program that prints to a full disk may still succeed, and then all jobs would seem to be gone.
    monkeypatch.setattr(tempfile, "tempdir", str(programs / "full"))
    write(programs, "squeue", "echo '7|RUNNING|n1|None|a'")
    assert list(own_jobs()) == ["a"]


def test_no_more_is_read_than_slurm_says(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_programs, "MOST_BYTES", 100)
    write(programs, "squeue", "yes '7|RUNNING|n1|None|a'")
    with pytest.raises(SlurmSilentError, match="prints more than"):
        own_jobs()
    write(programs, "squeue", "yes 'no such user' >&2")
    with pytest.raises(SlurmSilentError, match="prints more than"):
        own_jobs()


@pytest.mark.parametrize(
    ("told", "ending"),
    [
        ("TIMEOUT|1:14|1:00", "time-limit"),
        ("COMPLETING|1:14|1:00", "time-limit"),
        ("COMPLETING|0:14|1:00", "cancelled"),
        ("COMPLETING|0:14|UNLIMITED", "cancelled"),
        ("RUNNING|0:14|1:00", "cancelled"),
        ("RUNNING|1:14|1:00", "cancelled"),
        ("", "cancelled"),
    ],
)
def test_why_a_job_is_sent_term(told: str, ending: str, programs: Path) -> None:
    write(programs, "squeue", f"echo '{told}'")
    assert why_ended("7") == ending
