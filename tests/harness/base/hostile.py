"""Things that may lie in the place of a file: no regular file, or one that is too large."""

import os
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

TERABYTE = 1 << 40

Place = Callable[[Path], object]


def a_socket(place: Path) -> None:
    with chdir(place.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(place.name)


def sparse(place: Path) -> None:
    place.touch()
    os.truncate(place, TERABYTE)


TRICKS: dict[str, tuple[Place, str]] = {
    "a link to a file": (lambda place: place.symlink_to(place.parents[2] / "secret"), "is a link"),
    "a link to nothing": (lambda place: place.symlink_to("nothing"), "is a link"),
    "a link to itself": (lambda place: place.symlink_to(place.name), "is a link"),
    "a link to a device": (lambda place: place.symlink_to("/dev/zero"), "is a link"),
    "a folder": (lambda place: place.mkdir(), "is a folder"),
    "a FIFO": (os.mkfifo, "is a FIFO"),
    "a socket": (a_socket, "is a socket"),
    "a sparse file": (sparse, f"has {TERABYTE} bytes, more than"),
}
"""For each: a function that makes it at a path, and what a message says about it."""
