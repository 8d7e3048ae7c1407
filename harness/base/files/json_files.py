"""The base of every JSON file of this project."""

from typing import Annotated, Literal, Self

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
"""A text for people, which may hold what an app or another host wrote: it is shown in a line of its own, of 4,096
characters at most."""


Moment = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
"""Seconds since 1970, up to the year 5138: not every platform can show later dates, and nothing is written then."""


MOST_TOLD = 1000
"""Errors of a file that are looked at: each of many takes a thousand bytes."""


def headline(error: Exception) -> str:
    """Return the first line of an error; of one of a file without the others, which may be hundreds of thousands."""
    if isinstance(error, ValidationError):
        count = error.error_count()
        return f"{count} validation error{'s' * (count != 1)} for {error.title}"
    return str(error).partition("\n")[0]


def first_problem(error: ValidationError) -> str:
    """Return where a file is wrong first, and what is wrong there; of very many errors only their number.

    Never with what the file holds there: that may be all of it, once for each error.
    """
    if error.error_count() > MOST_TOLD:
        return headline(error)
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


class File(BaseModel):
    """A file, or a part of one: every key is known."""

    # JSON has no word for NaN: an app that computed one is quoted with a string, which reads back as NaN.
    # Most commands use a few of the files: what checks the others is not made for them.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", defer_build=True)

    @classmethod
    def parse(cls, content: bytes | str) -> Self:
        """Return the value of a JSON text, of this schema or the one before.

        Raises:
            pydantic.ValidationError: when it is no JSON or beyond its bounds, or a key is missing, unknown or wrong.
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
            # Which says in its own words what is wrong with it.
            return cls.model_validate_json(content)
        # Not from the text: each error would have a copy of what it is about, and of a key that is missing that is all.
        return cls.model_validate(plain)


def _refuse(name: str, excess: Excess | None) -> None:
    if excess:
        told = PydanticCustomError("out_of_bounds", "{problem}", {"problem": excess.problem})
        wrong = InitErrorDetails(type=told, loc=excess.place, input=None)
        raise ValidationError.from_exception_data(name, [wrong])


class Versioned(File):
    """A file of its own: says which version of its layout it follows."""

    version: Literal[2] = Field(2, alias="schema")

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
