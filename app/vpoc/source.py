"""The identity of the program's source that computes features, for files that are to be made again by other source."""

import hashlib
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
ROOMS = ("data", "features", "kernel", "profile")
SUFFIXES = (".c", ".py")


@cache
def features_source(app: Path = HERE) -> str:
    """Return the SHA-256 of the source files that decide what features a file of bars has."""
    digest = hashlib.sha256()
    for file in sorted(file for room in ROOMS for file in (app / room).rglob("*") if file.suffix in SUFFIXES):
        digest.update(f"{file.relative_to(app)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
