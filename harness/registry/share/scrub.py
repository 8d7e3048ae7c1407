"""Text without the names and places of the machine it was written on. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

PATH = "<path>"
HOST = "<host>"
# Names of every second machine, which tell nothing; `matrix` is what we call user and host ourselves.
COMMON_NAMES = frozenset({"", "root", "localhost", "matrix", "none"})
# Where a system keeps what its packages bring; nothing in there is named by a user.
SYSTEM_PLACES = r"/(?:usr|opt/rocm[\w.-]*|opt/venv|lib|lib32|lib64|bin|sbin|proc|sys|dev|etc)(?=/|$)"
# What remains of another path: the part that the packages of Python, or our own app, name.
TAIL = re.compile(r"/(?:(?:site|dist)-packages|lib/python3\.\d+|vpoc|bin)/[^/].*$")
# An address of the web has its first slash behind a colon and its second behind the first.
ANY_PATH = r"(?<![\w<>./~-])/(?!/)[^\s\"'`<>|:;,(){}\[\]=*?\\]+"
# `journalctl --output=short-iso-precise`: time, host, program.
JOURNAL_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) \S+ (?=kernel: )", re.MULTILINE)


@dataclass(frozen=True)
class Scrubber:
    """What to write instead of places (absolute paths) and words (names of hosts, users, files)."""

    places: Mapping[str, str]
    words: Mapping[str, str]

    def text(self, text: str) -> str:
        """The text without them, and without any other absolute path. Doing it twice changes nothing more."""
        return JOURNAL_LINE.sub(rf"\1 {HOST} ", self._pattern.sub(self._instead, text))

    def value(self, value: Any) -> Any:
        """The same for every string in a JSON value, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.value(inner) for key, inner in value.items()}
        return [self.value(inner) for inner in value] if isinstance(value, list | tuple) else value

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(
            rf"(?P<place>(?<![\w<>.~-])(?:{_any_of(self.places)})(?!\.?[\w-]))|(?P<path>{ANY_PATH})|{self._word.pattern}"
        )

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return re.compile(rf"(?P<word>(?<![^\W_])(?i:{_any_of(self._words)})(?![^\W_]))")

    @cached_property
    def _words(self) -> dict[str, str]:
        return {word.lower(): instead for word, instead in self.words.items() if word.lower() not in COMMON_NAMES}

    def _instead(self, found: re.Match[str]) -> str:
        if place := found["place"]:
            return self.places[place]
        if path := found["path"]:
            tail = TAIL.search(path)
            kept = path if re.match(SYSTEM_PLACES, path) else PATH + (tail[0] if tail else "")
            return self._word.sub(self._instead_of_word, kept)
        return self._instead_of_word(found)

    def _instead_of_word(self, found: re.Match[str]) -> str:
        return self._words[found["word"].lower()]


def _any_of(texts: Collection[str]) -> str:
    """A pattern of the texts, the longest first: what holds another is not to be cut. Of none: what never matches."""
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True) if text) or r"(?!)"
