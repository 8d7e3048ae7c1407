"""Runs cells as containers."""

import contextlib
import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from docker.errors import APIError, ImageNotFound

from harness.base.errors import UserError
from harness.base.files.failpoints import reached
from harness.base.files.json_bounds import load_json
from harness.base.files.storage import unused, write_json
from harness.base.text import one_line
from harness.environments.executors.container import DATA, MEMLOCK, WORK, Container, inside
from harness.environments.executors.container_handle import ContainerHandle
from harness.environments.executors.job import EngineSilent, Handle, Job, JobLost
from harness.host.engine import Engine
from harness.host.engine_client import FOLDER_MODE, LINK_MODE, TooLargeAnswerError
from harness.host.engine_errors import ENGINE_ERRORS, GONE, explain
from harness.host.processes.run_processes import RUN_MARK, run_mark
from harness.host.processes.unmarked import track_container

LABEL = "vpoc.matrix.run"
# The engine's error if it has no right to raise a limit; its own limit then applies.
CANNOT_LOCK_MEMORY = "error setting rlimit type 8"
LONGEST_NAMES = 200
# Engines read these files at each start. If reading never ends, the start hangs, and the container cannot be removed.
READ_AT_START = ("/etc/passwd", "/etc/group")
LARGEST_READ_AT_START = 1 << 20
IN_WORDS = {0: "a file", FOLDER_MODE: "a folder", LINK_MODE: "a link"}
# The path of a program that no image has.
NO_PROGRAM = "/no-program"


def _is_gone(folder: Path) -> bool:
    """Return whether a folder certainly does not exist; raise OSError if that cannot be known."""
    try:
        # Do not use `exists`, which returns False for a folder that may not be looked at.
        folder.stat()
    except FileNotFoundError:
        return True
    return False


def _refused(path: str, found: str, wanted: str) -> str:
    """Return what is wrong with a path of an image, and what to do about it."""
    said = f"{path} of its image is {found}, which the engine would follow or read without end at each start; "
    said += f"put {wanted} there in the image that it is made FROM"
    # Such links are in images made with Nix.
    if path in READ_AT_START and found == IN_WORDS[LINK_MODE]:
        said += f", as by `RUN cp --remove-destination $(readlink -f {path}) {path}`"
    return said


class DockerExecutor:
    """Starts a job as a container, exactly as its `container` says. `runs` is the folder that holds the run folders."""

    def __init__(self, engine: Engine, runs: Path) -> None:
        self._engine = engine
        self._runs = runs
        self._locks_memory = True
        self._sound = set[tuple[str, tuple[str, ...]]]()

    def start(self, job: Job) -> ContainerHandle:
        """Start a job.

        Raises:
            OSError: when the image is the reason that the job cannot be started, declares volumes, or has labels of
                megabytes.
            JobLost: when the engine refuses the job, or (`EngineSilent`) does not answer; the cell is not at fault
            then.
        """
        if job.container is None:
            raise ValueError("a job without `container` cannot be run by an engine")
        try:
            return self._start_twice(job, job.container)
        except APIError as error:
            raise JobLost(f"the Docker engine refuses the container: {explain(error)}") from None
        except TooLargeAnswerError as error:
            raise OSError(str(error)) from None
        except ENGINE_ERRORS:
            raise EngineSilent(GONE) from None

    def find(self, job: Job) -> Handle | None:
        """Return the container that works in the folder of a job, even if it has ended; None if there is none."""
        wanted = {"label": f"{LABEL}={run_mark(job.folder)}"}
        with contextlib.suppress(*ENGINE_ERRORS):
            for found in self._engine.client.api.containers(all=True, filters=wanted):
                track_container(run_mark(job.folder), found["Id"])
                return ContainerHandle(self._engine, found["Id"], job.log)
        return None

    def remove_leftovers(self, record: Callable[[str], object | None]) -> None:
        """Remove containers of runs of this folder that have a record: they outlived an engine or a harness."""
        with contextlib.suppress(*ENGINE_ERRORS):
            for found in self._engine.client.api.containers(all=True, filters={"label": LABEL}):
                folder = Path(found["Labels"][LABEL])
                mine = folder.parent == self._runs.absolute()
                # A folder that this user may not look at belongs to another user, and its container stays.
                with contextlib.suppress(UserError, OSError):
                    # If the folder is gone, the container ran a short command such as making data. If such a container
                    # still runs, its folder exists where its harness is, though perhaps not on this host.
                    left = (mine and record(folder.name)) or (found["State"] != "running" and _is_gone(folder))
                    if left and not self._is_labelled_by_image(found):
                        self._engine.client.api.remove_container(found["Id"], force=True, v=True)

    def _is_labelled_by_image(self, found: Mapping[str, Any]) -> bool:
        """Return whether a container may have its label from its image; somebody else then runs it by hand."""
        try:
            told = self._engine.client.api.inspect_image(found["ImageID"])
        except (ImageNotFound, TooLargeAnswerError):
            return True
        labels = (told.get("Config") or {}).get("Labels") or {}
        return bool(labels.get(LABEL) == found["Labels"][LABEL])

    def _refuse_volumes(self, image: str) -> None:
        told = self._engine.client.api.inspect_image(image)
        if volumes := (told.get("Config") or {}).get("Volumes"):
            names = one_line(", ".join(sorted(volumes)))[:LONGEST_NAMES]
            raise OSError(
                f"its image declares volumes ({names}), which could be written to without a limit and would stay; "
                "no image that is built here does: build it again, or take another one"
            )

    def _refuse_odd_places(self, container: Container, mark: str) -> None:
        """Raise OSError if a start would read anything but a file of the image, or follow a link in the image.

        The engine makes missing mount points as root, even behind a link, and so possibly in the work folder. Therefore
        the paths are examined in a container without mounts.
        """
        if (container.image, container.data) in self._sound:
            return
        kinds: dict[str, tuple[int, ...]] = {"/etc": (FOLDER_MODE,), **dict.fromkeys(READ_AT_START, (0,))}
        kinds |= dict.fromkeys((str(WORK), str(DATA)), (FOLDER_MODE,))
        kinds |= {str(inside(Path(file))): (0, FOLDER_MODE) for file in container.data}
        bare = self._engine.client.containers.create(
            image=container.image, entrypoint=[NO_PROGRAM], labels={LABEL: mark}, use_config_proxy=False
        )
        try:
            for path, expected in kinds.items():
                seen = self._engine.client.api.seen_in(bare.id, path)
                if not seen:
                    continue
                kind, size = seen
                wanted = IN_WORDS[expected[-1]]
                if kind not in expected:
                    raise OSError(_refused(path, IN_WORDS.get(kind, "something else"), wanted))
                if path in READ_AT_START and size > LARGEST_READ_AT_START:
                    raise OSError(_refused(path, "larger than any", wanted))
        finally:
            with contextlib.suppress(*ENGINE_ERRORS):
                bare.remove(force=True, v=True)
        self._sound.add((container.image, container.data))

    def _start_twice(self, job: Job, container: Container) -> ContainerHandle:
        """Start a job; if the engine refuses, try the same container with an empty image, and then the job once more.

        Raises:
            OSError: when the engine starts the container with an empty image, but still not the job.
        """
        self._refuse_volumes(container.image)
        try:
            return self._start(job, container)
        except ImageNotFound:
            raise
        except APIError:
            if not self._starts_empty(job, container):
                raise
        try:
            return self._start(job, container)
        except ImageNotFound:
            raise
        except APIError as error:
            said = explain(error)
        raise OSError(f"the engine starts the same container of an empty image, and refuses this one: {said}")

    def _starts_empty(self, job: Job, container: Container) -> bool:
        """Return whether the engine starts this container with an empty image; no program runs in it."""
        api = self._engine.client.api
        archive = io.BytesIO()
        tarfile.open(fileobj=archive, mode="w").close()
        empty = None
        try:
            told = api.import_image_from_data(archive.getvalue())
            empty = str(load_json(told)["status"])
            self._begin(replace(job, arguments=(NO_PROGRAM,)), replace(container, image=empty)).remove(force=True)
        except (APIError, ValueError, KeyError, TypeError):
            return False
        finally:
            with contextlib.suppress(*ENGINE_ERRORS):
                if empty:
                    api.remove_image(empty, force=True)
        return True

    def _start(self, job: Job, container: Container) -> ContainerHandle:
        created = self._begin(job, container)
        with self._removed_on_error(created):
            reached("job-started")
            if job.note:
                self._note(job.note, created.id)
            reached("job-noted")
            return ContainerHandle(self._engine, created.id, job.log)

    def _begin(self, job: Job, container: Container) -> Any:
        """Create a container for the program of a job, and start it."""
        arguments = container.create_arguments()
        arguments["working_dir"] = str(WORK / job.within)
        if not self._locks_memory:
            arguments["ulimits"] = [one for one in arguments["ulimits"] if one.name != MEMLOCK]
        mark = run_mark(job.folder)
        self._refuse_odd_places(container, mark)
        program, *rest = job.arguments
        created = self._engine.client.containers.create(
            **arguments,
            entrypoint=[program],
            command=rest,
            environment={**job.variables, RUN_MARK: mark},
            labels={LABEL: mark},
            detach=True,
            # Without the proxies that the library adds from the docker command's configuration: they may hold a
            # password.
            use_config_proxy=False,
        )
        try:
            with self._removed_on_error(created):
                reached("container-created")
                track_container(mark, created.id)
                created.start()
                return created
        except APIError as error:
            if not self._locks_memory or CANNOT_LOCK_MEMORY not in str(error):
                raise
            self._locks_memory = False
        return self._begin(job, container)

    @contextlib.contextmanager
    def _removed_on_error(self, created: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(*ENGINE_ERRORS):
                created.remove(force=True, v=True)
            raise

    def _note(self, note: Path, container: str) -> None:
        """Keep the engine's description of the container that it really runs."""
        with contextlib.suppress(*ENGINE_ERRORS):
            told = self._engine.client.api.inspect_container(container)
            kept = {key: told[key] for key in ("Id", "Image", "Created", "Config", "HostConfig", "Mounts")}
            write_json(unused(note), kept)
