"""Runs cells as processes in virtual environments."""

import contextlib
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

from harness.base.files.failpoints import reached
from harness.base.files.json_bounds import load_json
from harness.base.files.locks import held_locks
from harness.base.files.storage import open_regular, write_json
from harness.base.interrupts import shielded
from harness.environments.executors.bounded_log import BoundedLog, Trimming
from harness.environments.executors.job import Exit, Handle, Job
from harness.host.processes.processes import ProcessId
from harness.host.processes.run_processes import (
    RUN_MARK,
    end_processes_of_run,
    may_be_run_process,
    run_mark,
)
from harness.host.processes.unmarked import reap_orphans, track, track_process

GRACE_SECONDS = 1.0
LARGEST_NOTE = 4096
# The exit reported for a process that is not our child, whose status we cannot get.
UNKNOWN_EXIT = Exit(255)


class ProcessHandle:
    """A process that this harness started."""

    inspected = None
    unanswered = False
    silent_seconds = 0.0

    def __init__(self, process: subprocess.Popen[bytes], job: Job, log: BoundedLog) -> None:
        self._process = process
        self._folder = job.folder
        self._trimming = Trimming(log)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> Exit | None:
        """Return how the process ended; None while it runs."""
        reap_orphans()
        code = self._process.poll()
        if code is None:
            return None
        self._trimming.end()
        return Exit(code)

    def stop(self, grace: float) -> bool:
        """End the process and everything that it started; return False if something cannot be killed."""
        # Terminate the app first, because it then ends its own loader workers.
        self._process.terminate()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        gone = end_processes_of_run(self._folder, grace)
        self._trimming.end()
        return gone


class FoundHandle:
    """A process that an earlier harness started."""

    inspected = None
    unanswered = False
    silent_seconds = 0.0

    def __init__(self, identity: ProcessId, folder: Path) -> None:
        self._identity = identity
        self._folder = folder

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._identity.pid

    def poll(self) -> Exit | None:
        """Return None while the process runs, then UNKNOWN_EXIT, because its status went to a parent that is gone."""
        return None if self._identity.alive() else UNKNOWN_EXIT

    def stop(self, grace: float) -> bool:
        """End the process and everything that it started; return False if something cannot be killed."""
        return end_processes_of_run(self._folder, grace)


class ProcessExecutor:
    """Starts a job as a process in a session of its own, so that Ctrl-C reaches only the harness."""

    def start(self, job: Job) -> ProcessHandle:
        """Start a job; the kernel appends its output to the log, without this process.

        Raises:
            OSError: when the program cannot be started.
        """
        handle = None
        try:
            # An interruption waits until the process is known.
            with open_regular(job.log, adding=True) as log, shielded():
                bounded = BoundedLog(job.log, log.tell())
                track(run_mark(job.folder))
                process = subprocess.Popen(
                    job.arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**job.variables, RUN_MARK: run_mark(job.folder)},
                    cwd=(job.work or job.folder) / job.within,
                    start_new_session=True,
                    # The process inherits the locks, so that the orphan of a dead harness keeps its GPUs locked.
                    pass_fds=held_locks(),
                )
                track_process(run_mark(job.folder), process.pid)
                handle = ProcessHandle(process, job, bounded)
            reached("job-started")
            with contextlib.suppress(ProcessLookupError):
                # A process that has already ended does not need to be found again.
                if job.note:
                    write_json(job.note, asdict(ProcessId.of(process.pid)))
        except BaseException:
            # End the job here, because nobody else knows of it.
            if handle:
                handle.stop(GRACE_SECONDS)
            raise
        reached("job-noted")
        return handle

    def find(self, job: Job) -> Handle | None:
        """Return the process that works in the folder of a job if it still runs."""
        if job.note is None:
            return None
        try:
            with open_regular(job.note) as stream:
                # A results folder may be shared, and a process that another user names is not ours to end.
                owner = os.fstat(stream.fileno()).st_uid
                identity = ProcessId.parse(load_json(stream.read(LARGEST_NOTE)))
            # Root, in an epilog, ends for each user the processes that the user's own notes name.
            mine = owner == os.geteuid() or (os.geteuid() == 0 and owner == Path(f"/proc/{identity.pid}").stat().st_uid)
        except (OSError, ValueError, TypeError):
            return None
        if not mine or not identity.alive() or not may_be_run_process(identity.pid, job.folder):
            return None
        track_process(run_mark(job.folder), identity.pid)
        return FoundHandle(identity, job.folder)
