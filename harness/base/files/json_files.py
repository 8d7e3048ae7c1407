"""The base classes of all JSON files of this project."""

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
"""A text for people, which may contain text of an app or of another host: it is reduced to one line of at most 4,096
characters."""


Moment = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]
"""Seconds since 1970, up to the year 5138, because not every platform can show later dates."""


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
