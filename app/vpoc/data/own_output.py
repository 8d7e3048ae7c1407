"""Output files that replace only files which this program wrote and nobody has changed since."""

import json
from pathlib import Path

from vpoc.errors import UserError
from vpoc.files import read_bytes, sha256, sha256_file, write_atomic, write_json


def note_of(output: Path) -> Path:
    """Return the file that stores the hash of an output file: a hidden file beside it."""
    return output.with_name(f".{output.name}.vpoc.json")


def require_replaceable(output: Path, *, force: bool, give: str = "another --output, or --force to replace it") -> None:
    """Raise UserError when `output` has other content than was last written, unless `force`; an empty file may go."""
    if force or not output.is_file() or not output.stat().st_size:
        return
    try:
        noted = json.loads(read_bytes(note_of(output)))["sha256"]
    except (UserError, ValueError, KeyError, TypeError):
        noted = None
    if noted != sha256_file(output):
        raise UserError(f"{output}: is there, and is not what this command wrote; give {give}")


def write_own(output: Path, content: bytes) -> None:
    """Write `content` atomically, and store its hash for `require_replaceable`."""
    # Write the hash first: until the content is there, the hash only forbids replacing the present file, so nothing is
    # lost.
    _note(output, sha256(content))
    write_atomic(output, content)


def note_own(output: Path) -> None:
    """Store the hash of a file that was just written, for `require_replaceable`."""
    _note(output, sha256_file(output))


def _note(output: Path, digest: str) -> None:
    write_json(note_of(output), {"schema": 2, "sha256": digest})
