"""Bounds for JSON that others write: its number of values, its depth, the size of numbers. Files are read through here.

Python reads integers of any size from JSON and fails when one becomes a float, and code that follows nested values
fails at a depth of its own. No file of a real run comes near these bounds.
"""

import math
import re
from itertools import islice
from typing import Any, NamedTuple

from pydantic_core import from_json

MOST_LEVELS = 32
# A value of two bytes takes a hundred bytes in memory, once for each missing key, and a thousand if it is wrong.
MOST_VALUES = 1 << 16
# Drivers use 64-bit ids for GPUs.
LARGEST_INTEGER = 2**64 - 1
# No float32 is larger, and a larger float64 may overflow in a multiplication.
LARGEST_FLOAT = 1e39

TOO_MANY = f"it holds more than {MOST_VALUES:,} values"

_LARGE = re.compile(rb"[0-9]{20}|[eE]\+?[0-9]{2}")
# An unfinished string goes to the end of the text; otherwise its end would be searched again from each quote in it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_TOKEN = re.compile(rb"%s|[,\[{]" % _STRING.pattern, re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
# Where a number is expected, pydantic also accepts a text of digits, also with escapes. Hashes have 64 characters.
_DIGITS = bytes(ord("0") if one in b"0123456789_" else ord(" ") for one in range(256))
_TEXT_OF_DIGITS = b"0" * 65
_ESCAPED = (rb"\u003", rb"\u005")


class Excess(NamedTuple):
    """A breach of the bounds, in words, and its place in the file, as keys and indexes from the top."""

    place: tuple[str | int, ...]
    problem: str


def beyond_bounds(content: bytes) -> Excess | None:
    """Return the breach of the bounds in a JSON text; None where there is none, or the text is not JSON."""
    if _holds_too_many(content):
        return Excess((), TOO_MANY)
    # Parsing ten thousand records would take longer than all other work on them.
    plain = _STRING.sub(b"", content)
    if not _LARGE.search(plain) and _is_flat(plain):
        return None
    try:
        value = from_json(content)
    except ValueError:
        return None
    return excess_of(value)


def _holds_too_many(content: bytes, most: int = MOST_VALUES) -> bool:
    """Return whether a JSON text has more than `most` values; the content of strings does not count."""
    if content.count(b",") + content.count(b"[") + content.count(b"{") <= most:
        return False
    # Not all tokens: the parts between the strings of a large text take a gigabyte. A value has two strings at most.
    tokens = islice(_TOKEN.finditer(content), 3 * most + 2)
    begins = [content[token.start()] for token in tokens]
    return len(begins) - begins.count(ord('"')) > most or len(begins) > 3 * most + 1


def _is_flat(plain: bytes) -> bool:
    """Return whether a JSON text, given without its strings, is within the levels; False where that is uncertain."""
    brackets = plain.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(MOST_LEVELS):
        if not brackets:
            return True
        # Removes the innermost level.
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def may_hold_number_as_text(content: bytes) -> bool:
    """Return whether a JSON text has so many digits in a row that the numbers read from it have to be checked."""
    return _TEXT_OF_DIGITS in content.translate(_DIGITS) or any(escaped in content for escaped in _ESCAPED)


def load_json(content: bytes | str, most_values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: when the text is not JSON, or is beyond the bounds.
    """
    if _holds_too_many(content if isinstance(content, bytes) else content.encode(errors="replace"), most_values):
        raise ValueError(f"it holds more than {most_values:,} values")
    value = from_json(content)
    if excess := excess_of(value):
        raise ValueError(excess.problem)
    return value


def json_object(content: bytes | str) -> dict[str, Any]:
    """Return the object in a JSON text; an empty dict if it is not an object, or beyond the bounds."""
    try:
        value = load_json(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def excess_of(value: Any) -> Excess | None:
    """Return the breach of the bounds in a value; None where there is none."""
    # Checked first, because recording places takes most of the time, and hardly any value needs them.
    if _is_within(value):
        return None
    level: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    for _ in range(MOST_LEVELS + 1):
        inner: list[tuple[tuple[str | int, ...], Any]] = []
        for place, one in level:
            if isinstance(one, dict):
                inner += [((*place, key), value) for key, value in one.items()]
            elif isinstance(one, list | tuple):
                inner += [((*place, number), value) for number, value in enumerate(one)]
            elif _is_too_large(one):
                return Excess(place, "a number is too large")
        if not inner:
            return None
        level = inner
    return Excess((), f"it is nested more than {MOST_LEVELS} levels deep")


def _is_within(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, str):
                continue
            if isinstance(one, dict):
                inner.extend(one.values())
            elif isinstance(one, list | tuple):
                inner.extend(one)
            elif _is_too_large(one):
                return False
        if not inner:
            return True
        level = inner
    return False


def _is_too_large(one: Any) -> bool:
    if isinstance(one, float):
        # Infinity and NaN are allowed here: whoever uses the number decides about them.
        return math.isfinite(one) and abs(one) > LARGEST_FLOAT
    return isinstance(one, int) and abs(one) > LARGEST_INTEGER
