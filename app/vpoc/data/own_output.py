"""Output files that replace only what the same program wrote, and nobody has changed since."""

import json
from pathlib import Path

from vpoc.errors import UserError
from vpoc.files import sha256, sha256_file, write_atomic, write_json


def note_of(output: Path) -> Path:
    """Return where the hash of an output file is noted: beside it, hidden."""
    return output.with_name(f".{output.name}.vpoc.json")


def require_replaceable(output: Path, *, force: bool) -> None:
    """UserError when `output` is there and has not the content that was last written, unless it is forced."""
    if force or not output.is_file():
        return
    try:
        noted = json.loads(note_of(output).read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        noted = None
    if noted != sha256_file(output):
        raise UserError(
            f"{output}: is there, and is not what this command wrote; give another --output, or --force to replace it"
        )


def write_own(output: Path, content: bytes) -> None:
    """Write `content` atomically, and note its hash for `require_replaceable`."""
    # The note of a content that is not there yet forbids to replace what is there: nothing is lost in between.
    write_json(note_of(output), {"schema": 2, "sha256": sha256(content)})
    write_atomic(output, content)
