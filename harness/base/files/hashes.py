"""Hashes of JSON values, files and folders."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def json_hash(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()


def file_hash(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_hash(folder: Path, patterns: Iterable[str]) -> str:
    """Return the SHA-256 over the names and contents of the matching files, in the order of their names."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    return json_hash([[file.relative_to(folder).as_posix(), file_hash(file)] for file in files])
