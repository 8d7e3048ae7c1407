"""Layers of images being pulled, kept on this host, so that an interrupted download resumes where it stopped."""

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock

from harness.base.errors import NoAnswerError, NoSpaceError, UserError
from harness.base.files.hashes import file_hash
from harness.base.files.storage import NO_SPACE, cannot_be_written, size_of
from harness.base.paths import CACHE
from harness.host.engine_errors import Notify
from harness.registry.oci import Repository
from harness.registry.retries import with_retries

LAYERS = CACHE / "layers"
PARTIAL = ".partial"
# Seconds after which an unfinished download is removed, because nobody resumes a pull that late.
ABANDONED_SECONDS = 30 * 86400
MIB, GB = 1 << 20, 10**9


class KeptLayers:
    """Fetches blobs of a repository into a folder, from several threads of the one process that uses the folder.

    `advance` is called with the number of bytes that were fetched, or were there already.
    """

    def __init__(self, repository: str, notify: Notify, advance: Callable[[int], None], folder: Path = LAYERS) -> None:
        self._repository, self._notify, self._advance, self._folder = repository, notify, advance, folder
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self._stopped = Event()
        self._sound: set[str] = set()

    def fetch(self, digest: str, size: int) -> Path:
        """Return the file of a blob of `size` bytes, and fetch what is missing of it.

        Raises:
            NoAnswerError: when the registry stops answering.
            UserError: when the registry sends something else, or the disk is full.
        """
        file = self._file(digest)
        with self._locks[digest]:
            if self._is_kept(file, digest, size):
                self._advance(size)
                return file
            partial = file.with_name(file.name + PARTIAL)
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._require_room(size - size_of(partial))
                self._advance(size_of(partial))
                self._complete(partial, digest, size)
                partial.replace(file)
                self._sound.add(digest)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise cannot_be_written(file, error) from None
                # Free the space at once, because the records of runs may be written to the same disk.
                partial.unlink(missing_ok=True)
                raise self._no_room() from None
        return file

    def _complete(self, partial: Path, digest: str, size: int) -> None:
        resumed = size_of(partial) > 0
        # Earlier bytes count as progress: the registry has answered before, or it would be unknown what to fetch.
        with_retries(lambda: self._go_on(partial, digest, size), lambda: 1 + size_of(partial) // MIB, self._notify)
        if f"sha256:{file_hash(partial)}" == digest:
            return
        self._advance(-size_of(partial))
        partial.unlink()
        if not resumed:
            raise UserError(f"{self._repository}: blob {digest} is damaged or was replaced; do not trust this registry")
        # A file may end in bytes that were never written, after a power cut.
        self._notify(f"what was kept of {digest} is damaged; all of it is fetched again")
        self._complete(partial, digest, size)

    def _require_room(self, missing: int) -> None:
        if missing > shutil.disk_usage(self._folder).free:
            raise self._no_room(f" for a layer of which {missing / GB:.1f} GB are missing")

    def _no_room(self, purpose: str = "") -> NoSpaceError:
        return NoSpaceError(
            f"{self._folder}: the disk has no room{purpose}; free some, or remove that folder, which holds what pulls "
            "have fetched so far"
        )

    def _is_kept(self, file: Path, digest: str, size: int) -> bool:
        """Return whether a blob is here completely; remove one that the disk has damaged."""
        if digest not in self._sound and file.is_file():
            if size_of(file) == size and f"sha256:{file_hash(file)}" == digest:
                self._sound.add(digest)
            else:
                file.unlink()
        return digest in self._sound

    def stop(self) -> None:
        """Make every download end at its next piece."""
        self._stopped.set()

    def forget(self, digests: Iterable[str]) -> None:
        """Remove blobs that nobody needs any more, and downloads that nobody resumed for a month."""
        for digest in digests:
            self._file(digest).unlink(missing_ok=True)
        for file in self._folder.glob("[0-9a-f]*"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > ABANDONED_SECONDS:
                    file.unlink()

    def _file(self, digest: str) -> Path:
        return self._folder / digest.removeprefix("sha256:")

    def _go_on(self, partial: Path, digest: str, size: int) -> None:
        self._require_going_on()
        there = size_of(partial)
        if there < size:
            # Use a new connection for each blob, because several threads fetch blobs.
            with Repository(self._repository).reading(digest, there) as (begun, pieces):
                self._require_going_on()
                self._write(partial, begun, there, size, pieces)
            there = size_of(partial)
        if there < size:
            raise NoAnswerError(f"registry of {self._repository} broke off after {there} of {size} bytes of {digest}")

    def _write(self, partial: Path, begun: int, there: int, size: int, pieces: Iterable[bytes]) -> None:
        """Write pieces that start at byte `begun` to a file of `there` bytes."""
        with partial.open("ab", 0) as stream:
            # A registry that cannot begin in the middle sends the whole blob.
            stream.truncate(begun)
            self._advance(begun - there)
            for piece in pieces:
                self._require_going_on()
                stream.write(piece)
                self._advance(len(piece))
                # Stop after too many bytes, because they may be endless.
                if stream.tell() > size:
                    break
            os.fsync(stream.fileno())

    def _require_going_on(self) -> None:
        # Stop writing, because another process may use the folder after a stop.
        if self._stopped.is_set():
            raise UserError("the pull was stopped")
