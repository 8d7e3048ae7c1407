"""Removes the names and paths of a machine from texts. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

PATH = "<path>"
HOST = "<host>"
# Common words, which identify nobody and occur in sentences. `matrix` is the name of user and host in containers.
COMMON_NAMES = frozenset(
    {"", "root", "localhost", "matrix", "none", "user", "host", "home", "work", "app", "code", "src", "main", "data"}
    | {"run", "train", "training", "test", "model", "gpu"}
)
# Folders of system packages, in which no user names anything.
SYSTEM_PLACES = r"/(?:usr|opt/rocm[\w.-]*|opt/venv|lib|lib32|lib64|bin|sbin|proc|sys|dev|etc)(?=/|$)"
# The part of any other path that is kept, because Python packages or our own app name it.
TAIL = re.compile(r"/(?:(?:site|dist)-packages|lib/python3\.\d+|vpoc|bin)/[^/].*$")
# Matches absolute paths, but not the slashes of a URL: the first follows a colon, the second the first.
ANY_PATH = r"(?<![\w<>./~-])/(?!/)[^\s\"'`<>|:;,(){}\[\]=*?\\]+"
# Matches lines of `journalctl --output=short-iso-precise`, with time, host and program.
KERNEL = " kernel: "
JOURNAL_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) \S+ (?=kernel: )", re.MULTILINE)

# What may not stand before or behind a place of a run, as in the pattern for the other places.
NO_BEGINNING, NO_END = re.compile(r"[\w<>.~-]"), re.compile(r"\.?[\w-]")
# Limits of the cache of replaced texts, because variables and words of commands are the same in most runs.
LONGEST_KNOWN, MOST_KNOWN = 256, 1 << 16


@dataclass(frozen=True)
class Scrubber:
    """The replacements of places (absolute paths) and words (names of hosts, users, files).

    `own` are the places of one run, which are replaced first. They are no part of the pattern, because compiling one
    for each of ten thousand runs would take most of the time.
    """

    places: Mapping[str, str]
    words: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    _of_words: dict[frozenset[tuple[str, str]], "Scrubber"] = field(default_factory=dict, repr=False, compare=False)
    _shared: "Scrubber | None" = field(default=None, repr=False, compare=False)

    def text(self, text: str) -> str:
        """Return the text with these and all other absolute paths replaced. A second pass changes nothing."""
        if "/" in text:
            for place in sorted(self.own, key=len, reverse=True):
                text = _without(text, place, self.own[place])
        return (self._shared or self)._replaced(text)

    def of_run(self, own: Mapping[str, str], words: Mapping[str, str]) -> "Scrubber":
        """Return a scrubber that also replaces the places of one run, and further words."""
        new = frozenset(words.items() - self.words.items())
        if new not in self._of_words:
            self._of_words[new] = replace(self, words={**self.words, **words}, _known={}, _of_words={})
        return replace(self._of_words[new], own=own, _shared=self._of_words[new])

    def _replaced(self, text: str) -> str:
        known = self._known.get(text)
        if known is None:
            # Search for names first, because most texts, and the longest ones, contain none.
            known = _without_host(text if self._has_no_name(text) else self._pattern.sub(self._instead, text))
            if len(text) <= LONGEST_KNOWN and len(self._known) < MOST_KNOWN:
                self._known[text] = known
        return known

    def _has_no_name(self, text: str) -> bool:
        """Return whether a text certainly contains none of the words or places; False if that needs a closer look."""
        # Beyond ASCII, several letters can be equal when case is ignored.
        if "/" in text or not text.isascii():
            return False
        lower = text.lower()
        return not any(word in lower for word in self._words)

    def value(self, value: Any) -> Any:
        """Return a JSON value with every string replaced in the same way, keys included."""
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


def _without_host(text: str) -> str:
    """Return a text without the host name in lines of the journal."""
    return JOURNAL_LINE.sub(rf"\1 {HOST} ", text) if KERNEL in text else text


def _any_of(texts: Collection[str]) -> str:
    """Return a pattern of the texts, the longest first, so that a text containing another matches as a whole.

    Without any text the pattern never matches.
    """
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True) if text) or r"(?!)"


def _without(text: str, place: str, instead: str) -> str:
    """Return a text with one place replaced wherever no path continues before or behind it."""
    parts, begin, at = [], 0, text.find(place)
    while at >= 0:
        end = at + len(place)
        if (at and NO_BEGINNING.match(text, at - 1)) or NO_END.match(text, end):
            at = text.find(place, at + 1)
        else:
            parts += [text[begin:at], instead]
            begin, at = end, text.find(place, end)
    return "".join([*parts, text[begin:]])
