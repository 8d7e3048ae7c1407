"""Copies a file without some of its lines, and lists what was done to which line."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from vpoc.arrays import Ints
from vpoc.data.merged_csv import UNENDED
from vpoc.data.merged_head import Head
from vpoc.data.rules import CHANGED, DROPPED, MOVED
from vpoc.errors import from_os_error
from vpoc.files import line_parts

COPY_BYTES = 1 << 24
CHANGES_HEADER = ("line", "action", "reason", "was", "now")
ACTIONS = {"line": pl.Int64, "action": pl.String, "reason": pl.String}
"""The columns of a table of actions on lines."""


def copy_lines(path: Path, actions: pl.DataFrame, head: Head | None, output: IO[bytes], changes: IO[bytes]) -> int:
    """Copy the file at `path` with the `actions`, sorted by line; drop an unterminated last line.

    Lines without an action are copied byte for byte. `head`: the header of a merged CSV, in which a change empties the
    VIX cell. Returns the number of lines dropped because they are unterminated.
    """
    tell = _teller(changes)
    line = actions["line"].to_numpy()
    number = 1
    for part in line_parts(path, COPY_BYTES):
        count = part.count(b"\n")
        begin, stop = np.searchsorted(line, [number, number + count]).tolist()
        if not part.endswith(b"\n") and part.strip():
            if begin == len(line):
                tell(number, DROPPED, UNENDED, part, b"")
                return 1
            stop = len(line)
        if begin == stop:
            output.write(part)
        else:
            texts = part.split(b"\n")
            done = {}
            for at, action, reason in actions[begin:stop].iter_rows():
                was = texts[at - number]
                now = without_vix(was, head) if action == CHANGED and head else b""
                tell(at, action, reason, was, now)
                done[at - number] = [now] if action == CHANGED else []
            kept = [text for place, text in enumerate(texts) for text in done.get(place, [text])]
            output.write(b"\n".join(kept))
        number += count
    return 0


def copy_in_order(head: Head, order: Ints, actions: pl.DataFrame, output: IO[bytes], changes: IO[bytes]) -> None:
    """Copy the header of a merged CSV and the lines `order` [rows], with the `actions`, sorted by line.

    This reads the whole file into memory.
    """
    try:
        texts = head.path.read_bytes().split(b"\n")
    except OSError as error:
        raise from_os_error(error, head.path) from error
    tell = _teller(changes)
    output.write(b"\n".join(texts[: head.lines]) + b"\n")
    for at, action, reason in actions.iter_rows():
        was = texts[at - 1]
        now = was if action == MOVED else without_vix(was, head) if action == CHANGED else b""
        tell(at, action, reason, was, now)
        texts[at - 1] = now
    for at in order.tolist():
        output.write(texts[at - 1] + b"\n")


def copy_rows(frame: pl.DataFrame, actions: pl.DataFrame, output: IO[bytes], changes: IO[bytes]) -> None:
    """Write `frame`, which has a column `line`, as CSV without that column and without the rows that `actions` drop."""
    tell = _teller(changes)
    gone = frame["line"].is_in(actions["line"].implode())
    dropped = frame.filter(gone).join(actions, on="line", maintain_order="left")
    for row in dropped.iter_rows(named=True):
        values = [f"{row[name]}" for name in frame.columns if name != "line"]
        tell(row["line"], row["action"], row["reason"], ",".join(values).encode(), b"")
    frame.filter(~gone).drop("line").write_csv(output)


def without_vix(text: bytes, head: Head) -> bytes:
    """Return the line `text` of a merged CSV with an empty VIX cell."""
    bare, end = (text[:-1], b"\r") if text.endswith(b"\r") else (text, b"")
    cells = next(csv.reader([bare.decode("utf-8")]))
    cells[head.names.index("vix")] = ""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    return out.getvalue().encode() + end


def _teller(changes: IO[bytes]) -> Callable[[int, str, str, bytes, bytes], None]:
    def tell(line: int, action: str, reason: str, was: bytes, now: bytes) -> None:
        row = [line, action, reason, _shown(was), _shown(now)]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(row)
        changes.write(text.getvalue().encode())

    changes.write((",".join(CHANGES_HEADER) + "\n").encode())
    return tell


def _shown(text: bytes) -> str:
    return text.decode("utf-8", "replace").rstrip("\r").replace("\0", "\ufffd")
