"""The processes of a run: finds them by their mark, describes them as the kernel sees them, and ends them."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.base.text import one_line
from harness.host.processes.processes import command_of, runs, variable_of
from harness.host.processes.unmarked import is_of_other_container, kill_orphans, reap_orphans, unmarked

RUN_MARK = "MATRIX_RUN"
WAIT_SECONDS = 0.02
# Wait for a killed process, in seconds: giving back much memory takes time.
KILLED_SECONDS = 10.0
# Longest time to end a run, in seconds: a run that starts processes faster than they can be killed makes the host
# useless.
ENDED_SECONDS = 60.0
# Most searches for all processes: a process that replaces itself by a new one all the time is never found.
MOST_SEARCHES = 10
STATES = {"T": "stopped (state T)", "t": "stopped by a tracer (state t)", "D": "in an uninterruptible wait (state D)"}
COMMAND_WIDTH = 200
NAMED, NAMED_WIDTH = 5, 60
# A rank, whatever a process says it is: no rank has more digits.
_RANK = re.compile(r"[0-9]{1,6}")
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*([0-9]+)$", re.MULTILINE)
FLEETING, FLEETING_SECONDS = "one that is a new one all the time", 0.1


@dataclass(frozen=True)
class RunProcess:
    """A process of a run.

    `inner_pid`: its pid in its own container.
    `started`: in seconds since 1970.
    `catches`: whether it has a handler for SIGUSR1 or SIGUSR2.
    """

    pid: int
    inner_pid: int
    started: float
    rank: int | None
    state: str
    waits_in: str
    cpu_seconds: float
    rss_bytes: int
    threads: int
    name: str
    command: str
    catches: bool

    @property
    def listens(self) -> bool:
        """True if the process can be asked for its stacks: it catches one of the signals, and is not stopped."""
        return self.catches and self.state not in ("T", "t")

    @property
    def why_silent(self) -> str:
        """In words, why the process may have given no stacks."""
        if not self.catches:
            return "it does not catch SIGUSR1, which would end it"
        return f"it is {STATES[self.state]}" if self.state in STATES else "it did not answer in time"


def processes_of_run(folder: Path, *, stop: bool = False) -> list[psutil.Process]:
    """Return every live process that was started by a run, loader workers and strays included.

    In a run that this process started, processes without the mark are found, too. With `stop` each process is stopped
    as it is found: there may be so many that a search takes half a minute, in which they could start others that it
    misses.
    """
    mark = run_mark(folder)
    found = list[psutil.Process]()

    def take(process: psutil.Process) -> None:
        found.append(process)
        if stop:
            with contextlib.suppress(psutil.Error):
                process.suspend()

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and is_of_run(process.pid, folder):
                take(process)
    for pid in unmarked(mark, [process.pid for process in found]):
        with contextlib.suppress(psutil.Error):
            take(psutil.Process(pid))
    return [process for process in found if _runs(process)]


def run_mark(folder: Path) -> str:
    """Return the mark of a run's processes: its folder, because two results folders may have runs with the same id."""
    return str(folder.absolute())


def end_processes_of_run(folder: Path, grace: float) -> bool:
    """End the processes that a run left: TERM, `grace` seconds, KILL. Return False when one cannot be killed."""
    found = processes_of_run(folder)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _left_after(grace, found)
    began, since = None, dict[tuple[psutil.Process, int], float]()
    # The search is repeated, because a process that is being ended may start another one, and be gone by the next
    # search.
    while (found := _stopped(folder)) or reap_orphans(kill=True):
        now = time.monotonic()
        # Among hundreds of processes that use all processors, the first search alone can take this long.
        began = began or now
        # Each process has its own time, because one that another process has just started can be killed, too, and one
        # that waits until the disk has written gigabytes ends then: it is woken meanwhile, as one that is stuck is not.
        since = {still: since.get(still, now) for still in ((process, _woken(process)) for process in found)}
        outlasted = now - min(since.values(), default=now) > 2 * max(grace, KILLED_SECONDS)
        if outlasted or now - began > ENDED_SECONDS:
            return False
        _kill(found)
        kill_orphans(run_mark(folder), WAIT_SECONDS)
        _left_after(WAIT_SECONDS, found)
    return True


def _woken(process: psutil.Process) -> int:
    """Return how often the threads of a process were woken so far, or had to give way."""
    with contextlib.suppress(OSError):
        tasks = [*Path(f"/proc/{process.pid}/task").iterdir()]
        status = "\n".join((task / "status").read_text(encoding="utf-8", errors="replace") for task in tasks)
        return sum(map(int, _SWITCHES.findall(status)))
    return 0


def _stopped(folder: Path) -> list[psutil.Process]:
    """Stop the processes that a run left, until a search finds no new one, and return them.

    If they were killed one by one, those that are still running could start more.
    """
    found = processes_of_run(folder, stop=True)
    for _ in range(MOST_SEARCHES):
        before, found = set(found), processes_of_run(folder, stop=True) if found else []
        if before.issuperset(found):
            break
    return found


def cannot_be_killed(folder: Path) -> str:
    """Return the message for a run with a process that cannot be killed: which processes, and their state."""
    named = [
        f"{one.pid} ({one.command[:NAMED_WIDTH] or one.name}){f', {STATES[one.state]}' if one.state in STATES else ''}"
        for one in look_at_processes(folder)[:NAMED]
    ]
    return ": ".join(filter(None, ["a process of the run cannot be killed", "; ".join(named)]))


def marked_runs(runs: Path) -> set[str]:
    """Return the runs, by the names of their folders in `runs`, whose mark a process of this host carries."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = Path(variable_of(process.pid, RUN_MARK) or "")
            if mark.parent == runs.absolute():
                found.add(mark.name)
    return found


def _kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes, and the groups of those in other sessions than ours, so that no group has time to start more."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) != os.getsid(0):
                os.killpg(os.getpgid(process.pid), signal.SIGKILL)


def _left_after(seconds: float, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run after some time.

    psutil's wait is not used: it would take the exit code of a child of ours away from its `Popen`, and wait for
    zombies, which hold nothing any more.
    """
    until = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < until:
        time.sleep(WAIT_SECONDS)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and runs(process.pid))
    except psutil.Error:
        return False


def look_at_processes(folder: Path) -> tuple[RunProcess, ...]:
    """Return the live processes of the run of a folder, loader workers and strays included, by pid."""
    found = (_look(process) for process in processes_of_run(folder))
    return tuple(sorted((process for process in found if process), key=lambda process: process.pid))


def survivors(folder: Path, seconds: float) -> tuple[str, ...]:
    """Return the processes of a run that still run some time after its own process ended, each in a few words.

    With a time of 0, only those without its mark: its other helpers have not noticed yet that the process crashed.
    """
    _left_after(seconds, processes_of_run(folder))
    left = [one for one in look_at_processes(folder) if seconds or not is_of_run(one.pid, folder)]
    if not left and _follow_one_another():
        return (FLEETING,)
    return tuple(f"{one.pid} ({one.command[:NAMED_WIDTH] or one.name})" for one in left)


def _follow_one_another() -> bool:
    """Return whether there are always new processes, each of them gone before it can be examined."""
    if not reap_orphans():
        return False
    time.sleep(FLEETING_SECONDS)
    return reap_orphans() > 0


def survivors_in_words(left: Sequence[str]) -> str:
    """Return the words of a record about survivors; an empty text for none."""
    if not left:
        return ""
    named = [*left[:NAMED], *([f"{len(left) - NAMED} more"] if len(left) > NAMED else [])]
    subject = "1 process survived its run" if len(left) == 1 else f"{len(left)} processes survived their run"
    return f"{subject}: {', '.join(named)}; ended"


def is_of_run(pid: int, folder: Path) -> bool:
    """Return whether a process was started by the run of a folder: it carries the run's mark, and is not a stranger's.

    Any user may write the mark. But only root can become another user, and a process in a container does not leave it.
    """
    mark = run_mark(folder)
    try:
        return (
            variable_of(pid, RUN_MARK) == mark
            and int(_status(pid)["Uid"].split()[0]) in _users(folder)
            and not is_of_other_container(mark, pid)
        )
    except (OSError, KeyError):
        return False


def belongs_to_run(pid: int, folder: Path) -> bool:
    """Return whether a process was started by a run: it has the mark, or belongs to the tracked run; zombies, too."""
    if is_of_run(pid, folder):
        return True
    marked = [one for one in psutil.pids() if one != os.getpid() and is_of_run(one, folder)]
    return pid in unmarked(run_mark(folder), marked)


def may_be_run_process(pid: int, folder: Path) -> bool:
    """Return whether a process that a note names can be the one with which a run was started.

    A user who may write to a shared results folder can name any other process. Without the mark, as after `env -i`, it
    has to be the leader of a session that works in the run's folder and writes its output there, as no terminal does.
    """
    try:
        if variable_of(pid, RUN_MARK) is not None:
            return is_of_run(pid, folder)
        process, inside = Path(f"/proc/{pid}"), folder.resolve()
        places = [(process / name).readlink() for name in ("cwd", "fd/1")]
        return (
            int(_status(pid)["Uid"].split()[0]) in _users(folder)
            and os.getsid(pid) == pid
            and all(place.is_relative_to(inside) for place in places)
        )
    except (OSError, KeyError):
        return False


def _users(folder: Path) -> set[int]:
    """Return the users whose processes may be a run's: this user, and the one who began the run."""
    users = {os.geteuid()}
    with contextlib.suppress(OSError):
        users.add(folder.stat().st_uid)
    return users


def table(processes: Sequence[RunProcess]) -> str:
    """Return the processes as a table, for people and for a file."""
    lines = [f"{'PID':>8} {'IN RUN':>8} {'RANK':>4} S {'WAITS IN':<24} {'CPU s':>9} {'RSS MiB':>8} {'THR':>4} COMMAND"]
    lines += [
        f"{one.pid:>8} {one.inner_pid:>8} {'-' if one.rank is None else one.rank:>4} {one.state} {one.waits_in:<24} "
        f"{one.cpu_seconds:>9.1f} {one.rss_bytes / 2**20:>8.0f} {one.threads:>4} {one.command}"
        for one in processes
    ]
    return "\n".join(lines) + "\n"


def _look(process: psutil.Process) -> RunProcess | None:
    try:
        status = _status(process.pid)
        times = process.cpu_times()
        rank = variable_of(process.pid, "RANK") or ""
        return RunProcess(
            pid=process.pid,
            inner_pid=int(status.get("NSpid", str(process.pid)).split()[-1]),
            started=process.create_time(),
            rank=int(rank) if _RANK.fullmatch(rank) else None,
            state=status["State"][:1],
            waits_in=_waits_in(process.pid),
            cpu_seconds=times.user + times.system,
            rss_bytes=process.memory_info().rss,
            threads=int(status["Threads"]),
            name=one_line(status["Name"]),
            command=one_line(" ".join(command_of(process.pid).split()))[:COMMAND_WIDTH],
            catches=_catches(status, signal.SIGUSR1) or _catches(status, signal.SIGUSR2),
        )
    except (psutil.Error, OSError, KeyError, ValueError):
        # The process has ended meanwhile.
        return None


def catches(pid: int, signum: int) -> bool:
    """Return whether a process has a handler for a signal now."""
    try:
        return _catches(_status(pid), signum)
    except (OSError, KeyError, ValueError):
        return False


def _status(pid: int) -> Mapping[str, str]:
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return {key: value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def _catches(status: Mapping[str, str], signum: int) -> bool:
    return bool(int(status["SigCgt"], 16) & 1 << (signum - 1))


def _waits_in(pid: int) -> str:
    """Return the kernel function in which a process sleeps; `-` where it is not shown."""
    try:
        return Path(f"/proc/{pid}/wchan").read_text(encoding="ascii").strip("0\n") or "-"
    except OSError:
        return "-"
