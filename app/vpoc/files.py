"""Reading whole files, and writing files that are either complete or absent. Standard library only."""

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from vpoc.errors import UserError, from_os_error

HASH_BLOCK = 1 << 23
ROOT = 0
LARGEST = 8 << 30
"""Most bytes that are read at once: those of a checkpoint that the harness keeps."""
LONGEST_LINE = 16 << 20
"""Most bytes of a line of bars, or of blank lines together: what has no line end has to be in memory as a whole."""
NO_FILE = "this is a pipe or a device; give a file"


def read_bytes(path: Path) -> bytes:
    """Return the content of `path`; UserError when it is empty, and as `read_regular`."""
    content = read_regular(path)
    if not content:
        raise UserError(f"{path}: the file is empty; give a file with data")
    return content


def read_regular(path: Path) -> bytes:
    """Return the content of `path`; UserError when it cannot be read, is no file or has more than LARGEST bytes."""
    try:
        # Somebody else may have made a pipe of this name, which would be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path}: {NO_FILE}")
            if status.st_size > LARGEST:
                raise UserError(f"{path}: has {status.st_size:,} bytes; more than {LARGEST:,} are not read")
            return stream.read()
    except OSError as error:
        raise from_os_error(error, path) from error


def state_of_file(path: Path) -> tuple[int, ...]:
    """Return what is different once the file at `path` was changed or replaced; UserError when it is not there."""
    try:
        status = path.stat()
    except OSError as error:
        raise from_os_error(error, path) from error
    # Anybody may set the time of the last change of the content, but not that of the last change of anything.
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


def changed_while_read(path: Path) -> UserError:
    """Return the error for a file whose content is not that which its hash stands for, in caches and when verified."""
    return UserError(f"{path}: was changed while it was read; give the same command once it is whole")


def require_unchanged(path: Path, state: tuple[int, ...]) -> None:
    """Raise UserError unless the file at `path` is still in the `state` that `state_of_file` returned."""
    if state_of_file(path) != state:
        raise changed_while_read(path)


def open_in_place(path: str | Path, flags: int) -> int:
    """Open a file to write where others may have put a link or a pipe: neither is followed or waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def is_own(path: Path) -> bool:
    """Return whether there is a file at `path` that belongs to this user."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content`, in hex."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of the file at `path`, in hex, read in blocks; UserError when it cannot be read."""
    digest = hashlib.sha256()
    # Large blocks, because each read waits for the interpreter's lock while another thread imports.
    block = memoryview(bytearray(HASH_BLOCK))
    try:
        with path.open("rb", buffering=0) as stream:
            while count := stream.readinto(block):
                digest.update(block[:count])
    except OSError as error:
        raise from_os_error(error, path) from error
    return digest.hexdigest()


def hash_in_thread(path: Path) -> Future[str]:
    """Return the future result of `sha256_file` for `path`, which a thread computes."""
    pool = ThreadPoolExecutor(1)
    digest = pool.submit(sha256_file, path)
    pool.shutdown(wait=False)
    return digest


def line_parts(path: Path, size: int) -> Iterator[bytes]:
    """Yield the file in parts of about `size` bytes that end with a line end, except perhaps the last.

    UserError as above, and for more than LONGEST_LINE bytes in a line.
    """
    left = b""
    try:
        with path.open("rb") as stream:
            while block := stream.read(size):
                part = left + block
                end = part.rfind(b"\n") + 1
                if end:
                    yield part[:end]
                left = part[end:]
                require_lines(path, left)
    except OSError as error:
        raise from_os_error(error, path) from error
    if left:
        yield left


def require_lines(path: Path, left: bytes) -> None:
    """Raise UserError when what is `left` of a text file after its last row cannot be one row more."""
    if len(left) > LONGEST_LINE:
        raise UserError(f"{path}: has more than {LONGEST_LINE:,} bytes without a row; give a CSV file of bars")


def require_writable(folder: Path) -> None:
    """Create `folder` if it is missing; UserError unless a file can be created in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise from_os_error(error, folder) from error


def require_temporary_folder() -> None:
    """Raise UserError when no folder takes temporary files: a training would wait for its loader workers for ever."""
    before = tempfile.tempdir
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise UserError(f"{error.strerror}; set TMPDIR to a folder that can be written") from error
    finally:
        # Chosen again where it is used, because this one may be full by then.
        tempfile.tempdir = before


def remove(path: Path) -> None:
    """Remove the file `path` if it is there; UserError when that is not possible."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error, path) from error


def refuse_link_of_another(path: Path) -> None:
    """Raise UserError when `path` is a link of another user: it may lead to what only this user may write to."""
    if path.is_symlink() and path.lstat().st_uid not in (os.geteuid(), ROOT):
        raise UserError(f"{path}: is a link of another user's; remove it, or choose another output")


def require_output(output: Path, *inputs: Path | None) -> None:
    """UserError when `output` exists but is not a regular file, or is the same file as one of the `inputs`."""
    try:
        if output.exists() and not output.is_file():
            raise UserError(f"{output}: this is not a file but a folder or a device; give the path of a file")
        for path in inputs:
            if path is not None and output.exists() and path.exists() and output.samefile(path):
                raise UserError(f"{output}: this is the same file as the input {path}; choose another output")
    except OSError as error:
        raise from_os_error(error, output) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` atomically: `path` then has all of it, or still its former content. See `open_atomic`."""
    with open_atomic(path) as stream:
        stream.write(content)


@contextlib.contextmanager
def open_atomic(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """A stream to write to. At the end `path` has all of it, or still its former content, even after a power cut.

    Without `durable` nothing waits for the disk: a power cut can leave a torn file, which readers must detect. The
    folder is created if it is missing, and a link is followed, not replaced. UserError when the disk is full, the
    folder is not writable, or `path` is no file, or a link of another user; the temporary file is then removed.
    """
    if path.is_symlink():
        refuse_link_of_another(path)
        path = Path(os.path.realpath(path))
    require_output(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
                os.fchmod(stream.fileno(), 0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        if durable:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise from_os_error(error, path) from error


def json_bytes(document: dict[str, Any]) -> bytes:
    """Return `document` as strict JSON; ValueError on NaN or infinity."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write `document` as strict JSON (ValueError on NaN or infinity), atomically."""
    write_atomic(path, json_bytes(document))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
