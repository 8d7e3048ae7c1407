"""Logs as lines: read in bounded memory, whatever is in them."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 1 << 18
"""Bytes read at a time."""
LONGEST = 1 << 14
"""Characters; of a longer line the parts are looked at one by one."""
OVERLAP = 1 << 10
"""Characters that such a part has in common with the next, so that no message is cut in two."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BYTE_ORDER = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class Line:
    """A line, or a part of a long one, without its ending and colours. `number` counts from 1, as an editor does."""

    file: str
    number: int
    text: str


def read_lines(stream: BinaryIO, name: str, worth: Callable[[str], bool]) -> Iterator[Line]:
    """The lines of a log in blocks that are `worth` it; other blocks are passed over.

    Bytes that are no text become marks of replacement. A carriage return parts what a progress bar wrote over.
    """
    number, rest, decode = 1, "", None
    while block := stream.read(BLOCK):
        decode = decode or codecs.getincrementaldecoder(_BYTE_ORDER.get(block[:2], "utf-8"))("replace").decode
        *whole, rest = (rest + decode(block)).rsplit("\n", 1)
        for block_text in whole:
            text = _plain(block_text)
            if worth(text):
                yield from _numbered(text.split("\n"), name, number)
            number += text.count("\n") + 1
        if len(rest) > BLOCK:
            if worth(_plain(rest)):
                yield from _numbered([_plain(rest)], name, number)
            rest = rest[-OVERLAP:]
    if rest:
        yield from _numbered([_plain(rest)], name, number)


def as_lines(texts: Iterable[str], name: str) -> Iterator[Line]:
    """The lines of a log that is in memory, cleaned in the same way."""
    number = 1
    for text in texts:
        parts = _plain(text).removesuffix("\n").split("\n")
        yield from _numbered(parts, name, number)
        number += len(parts)


def _numbered(lines: Iterable[str], name: str, first: int) -> Iterator[Line]:
    for number, line in enumerate(lines, first):
        for written in line.split("\r"):
            if written:
                for start in range(0, max(len(written) - OVERLAP, 1), LONGEST - OVERLAP):
                    yield Line(name, number, written[start : start + LONGEST])


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text
