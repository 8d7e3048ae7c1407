"""Finds processes of a run that do not carry its mark: by their descent, their session and their container.

A run may empty the environment of a child, and a child may leave its parent, group and session. While a run is tracked,
the kernel makes orphans children of this process ("child subreaper"), so that all processes of the run stay below it.
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
# The id of a container, in the name of its control group.
CONTAINER = re.compile(r"[0-9a-f]{64}")


@dataclass
class _Tracked:
    """The signs of a run's processes.

    `since`: in clock ticks since boot; None where nothing was started as a process.
    `jobs`: leaders of sessions, and when each was started.
    `containers`: the ids of the run's containers.
    `noted`: the ids of containers in a note; in these only processes with the mark are the run's.
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
    """Track the processes of a run from now on; call this before the first of them is started."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = _runs.setdefault(mark, _Tracked())
    run.since = run.since or int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS) - 1


def track_process(mark: str, pid: int) -> None:
    """Count a session, by its leader, among the processes of a run; a leader that is gone is ignored."""
    if leader := _seen(pid):
        _runs.setdefault(mark, _Tracked()).jobs[pid] = leader.started


def track_container(mark: str, container: str) -> None:
    """Count all processes of a container, given by its id, among those of a run."""
    _runs.setdefault(mark, _Tracked()).containers.add(container)


def note_containers(mark: str, containers: Collection[str]) -> None:
    """Count processes with a run's mark in these containers, given by their ids, among those of the run.

    Their other processes do not count, because the note is by the user who began the run, who may be another one.
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
    """Return whether a process is in a container that is not known to be a run's, whatever mark the process carries.

    Another run beside this one could guess its mark, and its processes would be taken for this run's.
    """
    run = _runs.get(mark, _Tracked())
    known = run.containers.union(run.noted, CONTAINER.findall(_groups(os.getpid())))
    return any(found not in known for found in CONTAINER.findall(_groups(pid)))


def reap_orphans(*, kill: bool = False) -> int:
    """Take the exit codes of orphans that have ended, and return how many there were.

    No other process waits for them, and each would keep its pid. With `kill` the rest of its group is killed, because a
    process that ends may just have started another one, faster than a search can find it.
    """
    reaped = 0
    with contextlib.suppress(OSError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if not _reap(ended.si_pid, kill):
                break
            reaped += 1
        else:
            return reaped
        # The starter of a child of ours waits for it, and the kernel lists the others only behind it.
        for pid in _children():
            reaped += _reap(pid, kill)
    return reaped


def kill_orphans(mark: str, seconds: float) -> None:
    """Kill the orphans of a run for `seconds` seconds, or until there are none.

    If a process replaces itself by a new one all the time, each is gone before a search of all processes ends. But each
    becomes a child of this process when the one before it has ended, and is then killed within a few system calls.
    """
    run = _runs.get(mark, _Tracked())
    others = {job for its_mark, other in _runs.items() if its_mark != mark for job in other.jobs}
    until, orphans = time.monotonic() + seconds, True
    while orphans and time.monotonic() < until:
        orphans = False
        # The last child is the newest.
        for pid in reversed(_children()):
            one = _seen(pid)
            if one and _is_orphan(one, run) and one.session not in others and pid not in run.jobs:
                orphans = True
                with contextlib.suppress(OSError):
                    # The pid of a child is not reused before its exit code is taken.
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    """Return the children of this process; from the list of each thread, where the kernel has such lists."""
    if not Path("/proc/thread-self/children").exists():
        return [pid for pid, one in _processes().items() if one.parent == os.getpid()]
    found = list[int]()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_bytes().split())
    return found


def _reap(pid: int, kill: bool) -> bool:
    """Take the exit code of an orphan of any run, if it has ended; return whether it had."""
    one, runs = _seen(pid), _runs.values()
    # The executor waits for a run's own process, also while another run is tracked.
    if one is None or any(pid in run.jobs for run in runs) or not any(_is_orphan(one, run) for run in runs):
        return False
    if kill:
        with contextlib.suppress(OSError):
            os.killpg(one.group, signal.SIGKILL)
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _is_in_session(one: _Seen, run: _Tracked) -> bool:
    # The start is compared, because a pid may be reused.
    return one.session in run.jobs and one.started >= run.jobs[one.session]


def _is_orphan(one: _Seen, run: _Tracked) -> bool:
    """Return whether a process became a child of this one since the run began.

    The run began in a session of its own, and no process can join another session: processes in our session are our
    own.
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
    """Return fields 4, 5, 6 and 22 of /proc/PID/stat; None where the process is gone."""
    try:
        fields = stat_of(pid)
    except OSError:
        return None
    return _Seen(int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))
