"""Cells as containers."""

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
from harness.host.engine import ENGINE_ERRORS, GONE, Engine, explain
from harness.host.engine_client import FOLDER_MODE, LINK_MODE, TooLargeAnswerError
from harness.host.processes.run_processes import RUN_MARK, run_mark
from harness.host.processes.unmarked import track_container

LABEL = "vpoc.matrix.run"
# How the engine says that it has no right to raise a limit; then its own limit holds.
CANNOT_LOCK_MEMORY = "error setting rlimit type 8"
LONGEST_NAMES = 200
# Engines read them at each start; where that never ends, neither does the start, and the container cannot be removed.
READ_AT_START = ("/etc/passwd", "/etc/group")
LARGEST_READ_AT_START = 1 << 20
IN_WORDS = {0: "a file", FOLDER_MODE: "a folder", LINK_MODE: "a link"}
# A program that no image has.
NO_PROGRAM = "/no-program"


def _is_gone(folder: Path) -> bool:
    """Return whether it is surely not there; raise OSError where that cannot be known."""
    try:
        # Not `exists`, which takes what may not be looked at for what is not there.
        folder.stat()
    except FileNotFoundError:
        return True
    return False


def _refused(path: str, found: str, wanted: str) -> str:
    """Return what is wrong with a place of an image, and what to do about it."""
    said = f"{path} of its image is {found}, which the engine would follow or read without end at each start; "
    said += f"put {wanted} there in the image that it is made FROM"
    # As in images made with Nix.
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
            OSError: when it is for the image that it cannot be started, or the image declares volumes or has labels of
                megabytes.
            JobLost: when the engine refuses, `EngineSilent` when it does not answer: that is no fault of the cell.
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
                    left = (mine and record(folder.name)) or (found["State"] != "running" and _is_gone(folder))
                    if left and not self._is_labelled_by_image(found):
                        self._engine.client.api.remove_container(found["Id"], force=True, v=True)

    def _is_labelled_by_image(self, found: Mapping[str, Any]) -> bool:
        """Return whether a container may have its label from its image, which somebody else then runs by hand."""
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
        """Raise OSError where a start would read something else than a file of the image, or follow a link of it.

        A mount point behind a link is made by the engine, as root: in the work folder, if the link leads there. So they
        are looked at in a container that has no mounts.
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
        """Start a job; if that is refused, again, after the same container of an image without a file.

        Raises:
            OSError: when the one without a file could be started, and the other one still not.
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
        """Return whether the engine starts this container of an image that has no file; nothing is run in it."""
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
            # Those of the docker command's configuration, which the library adds: an address may hold a password.
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
        """Keep what the engine says it really runs."""
        with contextlib.suppress(*ENGINE_ERRORS):
            told = self._engine.client.api.inspect_container(container)
            kept = {key: told[key] for key in ("Id", "Image", "Created", "Config", "HostConfig", "Mounts")}
            write_json(unused(note), kept)
