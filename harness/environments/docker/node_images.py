"""Brings images to the nodes of a cluster: each host takes an image once, however many jobs need it there."""

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
from harness.base.files.locks import counted_as_held, wait_for_lock
from harness.base.files.shared_locks import folder_of_locks, open_shared_lock
from harness.environments.docker.images import SHORT, Image, find
from harness.environments.environment import Environment
from harness.host.engine import Engine
from harness.host.engine_errors import Notify, follow_transfer, transfer_errors
from harness.matrix.stacks import Stack

# Seconds without a report after which a transfer counts as stuck; engines report many times a second.
SILENT_SECONDS = 300.0
# Bytes a second at which an archive is unpacked on a slow disk; some engines report nothing meanwhile.
UNPACKED_SPEED = 20e6
# Seconds to wait for another job that takes the same image; that job has limits of its own.
LOCKED_SECONDS = 7200.0
# Returns the archive that engines load, given a folder of saved images and the ids of an image.
ReadFolder = Callable[[Path, Collection[str]], Iterable[bytes]]


class NodeImage(File):
    """An image that a node needs, and where the node takes it from: a registry, by digest, or a folder of saved images.

    `ids` are the ids that engines of either kind give the image, if known.
    """

    id: str
    ids: tuple[str, ...] = ()
    labels: dict[str, str]
    reference: str | None = Field(None, description="in a registry, by digest")
    archive: str | None = Field(None, description="folder of `matrix save`, on every node")
    remedy: str

    @property
    def place(self) -> str:
        """The place that the image is taken from."""
        return self.archive or self.reference or ""

    def environment(self, stack: Stack, id_here: str | None = None) -> Environment:
        """Return the environment in the image; `id_here` is the image's id on the engine of this host."""
        return Image(id_here or self.id, self.labels, (), 0).environment(stack)


class NodeImages(File):
    """The images of a run on a node: that of its cell, and the one that verifies the run, or why there is none."""

    cell: NodeImage
    verifier: NodeImage | None = None
    no_verifier: str = ""


def bring_image(engine: Engine, wanted: NodeImage, saved: ReadFolder, notify: Notify, root: Path = Path("/")) -> Image:
    """Get an image into the engine of this host. One process pulls or loads it, and all others wait for that process.

    `saved` reads images from a folder of `matrix save`. `root` holds the folder for locks.

    Raises:
        UserError: when the image is not available.
    """
    if image := _find(engine, wanted):
        return image
    with _one_at_a_time(lock_of_image(wanted.id, root), notify):
        if image := _find(engine, wanted):
            return image
        _transfer(engine, wanted, saved, notify)
        engine.sync_images()
        image = _find(engine, wanted)
    if image is None:
        raise UserError(f"{wanted.place}: image {wanted.id[:19]} is not in it; {wanted.remedy}")
    return image


def lock_of_image(image: str, root: Path = Path("/")) -> Path:
    """Return the lock file of an image on a host, by the image's id.

    Raises:
        UserError: when there is not a folder for lock files.
    """
    return folder_of_locks(root) / f"vpoc-image-{image.removeprefix('sha256:')[:SHORT]}.lock"


def _find(engine: Engine, wanted: NodeImage) -> Image | None:
    # Another image store gives the image another id, but the digest is the same everywhere.
    names = (wanted.id, *wanted.ids, *((wanted.reference,) if wanted.reference else ()))
    return next((image for name in names if (image := find(engine, name))), None)


def _transfer(engine: Engine, wanted: NodeImage, saved: ReadFolder, notify: Notify) -> None:
    api = _BoundedClient(base_url=engine.address, timeout=_silence(wanted))
    doing = f"{'loading' if wanted.archive else 'pulling'} {wanted.place}"
    notify(doing)
    try:
        with transfer_errors(doing), _events(api, wanted, saved) as events:
            follow_transfer(events, doing, notify)
    except UserError as error:
        # A missing archive does not come back after a while, so this is no error of a silent host.
        kind = UserError if wanted.archive and isinstance(error, NoAnswerError) else type(error)
        raise kind(f"{error}; {wanted.remedy}") from None


def _silence(wanted: NodeImage) -> float:
    """Return for how many seconds an engine may report nothing about an image."""
    size = 0
    with suppress(OSError):
        size = sum(file.stat().st_size for file in Path(wanted.archive or os.devnull).rglob("*"))
    return SILENT_SECONDS + size / UNPACKED_SPEED


class _BoundedClient(docker.APIClient):  # type: ignore[misc]
    """A client that waits for the engine no longer than its limit, even in a pull: a waiting job keeps its node."""

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request with the limit, although the library sends pulls without one."""
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
        # Re-raise, because an answer of the engine is an error of requests, too.
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
        # Wait with a limit, because every user of the host may hold the lock.
        wait_for_lock(descriptor, file, LOCKED_SECONDS, notify)
        with counted_as_held(descriptor):
            yield
    finally:
        os.close(descriptor)
