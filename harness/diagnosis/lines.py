"""Reads logs as lines, in bounded memory whatever they contain."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from harness.environments.executors.bounded_log import MAY_LACK_SOME

BLOCK = 1 << 18
"""Bytes read at a time."""
LONGEST = 1 << 14
"""Longest line, in characters; a longer one is searched part by part."""
OVERLAP = 1 << 10
"""Characters that such a part shares with the next one, so that no message is cut in two."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# A line in the log file that Docker keeps for a container.
_OF_CONTAINER = re.compile(r'\{"log":"(?P<text>.*?)(?:\\r)?(?:\\n)?","stream":"std(?:out|err)"')
# Loggers write a whole traceback as one string.
_TRACEBACK_IN_A_STRING = "(most recent call last):\\n"
_NEW_LINE_IN_A_STRING = re.compile(r"(?<!\\)\\n")
_BYTE_ORDER = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class Line:
    """A line, or a part of a long one, without its ending and colours. `number` counts from 1, as an editor does."""

    file: str
    number: int
    text: str


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class WithEnd:
    """A stream that keeps its last bytes, and counts lines, while it is read."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._end = b""
        self._newlines = 0

    def read(self, size: int, /) -> bytes:
        """Return the next bytes of the stream."""
        block = self._stream.read(size)
        self._newlines += block.count(b"\n")
        self._end = (self._end + block)[-LONGEST:]
        return block

    def last_line(self, name: str) -> Line | None:
        """Return the last line of the program that has a letter or digit; None if there is none near the end."""
        return next(iter(self.last_lines(name, 1)), None)

    def last_lines(self, name: str, count: int) -> list[Line]:
        """Return the last lines of the program that have a letter or digit, the last one first; perhaps fewer."""
        # In UTF-16 one of the two bytes of an ASCII character is zero.
        texts = _plain(self._end.replace(b"\0", b"").decode("utf-8", "replace")).split("\n")
        saying = (
            Line(name, self._newlines + 1 - before, text.rstrip().rsplit("\r")[-1])
            for before, text in enumerate(reversed(texts))
            if any(letter.isalnum() for letter in text) and text.strip() != MAY_LACK_SOME
        )
        return list(islice(saying, count))

    @property
    def is_empty(self) -> bool:
        """True if the program has written only white space so far; in a long stream, if its end is only white space."""
        return self._end.strip() in (b"", MAY_LACK_SOME.encode())


def read_lines(stream: Readable, name: str, worth: Callable[[str], bool]) -> Iterator[Line]:
    """Yield the lines of the blocks of a log that are `worth` reading, and of the block after each; skip all others.

    The next block is read because a traceback that begins in one block may end in the next one. Undecodable bytes
    become replacement characters. A carriage return, as progress bars write it, separates lines.
    """
    number, rest, decode, goes_on = 1, "", None, False
    while block := stream.read(BLOCK):
        decode = decode or codecs.getincrementaldecoder(_BYTE_ORDER.get(block[:2], "utf-8-sig"))("replace").decode
        *whole, rest = (rest + decode(block)).rsplit("\n", 1)
        for block_text in whole:
            text = _plain(block_text)
            is_worth = worth(text)
            if is_worth or goes_on:
                yield from _numbered(text.split("\n"), name, number)
            goes_on = is_worth
            number += text.count("\n") + 1
        if len(rest) > BLOCK:
            if worth(_plain(rest)):
                yield from _numbered([_plain(rest)], name, number)
            rest = rest[-OVERLAP:]
    if rest:
        yield from _numbered([_plain(rest)], name, number)


def as_lines(texts: Iterable[str], name: str) -> Iterator[Line]:
    """Yield the lines of a log in memory, cleaned in the same way as those of a file."""
    number = 1
    for text in texts:
        parts = _plain(text).removesuffix("\n").split("\n")
        yield from _numbered(parts, name, number)
        number += len(parts)


def _numbered(lines: Iterable[str], name: str, first: int) -> Iterator[Line]:
    for number, line in enumerate(lines, first):
        for written in line.split("\r"):
            for text in _out_of_strings(written):
                for start in range(0, max(len(text) - OVERLAP, 1), LONGEST - OVERLAP):
                    yield Line(name, number, text[start : start + LONGEST])


def _out_of_strings(written: str) -> list[str]:
    """Return the lines inside a line that is a string of JSON or Python; for any other line, the line itself."""
    if found := _OF_CONTAINER.match(written):
        written = _unescaped(found["text"])
    if _TRACEBACK_IN_A_STRING in written:
        return [text for text in _NEW_LINE_IN_A_STRING.split(written.replace('\\"', '"')) if text]
    return [written] if written else []


def _unescaped(text: str) -> str:
    """Return the content of a JSON string; the text itself if it is cut off."""
    try:
        told = str(json.loads(f'"{text}"', strict=False))
        # Half of a surrogate pair cannot be encoded.
        return _plain(told.encode("utf-8", "replace").decode())
    except ValueError:
        return text


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text
