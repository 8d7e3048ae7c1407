"""Output files that replace only files which the same command wrote and nobody has changed since."""

import json
import os
from pathlib import Path

from vpoc.errors import UserError, from_os_error
from vpoc.files import ROOT, read_bytes, sha256, sha256_file, write_atomic, write_json


def note_of(output: Path) -> Path:
    """Return the file that stores the hash of an output file: a hidden file beside it."""
    return output.with_name(f".{output.name}.vpoc.json")


def require_replaceable(
    output: Path, command: str, *, force: bool, give: str = "another --output, or --force to replace it"
) -> None:
    """Raise UserError when `output` is not what `command` last wrote there, unless `force`; an empty file may go."""
    if force or not output.is_file() or not output.stat().st_size:
        return
    try:
        note = json.loads(read_bytes(_note_to_believe(output)))
        # The notes of earlier versions name no command.
        noted = note["sha256"] if note.get("command", command) == command else None
    except (UserError, AttributeError, ValueError, KeyError, TypeError):
        noted = None
    if noted != sha256_file(output):
        raise UserError(f"{output}: is there, and is not what this command wrote; give {give}")


def _note_to_believe(output: Path) -> Path:
    """Return the note beside an output file; UserError for that of a user who could not replace the file."""
    note = note_of(output)
    try:
        if note.lstat().st_uid not in (os.geteuid(), ROOT, output.stat().st_uid):
            raise UserError(f"{note}: is another user's")
    except OSError as error:
        raise from_os_error(error, note) from error
    return note


def write_own(output: Path, command: str, content: bytes) -> None:
    """Write what `command` made atomically, and store its hash for `require_replaceable`."""
    # Write the hash first: until the content is there, the hash only forbids replacing the present file, so nothing is
    # lost.
    _note(output, command, sha256(content))
    write_atomic(output, content)


def note_own(output: Path, command: str) -> None:
    """Store the hash of a file that `command` just wrote, for `require_replaceable`."""
    _note(output, command, sha256_file(output))


def _note(output: Path, command: str, digest: str) -> None:
    write_json(note_of(output), {"schema": 2, "command": command, "sha256": digest})
