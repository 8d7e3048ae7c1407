"""Cells as containers."""

import contextlib
import math
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound

from harness.base.errors import UserError
from harness.base.failpoints import reached
from harness.base.storage import unused, write_json
from harness.environments.executors.container import Container
from harness.environments.executors.job import Exit, Handle, Job, JobLost
from harness.host.engine import ENGINE_ERRORS, GONE, Engine, explain
from harness.host.run_processes import RUN_MARK, run_mark

LABEL = "vpoc.matrix.run"
LOG_SECONDS = 10
ASK_SECONDS = 1.0
BY_SIGNAL, LAST_SIGNAL = 128, 64
# How the engine says that it has no right to raise a limit; then its own limit holds.
CANNOT_LOCK_MEMORY = "error setting rlimit type 8"
# What is the image's own fault, not the engine's.
NOT_IN_IMAGE = "executable file not found"


class ContainerHandle:
    """A container of a run. Its output goes to `log`; once it has ended it is removed, and what it was is kept."""

    def __init__(self, engine: Engine, container: str, log: Path) -> None:
        self._api = engine.client.api
        self._id = container
        self._exit: Exit | None = None
        self._asked = -math.inf
        self.inspected: Mapping[str, Any] | None = None
        log.touch()
        self._log = log
        self._begins = log.stat().st_size
        self._copied = False
        self._copying = threading.Thread(target=self._copy_output, daemon=True)
        self._copying.start()

    @property
    def pid(self) -> int | None:
        """The number this host gives its first process: the init process that Docker adds."""
        pid = self.inspected["State"]["Pid"] if self.inspected else 0
        return int(pid) or None

    def poll(self) -> Exit | None:
        """How the process ended, or None while it runs.

        Raises:
            JobLost: when the engine does not answer, or somebody removed the container.
        """
        if self._exit is None:
            # While its output is being followed it runs, and asking the engine takes its time.
            if self._copying.is_alive() and time.monotonic() - self._asked < ASK_SECONDS:
                return None
            self._asked = time.monotonic()
            told = self._inspect()
            state = told["State"]
            if state["Status"] not in ("exited", "dead"):
                return None
            self._finish_log()
            self._exit = _exit_of(state)
            self._remove()
        return self._exit

    def stop(self, grace: float) -> bool:
        """End the container: TERM, `grace` seconds, KILL."""
        if self._exit is not None:
            return True
        try:
            self._api.stop(self._id, timeout=round(grace))
            told = self._inspect()
        except NotFound:
            return True
        except APIError:
            return False
        except (JobLost, *ENGINE_ERRORS):
            # What an engine that is gone leaves of it is ended by its mark.
            return True
        if told["State"]["Running"]:
            return False
        with contextlib.suppress(JobLost):
            self._finish_log()
        self._exit = _exit_of(told["State"])
        self._remove()
        return True

    def _inspect(self) -> Any:
        try:
            self.inspected = self._api.inspect_container(self._id)
        except NotFound:
            raise JobLost("the container was removed from outside") from None
        except ENGINE_ERRORS:
            raise JobLost(GONE) from None
        return self.inspected

    def _copy_output(self) -> None:
        with contextlib.suppress(*ENGINE_ERRORS, OSError, ValueError, struct.error), self._log.open("ab", 0) as file:
            for chunk in self._api.logs(self._id, stream=True, follow=True):
                file.write(chunk)
            self._copied = True

    def _finish_log(self) -> None:
        """Have the whole output in the log before the container goes."""
        self._copying.join(LOG_SECONDS)
        if not self._copied:
            try:
                output = self._api.logs(self._id)
            except ENGINE_ERRORS:
                raise JobLost("the Docker engine does not give the container's output") from None
            # A full disk is reported where the record is written.
            with contextlib.suppress(OSError), self._log.open("r+b") as file:
                file.truncate(self._begins)
                file.seek(self._begins)
                file.write(output)

    def _remove(self) -> None:
        with contextlib.suppress(*ENGINE_ERRORS):
            self._api.remove_container(self._id, force=True)


def _is_gone(folder: Path) -> bool:
    """Return whether it is surely not there; raise OSError where that cannot be known."""
    try:
        # Not `exists`, which takes what may not be looked at for what is not there.
        folder.stat()
    except FileNotFoundError:
        return True
    return False


def _exit_of(state: Any) -> Exit:
    code = int(state["ExitCode"])
    # The init process reports a signal n as exit code 128 + n.
    signalled = BY_SIGNAL < code <= BY_SIGNAL + LAST_SIGNAL
    return Exit(BY_SIGNAL - code if signalled else code, out_of_memory=bool(state["OOMKilled"]))


class DockerExecutor:
    """Starts a job as a container, exactly as its `container` says. `runs` is the folder that holds the run folders."""

    def __init__(self, engine: Engine, runs: Path) -> None:
        self._engine = engine
        self._runs = runs
        self._locks_memory = True

    def start(self, job: Job) -> ContainerHandle:
        """Start a job.

        Raises:
            OSError: when the program is not in the image.
            JobLost: when the engine does not answer, or refuses: that is no fault of the cell.
        """
        if job.container is None:
            raise ValueError("a job without `container` cannot be run by an engine")
        try:
            return self._start(job, job.container)
        except APIError as error:
            if NOT_IN_IMAGE in str(error):
                raise OSError(explain(error)) from None
            raise JobLost(f"the Docker engine refuses the container: {explain(error)}") from None
        except ENGINE_ERRORS:
            raise JobLost(GONE) from None

    def find(self, job: Job) -> Handle | None:
        """Return the container that works in the folder of a job, whether it still runs or not."""
        wanted = {"label": f"{LABEL}={run_mark(job.folder)}"}
        with contextlib.suppress(*ENGINE_ERRORS):
            for found in self._engine.client.api.containers(all=True, filters=wanted):
                return ContainerHandle(self._engine, found["Id"], job.log)
        return None

    def remove_leftovers(self, record: Callable[[str], object | None]) -> None:
        """Remove containers of runs of this folder that have their record: they outlived an engine or a harness."""
        with contextlib.suppress(*ENGINE_ERRORS):
            for found in self._engine.client.api.containers(all=True, filters={"label": LABEL}):
                folder = Path(found["Labels"][LABEL])
                mine = folder.parent == self._runs.absolute()
                # What this user may not look at is another's, and stays.
                with contextlib.suppress(UserError, OSError):
                    # A folder that is gone was one for a short command, such as making data. What still runs has one
                    # where its harness is, though perhaps not here.
                    if (mine and record(folder.name)) or (found["State"] != "running" and _is_gone(folder)):
                        self._engine.client.api.remove_container(found["Id"], force=True)

    def _start(self, job: Job, container: Container) -> ContainerHandle:
        arguments = container.create_arguments()
        if not self._locks_memory:
            arguments["ulimits"] = []
        mark = run_mark(job.folder)
        program, *rest = job.arguments
        created = self._engine.client.containers.create(
            **arguments,
            entrypoint=[program],
            command=rest,
            environment={**job.variables, RUN_MARK: mark},
            labels={LABEL: mark},
            detach=True,
        )
        try:
            reached("container-created")
            created.start()
            reached("job-started")
            if job.note:
                self._note(job.note, created.id)
            reached("job-noted")
            return ContainerHandle(self._engine, created.id, job.log)
        except BaseException as error:
            with contextlib.suppress(*ENGINE_ERRORS):
                created.remove(force=True)
            if self._locks_memory and isinstance(error, APIError) and CANNOT_LOCK_MEMORY in str(error):
                self._locks_memory = False
                return self._start(job, container)
            raise

    def _note(self, note: Path, container: str) -> None:
        """Keep what the engine says it really runs."""
        with contextlib.suppress(*ENGINE_ERRORS):
            told = self._engine.client.api.inspect_container(container)
            kept = {key: told[key] for key in ("Id", "Image", "Created", "Config", "HostConfig", "Mounts")}
            write_json(unused(note), kept)
