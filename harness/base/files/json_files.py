"""The base classes of all JSON files of this project."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, from_json

from harness.base.files.json_bounds import Excess, beyond_bounds, excess_of, may_hold_number_as_text
from harness.base.schema1 import upgraded
from harness.base.text import one_line

LONGEST_LINE = 4096


def _shown_line(text: str) -> str:
    line = one_line(text[: LONGEST_LINE + 1])
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."


OneLine = Annotated[str, AfterValidator(_shown_line)]
"""A text for people, which may contain text of an app or of another host: it is reduced to one line of at most 4,096
characters."""


Moment = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
"""Seconds since 1970, up to the year 5138, because not every platform can show later dates."""


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


class File(BaseModel):
    """A file, or a part of one, without unknown keys."""

    # JSON has no NaN: if an app computed one, it is written as a string, which reads back as NaN. Validators are only
    # built when they are needed, because most commands use few kinds of files.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", defer_build=True)

    @classmethod
    def parse(cls, content: bytes | str) -> Self:
        """Return the value of a JSON text, of this schema or the one before.

        Raises:
            pydantic.ValidationError: when the text is not JSON or beyond the bounds, or a key is missing, unknown or
                wrong.
        """
        content = content.encode(errors="replace") if isinstance(content, str) else content
        _refuse(cls.__name__, beyond_bounds(content))
        value = cls._validated(upgraded(content))
        if may_hold_number_as_text(content):
            _refuse(cls.__name__, excess_of(value.model_dump()))
        return value

    @classmethod
    def _validated(cls, content: bytes) -> Self:
        try:
            plain = from_json(content)
        except ValueError:
            # This raises an error that says what is wrong with the JSON.
            return cls.model_validate_json(content)
        # Not from the text, because each error would copy its input, and for a missing key that is the whole object.
        return cls.model_validate(plain)


def _refuse(name: str, excess: Excess | None) -> None:
    if excess:
        told = PydanticCustomError("out_of_bounds", "{problem}", {"problem": excess.problem})
        wrong = InitErrorDetails(type=told, loc=excess.place, input=None)
        raise ValidationError.from_exception_data(name, [wrong])


class Versioned(File):
    """A file of its own, which states the version of its layout."""

    version: Literal[2] = Field(2, alias="schema")

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
