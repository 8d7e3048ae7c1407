"""Images for the nodes of a cluster: each host takes one from where it lies, once, however many jobs need it there."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException
from pydantic import Field
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from harness.base.errors import NoAnswerError, UserError
from harness.base.files.json_files import File
from harness.base.files.shared_locks import folder_of_locks, open_shared_lock
from harness.base.files.storage import held, wait_for_lock
from harness.environments.docker.images import SHORT, Image, find
from harness.environments.environment import Environment
from harness.host.engine import Engine, Notify, follow_transfer, transfer_errors
from harness.matrix.stacks import Stack

# An engine tells of a transfer many times a second; one that tells nothing for so long does not go on.
SILENT_SECONDS = 300.0
# Of an archive some tell nothing while they unpack it; bytes a second, on a slow disk.
UNPACKED_SPEED = 20e6
# For another job that takes the image: it has its own limits.
LOCKED_SECONDS = 7200.0
# Takes a folder of images and the ids of one; yields the archive of it that engines load.
ReadFolder = Callable[[Path, Collection[str]], Iterable[bytes]]


class NodeImage(File):
    """An image as a node is to have it, and where it takes it from: a registry, by digest, or saved.

    `ids` are those that engines of either kind have for it, where that is known.
    """

    id: str
    ids: tuple[str, ...] = ()
    labels: dict[str, str]
    reference: str | None = Field(None, description="in a registry, by digest")
    archive: str | None = Field(None, description="folder of `matrix save`, on every node")
    remedy: str

    @property
    def place(self) -> str:
        """Where it is taken from."""
        return self.archive or self.reference or ""

    def environment(self, stack: Stack, id_here: str | None = None) -> Environment:
        """Return the environment in it; `id_here` is the id that the engine of this host has for it."""
        return Image(id_here or self.id, self.labels, (), 0).environment(stack)


class NodeImages(File):
    """The images of a run on a node: of its cell, and the one that it is verified in, or why there is none."""

    cell: NodeImage
    verifier: NodeImage | None = None
    no_verifier: str = ""


def bring_image(engine: Engine, wanted: NodeImage, saved: ReadFolder, notify: Notify, root: Path = Path("/")) -> Image:
    """Have an image in the engine of this host: pulled or loaded by one process, for which the others wait.

    `saved` reads it from a folder of `matrix save`; `root` holds the folder for locks.

    Raises:
        UserError: when it cannot be had.
    """
    if image := _find(engine, wanted):
        return image
    with _one_at_a_time(lock_of_image(wanted.id, root), notify):
        if image := _find(engine, wanted):
            return image
        _transfer(engine, wanted, saved, notify)
        image = _find(engine, wanted)
    if image is None:
        raise UserError(f"{wanted.place}: image {wanted.id[:19]} is not in it; {wanted.remedy}")
    return image


def lock_of_image(image: str, root: Path = Path("/")) -> Path:
    """Return the lock file of an image, by its id, on a host.

    Raises:
        UserError: when there is no place for it.
    """
    return folder_of_locks(root) / f"vpoc-image-{image.removeprefix('sha256:')[:SHORT]}.lock"


def _find(engine: Engine, wanted: NodeImage) -> Image | None:
    # Another image store has another id for it; a digest is the same everywhere.
    names = (wanted.id, *wanted.ids, *((wanted.reference,) if wanted.reference else ()))
    return next((image for name in names if (image := find(engine, name))), None)


def _transfer(engine: Engine, wanted: NodeImage, saved: ReadFolder, notify: Notify) -> None:
    api = _NoPatience(base_url=engine.address, timeout=_silence(wanted))
    doing = f"{'loading' if wanted.archive else 'pulling'} {wanted.place}"
    notify(doing)
    try:
        with transfer_errors(doing), _events(api, wanted, saved) as events:
            follow_transfer(events, doing, notify)
    except UserError as error:
        # An archive is not away for a while.
        kind = UserError if wanted.archive and isinstance(error, NoAnswerError) else type(error)
        raise kind(f"{error}; {wanted.remedy}") from None


def _silence(wanted: NodeImage) -> float:
    """Return for how many seconds an engine may tell nothing of an image."""
    size = 0
    with suppress(OSError):
        size = sum(file.stat().st_size for file in Path(wanted.archive or os.devnull).rglob("*"))
    return SILENT_SECONDS + size / UNPACKED_SPEED


class _NoPatience(docker.APIClient):  # type: ignore[misc]
    """Waits for a sign of the engine no longer than its limit, also while it pulls: a job that waits keeps its node."""

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request; pulls are asked for without a limit."""
        return super().send(request, **{**options, "timeout": options.get("timeout") or self.timeout})


@contextmanager
def _events(api: Any, wanted: NodeImage, saved: ReadFolder) -> Iterator[Iterable[Mapping[str, Any]]]:
    try:
        if wanted.archive:
            yield api.load_image(saved(Path(wanted.archive), {wanted.id, *wanted.ids}), quiet=False)
        else:
            name, _, digest = str(wanted.reference).partition("@")
            yield api.pull(name, digest, stream=True, decode=True)
    except DockerException:
        # What the engine answers is an error of requests, too.
        raise
    except (RequestException, HTTPError):
        seconds = api.timeout
        raise UserError(f"the engine is gone, or gave no sign of {wanted.place} for {seconds:.0f} s") from None
    except OSError as error:
        raise UserError(f"{wanted.place}: cannot be read: {error.strerror or error}") from None


@contextmanager
def _one_at_a_time(file: Path, notify: Notify) -> Iterator[None]:
    descriptor = open_shared_lock(file)
    try:
        # Every user of the host may lock it.
        wait_for_lock(descriptor, file, LOCKED_SECONDS, notify)
        with held(descriptor):
            yield
    finally:
        os.close(descriptor)
