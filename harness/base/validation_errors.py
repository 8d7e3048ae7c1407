"""Says in plain words what a pydantic.ValidationError found wrong with a file or with the value of an option."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

MOST_TOLD = 1000
"""Most errors of a file that are examined: each of them takes a thousand bytes."""


def headline(error: Exception) -> str:
    """Return the first line of an error; for a file's errors only their number: there may be hundreds of thousands."""
    if isinstance(error, ValidationError):
        count = error.error_count()
        return f"{count} validation error{'s' * (count != 1)} for {error.title}"
    return str(error).partition("\n")[0]


# What is accepted, by the type of pydantic's error. Its own words are those of a programmer: "valid dictionary".
_ACCEPTED = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "invalid_key": "a key should be a text in quotes",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "int_parsing_size": "has too many digits",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "finite_number": "should be a finite number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "string_type": "should be a text in quotes",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "dict_type": "should be a mapping (key: value)",
    "model_type": "should be a mapping (key: value)",
    "greater_than": "should be more than {gt}",
    "greater_than_equal": "should be {ge} or more",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be {le} or less",
    "string_pattern_mismatch": "should match {pattern}",
    "string_too_short": "should have {min_length} characters or more",
    "too_short": "should have {min_length} entries or more",
    "literal_error": "should be {expected}",
}
# Longest value, in characters, that a message quotes.
LONGEST_QUOTED = 60


def in_plain_words(details: Mapping[str, Any]) -> str:
    """Return what is wrong with a value: what is accepted, and the value, if `details` has it and it is short.

    `details`: one of the `errors()` of a pydantic.ValidationError.
    """
    said: str = details["msg"].removeprefix("Value error, ")
    if details["type"] not in _ACCEPTED:
        return said
    accepted = _ACCEPTED[details["type"]].format_map(details.get("ctx", {}))
    value = details.get("input", {})
    if not accepted.startswith("should") or isinstance(value, Mapping | list | tuple):
        return accepted
    quoted = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{accepted}, not {quoted}" if len(quoted) <= LONGEST_QUOTED else accepted


def first_problem(error: ValidationError) -> str:
    """Return the first place at which a file is wrong, and what is wrong there; of very many errors only their number.

    The value at that place is left out: it may be the whole file, once for each error.
    """
    if error.error_count() > MOST_TOLD:
        return headline(error)
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), in_plain_words(first))))
