"""Finds processes of a run that do not carry its mark: by their descent, their session and their container.

A run may empty the environment of a child, and a child may leave its parent, group and session. While a run is tracked,
this process is the one that the kernel gives orphans to ("child subreaper"), so that whatever a run starts stays below.
"""

import contextlib
import ctypes
import os
import re
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.host.processes.processes import stat_of

PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
# Its id, in the name of its control group.
CONTAINER = re.compile(r"[0-9a-f]{64}")


@dataclass
class _Tracked:
    """The signs of a run's processes. `since`: in ticks since boot; None where nothing was started as a process.

    `jobs`: leaders of sessions, and when each was started; `containers`: their ids; `noted`: those of which a note
    tells, where only what carries its mark is the run's.
    """

    since: int | None = None
    jobs: dict[int, int] = field(default_factory=dict)
    containers: set[str] = field(default_factory=set)
    noted: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Seen:
    parent: int
    group: int
    session: int
    started: int


_runs: dict[str, _Tracked] = {}


def track(mark: str) -> None:
    """Track the processes of a run from now on, before the first of them is started."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = _runs.setdefault(mark, _Tracked())
    run.since = run.since or int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS) - 1


def track_process(mark: str, pid: int) -> None:
    """Count the leader of a session, and so its session, among the processes of a run; one that is gone is none."""
    if leader := _seen(pid):
        _runs.setdefault(mark, _Tracked()).jobs[pid] = leader.started


def track_container(mark: str, container: str) -> None:
    """Count all processes of a container, by its id, among those of a run."""
    _runs.setdefault(mark, _Tracked()).containers.add(container)


def note_containers(mark: str, containers: Collection[str]) -> None:
    """Take what carries a run's mark in one of these containers, by their ids, for the run's.

    Not all of their processes: who began the run wrote down which they are, and may be another user.
    """
    _runs.setdefault(mark, _Tracked()).noted.update(containers)


def unmarked(mark: str, marked: Collection[int]) -> frozenset[int]:
    """Return the processes of a tracked run besides those that are known by their mark, zombies included."""
    run = _runs.get(mark)
    if run is None:
        return frozenset()
    processes = _processes()
    others = {job for its_mark, other in _runs.items() if its_mark != mark for job in other.jobs}
    found = {
        pid
        for pid, one in processes.items()
        if _is_in_session(one, run)
        or (_is_orphan(one, run) and one.session not in others)
        or (run.containers and _is_inside(pid, run))
    }
    last: set[int] = set(marked) | found
    while last:
        last = {pid for pid, one in processes.items() if one.parent in last} - found
        found |= last
    return frozenset(found - set(marked) - {os.getpid()})


def is_of_other_container(mark: str, pid: int) -> bool:
    """Return whether a process is in a container of which nothing says that it is a run's, whatever mark it carries.

    The mark of a run that is made beside it can be guessed, and what carries it would be taken for that run's.
    """
    run = _runs.get(mark, _Tracked())
    known = run.containers.union(run.noted, CONTAINER.findall(_groups(os.getpid())))
    return any(found not in known for found in CONTAINER.findall(_groups(pid)))


def reap_orphans(*, kill: bool = False) -> int:
    """Take the exit statuses of orphans that have ended, and return how many there were.

    Nobody else waits for them, and each keeps its number. With `kill` the rest of its group is killed: what ends may
    have started something just before, faster than processes can be looked for.
    """
    reaped = 0
    with contextlib.suppress(OSError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if not _reap(ended.si_pid, kill):
                break
            reaped += 1
        else:
            return reaped
        # A child of ours is waited for by whoever started it, and the kernel tells of the others only after it.
        for pid in _children():
            reaped += _reap(pid, kill)
    return reaped


def kill_orphans(mark: str, seconds: float) -> None:
    """Kill the orphans of a run for so long, or until there is none.

    Of what is a new process all the time each is gone before a search of all processes ends. Each becomes a child of
    this one when the process before it has ended, and is killed within a few system calls.
    """
    run = _runs.get(mark, _Tracked())
    others = {job for its_mark, other in _runs.items() if its_mark != mark for job in other.jobs}
    until, orphans = time.monotonic() + seconds, True
    while orphans and time.monotonic() < until:
        orphans = False
        # The last is the newest.
        for pid in reversed(_children()):
            one = _seen(pid)
            if one and _is_orphan(one, run) and one.session not in others and pid not in run.jobs:
                orphans = True
                with contextlib.suppress(OSError):
                    # A child's number is not used again before its status is taken.
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    """Return the children of this process, by the thread that has them where the kernel lists them."""
    if not Path("/proc/thread-self/children").exists():
        return [pid for pid, one in _processes().items() if one.parent == os.getpid()]
    found = list[int]()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_bytes().split())
    return found


def _reap(pid: int, kill: bool) -> bool:
    """Take the exit status of an orphan of any run, if it has ended."""
    one, runs = _seen(pid), _runs.values()
    # A run's own process is waited for by its executor, also while another run is tracked.
    if one is None or any(pid in run.jobs for run in runs) or not any(_is_orphan(one, run) for run in runs):
        return False
    if kill:
        with contextlib.suppress(OSError):
            os.killpg(one.group, signal.SIGKILL)
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _is_in_session(one: _Seen, run: _Tracked) -> bool:
    # A number is used again.
    return one.session in run.jobs and one.started >= run.jobs[one.session]


def _is_orphan(one: _Seen, run: _Tracked) -> bool:
    """Return whether a process came to this one since the run began.

    The run began in a session of its own, and no process can join another's: what is in ours, was started by us.
    """
    if run.since is None or one.parent != os.getpid() or one.session == os.getsid(0):
        return False
    return one.started >= run.since


def _is_inside(pid: int, run: _Tracked) -> bool:
    groups = _groups(pid)
    return any(container in groups for container in run.containers)


def _groups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _processes() -> Mapping[int, _Seen]:
    found = ((pid, _seen(pid)) for pid in psutil.pids())
    return {pid: one for pid, one in found if one}


def _seen(pid: int) -> _Seen | None:
    """Fields 4, 5, 6 and 22 of /proc/PID/stat."""
    try:
        fields = stat_of(pid)
    except OSError:
        return None
    return _Seen(int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
