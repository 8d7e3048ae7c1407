"""Cells as containers."""

import contextlib
import math
import os
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
from harness.base.text import one_line
from harness.environments.executors.bounded_log import SLACK_BYTES, BoundedLog
from harness.environments.executors.container import LOG_FILE_BYTES, WORK, Container
from harness.environments.executors.job import Exit, Handle, Job, JobLost
from harness.host.engine import ENGINE_ERRORS, GONE, Engine, explain
from harness.host.run_processes import RUN_MARK, run_mark
from harness.host.unmarked import track_container

LABEL = "vpoc.matrix.run"
LOG_SECONDS = 10
# The engine writes each line with its time as JSON, at most some eighty bytes for one: below this no file is full.
NEVER_ROTATED_BYTES = LOG_FILE_BYTES // 100
COMPARED_BYTES = 1 << 16
ASK_SECONDS = 1.0
BY_SIGNAL, LAST_SIGNAL = 128, 64
# How the engine says that it has no right to raise a limit; then its own limit holds.
CANNOT_LOCK_MEMORY = "error setting rlimit type 8"
LONGEST_NAMES = 200
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
        self._bounded = BoundedLog(log, self._begins)
        self._output: Any = None
        self._copied_bytes = 0
        self._copied = self._overdue = False
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
        trimmed = 0
        with contextlib.suppress(*ENGINE_ERRORS, OSError, ValueError, struct.error), self._log.open("ab", 0) as file:
            self._output = self._api.logs(self._id, stream=True, follow=True)
            for chunk in self._output:
                if self._overdue:
                    return
                file.write(chunk)
                self._copied_bytes += len(chunk)
                if self._copied_bytes - trimmed >= SLACK_BYTES:
                    self._bounded.trim()
                    trimmed = self._copied_bytes
            self._copied = True

    def _finish_log(self) -> None:
        """Have the output in the log, within its bounds, before the container goes.

        Of a container that writes fast, the engine drops what nobody has read yet, and then the end does not come here.
        """
        self._copying.join(LOG_SECONDS)
        try:
            if not (self._copied and self._ends_as_the_engine_says()):
                self._stop_copying()
                self._copy_what_the_engine_keeps()
                return
        except ENGINE_ERRORS:
            raise JobLost("the Docker engine does not give the container's output") from None
        except OSError:
            # A full disk is reported where the record is written.
            return
        self._bounded.finish()

    def _ends_as_the_engine_says(self) -> bool:
        if self._copied_bytes < NEVER_ROTATED_BYTES:
            return True
        last = self._api.logs(self._id, tail=1)
        with self._log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - len(last), 0))
            return bool(file.read() == last)

    def _stop_copying(self) -> None:
        self._overdue = True
        if self._copying.is_alive():
            with contextlib.suppress(*ENGINE_ERRORS, OSError, ValueError):
                self._output.close()
            self._copying.join(LOG_SECONDS)

    def _copy_what_the_engine_keeps(self) -> None:
        """Put the engine's copy, which is bounded, in the place of what was followed, or after its beginning."""
        output = iter(self._api.logs(self._id, stream=True))
        first = b""
        for chunk in output:
            first += chunk
            if len(first) >= COMPARED_BYTES:
                break
        with self._log.open("r+b") as file:
            file.seek(self._begins)
            followed = file.read(len(first))
            # The engine still has the beginning, or has it alone.
            whole = first.startswith(followed)
            seam = self._begins if whole else min(self._begins + self._copied_bytes, self._bounded.head_ends)
            file.truncate(seam)
            file.seek(seam)
            kept = file.write(first) + sum(map(file.write, output))
        if whole:
            self._bounded.finish()
        else:
            self._bounded.finish_after_gap(seam, max(self._copied_bytes, kept))

    def _remove(self) -> None:
        with contextlib.suppress(*ENGINE_ERRORS):
            self._api.remove_container(self._id, force=True, v=True)


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
            OSError: when the program is not in the image, or the image declares volumes.
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
                track_container(run_mark(job.folder), found["Id"])
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
                        self._engine.client.api.remove_container(found["Id"], force=True, v=True)

    def _refuse_volumes(self, image: str) -> None:
        told = self._engine.client.api.inspect_image(image)
        if volumes := (told.get("Config") or {}).get("Volumes"):
            names = one_line(", ".join(sorted(volumes)))[:LONGEST_NAMES]
            raise OSError(
                f"its image declares volumes ({names}), which could be written to without a limit and would stay; "
                "no image that is built here does: build it again, or take another one"
            )

    def _start(self, job: Job, container: Container) -> ContainerHandle:
        self._refuse_volumes(container.image)
        arguments = container.create_arguments()
        arguments["working_dir"] = str(WORK / job.within)
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
            track_container(mark, created.id)
            reached("job-started")
            if job.note:
                self._note(job.note, created.id)
            reached("job-noted")
            return ContainerHandle(self._engine, created.id, job.log)
        except BaseException as error:
            with contextlib.suppress(*ENGINE_ERRORS):
                created.remove(force=True, v=True)
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
